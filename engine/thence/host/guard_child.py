"""A budget guard in a process of its own: JSON lines in, JSON lines out (§6). Run as a script, without thence.

The first line names the guard; each further one is a question and gets one line in answer. What the guard prints goes
to stderr. The process ends when nobody can ask it any more, or when a question has taken far too long.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import queue
import sys
import threading
from typing import Any

MARGIN_S = 5.0
METHODS = ("check_before_llm", "record_after_llm", "check_before_tool")


def main() -> None:
    """Answer questions until stdin is at its end."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    questions: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(questions,), daemon=True).start()
    nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process
    guard, error = _load(questions.get())
    while True:
        question = questions.get()
        # A thread of C's own: it ends us also when the guard never lets the interpreter go and nobody is there to kill.
        faulthandler.dump_traceback_later(question["limit_s"] + MARGIN_S, exit=True, file=nowhere)
        answer = {"error": error} if error else _ask(guard, question)
        faulthandler.cancel_dump_traceback_later()
        answers.write(json.dumps({"id": question["id"], **answer}) + "\n")
        answers.flush()


def _listen(questions: queue.SimpleQueue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        questions.put(json.loads(line))
    os._exit(0)  # whoever asked is gone, and the guard may hang


def _load(start: dict[str, Any]) -> tuple[Any, str]:
    sys.path[:] = start["path"]
    module, _, name = start["guard"].partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        guard = found() if callable(found) else found
        if not any(hasattr(guard, method) for method in METHODS):
            return None, f"'{start['guard']}' has none of {', '.join(METHODS)}"
        return guard, ""
    except BaseException as error:  # noqa: BLE001 - told as the answer to every question
        return None, f"'{start['guard']}' cannot be had: {_describe(error)}"


def _ask(guard: Any, question: dict[str, Any]) -> dict[str, Any]:
    try:
        method = getattr(guard, question["method"], None)
        if method is None:
            return {"value": None}
        value = method(question["session_id"], question["argument"])
    except BaseException as error:  # noqa: BLE001 - a guard that raises denies
        return {"error": _describe(error)}
    if question["method"] == "record_after_llm":
        return {"value": None}
    try:
        if value is None or type(value) is dict:
            return json.loads(json.dumps({"value": value}))  # type: ignore[no-any-return]
    except BaseException:  # noqa: BLE001 - then it is none of the answers that mean anything
        return {"value": "not JSON"}
    return {"value": "not a dict"}


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:10_000].encode("utf-8", "replace").decode()
    except BaseException:  # noqa: BLE001 - an exception may fail to say what it is
        return type(error).__name__


if __name__ == "__main__":
    main()
