"""Guards that live in a process of their own; found by their import names. Each prints, which must not disturb."""

from __future__ import annotations

import os
import time


class Cap:
    """Says its process by a soft decision; what it does otherwise depends on the tool's name."""

    def __init__(self) -> None:
        print("made")

    def check_before_llm(self, session_id, estimated_tokens):
        return {"decision": "soft", "resource": session_id, "consumed": os.getpid(), "limit": estimated_tokens}

    def check_before_tool(self, session_id, tool_name):
        print("asked")
        if tool_name == "hang":
            time.sleep(60)
        if tool_name == "hold":
            "".join(str(n) for n in range(10**8))  # pure Python, but for long
        if tool_name == "die":
            os._exit(7)
        if tool_name == "leave":
            raise SystemExit(3)
        if tool_name == "odd":
            return object()
        if tool_name == "nan":
            return {"decision": "soft", "resource": "r", "consumed": float("nan"), "limit": 1}
        if tool_name == "true":
            return True
        if tool_name == "deny":
            return {"decision": "deny", "resource": "tokens", "reason": "monthly cap reached"}
        return None

    def record_after_llm(self, session_id, usage):
        with open(os.environ["THENCE_TEST_SPENT"], "a") as file:
            file.write(f"{usage['total_tokens']}\n")


class Some:
    """Has one method alone."""

    def check_before_tool(self, session_id, tool_name):
        return {"decision": "deny", "resource": "tools", "reason": "no"}


an_object = Some()


def factory() -> Some:
    return Some()


def broken() -> None:
    raise ValueError("cannot")
