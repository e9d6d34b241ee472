"""Where in a turn hooks are asked, and what their answers do to it (§10). `turn` and `rounds` call it.

Hooks are a host's code: they may take long, or kill the process. So what is staged is written before any is asked, and
none is asked while a tool is running.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from .canonical import Json, dumps, dumps_checked, sha256_hex
from .effects import AskHooks, Flow, Landed
from .errors import ThenceError
from .facts import Answered, Returned, Text, text_of
from .hooking import HookContext, HookOutcome, soft_as_given
from .ledger import Ledger, Setup
from .state import State
from .steps import OpenCall


def before_call(ledger: Ledger, call: OpenCall) -> Flow[HookOutcome]:
    """``pre_tool_use``, just before the call's batch."""
    yield from ledger.flush()
    return (yield from AskHooks(_of_call("pre_tool_use", ledger, call)))


def refusal(call: OpenCall, outcome: HookOutcome) -> Returned:
    """What the log and the model get of a call that a hook blocked."""
    text = f"Error: blocked by a hook: {outcome.refused}"
    return Returned(call.key, False, (Text(text),), {"refused": "hook_blocked", "hook": outcome.refused_by})


def changed(call: OpenCall, outcome: HookOutcome) -> OpenCall | None:
    """The call as it will run, or None when that is as it is recorded.

    Its signature stays that of what the model said: a loop of the model is still seen.
    """
    arguments = outcome.arguments
    # As JSON: in Python 1, 1.0 and True are equal.
    if arguments is None or dumps_checked(arguments) == dumps_checked(call.call.arguments):
        return None
    return replace(call, call=replace(call.call, arguments=arguments))


def change_note(outcome: HookOutcome) -> Mapping[str, Json]:
    """What a result says of arguments that are not those of the recorded call."""
    return {"sha256": sha256_hex(dumps(outcome.arguments)), "hooks": list(outcome.changed_by)}


def after_calls(ledger: Ledger, ended: Sequence[tuple[OpenCall, Landed]]) -> Flow[None]:
    """``post_tool_use`` for each call of a batch that ran, in call order."""
    for call, landed in sorted(ended, key=lambda one: one[0].position):
        context = _of_call("post_tool_use", ledger, call)
        yield from AskHooks(replace(context, result=text_of(landed.result.parts), ok=landed.result.ok))


def before_request(ledger: Ledger, number: int, estimate: Callable[[], int]) -> Flow[HookOutcome | None]:
    """``pre_llm``, once a request: attempts after a failed one do not ask again. None: there is no hook."""
    if not ledger.present.is_hooked("pre_llm"):
        return None
    yield from ledger.flush()
    soft, ledger.soft = tuple(soft_as_given(one) for one in ledger.soft), []
    return (
        yield from AskHooks(
            HookContext(
                "pre_llm",
                ledger.ids.session_id,
                ledger.ids.run_id,
                request=number,
                model=ledger.setup.model,
                estimated_tokens=estimate(),
                soft_decisions=soft,
            )
        )
    )


def with_model(setup: Setup, name: str) -> Setup:
    """``setup`` asking for another model of the host's, for the rest of the turn."""
    own = setup.instead_of or setup.model
    return replace(setup, model=name, instead_of=None if name == own else own)


def as_left(setup: Setup, state: State) -> Setup:
    """``setup`` with the model that a hook chose earlier in this turn, unless the host itself now gives another."""
    config = state.config
    if config is None or config.instead_of is None or config.instead_of != setup.model:
        return setup
    return with_model(setup, config.model)


def after_answer(ledger: Ledger, number: int, answer: Answered) -> Flow[None]:
    """``post_llm``, once the answer is in the file."""
    if not ledger.present.is_hooked("post_llm"):
        return
    yield from ledger.flush()
    ids = ledger.ids
    yield from AskHooks(
        HookContext(
            "post_llm",
            ids.session_id,
            ids.run_id,
            request=number,
            model=answer.model,
            text=answer.text,
            usage=answer.usage,
        )
    )


def after_run(ledger: Ledger, status: str, text: str, error: ThenceError | None) -> Flow[None]:
    """``run_end``, once the end is in the file."""
    if not ledger.present.is_hooked("run_end"):
        return
    yield from AskHooks(
        HookContext(
            "run_end",
            ledger.ids.session_id,
            ledger.ids.run_id,
            status=status,
            text=text if status == "completed" else None,
            usage=ledger.log.state.usage,
            error_code=error.code if error else None,
        )
    )


def _of_call(event_type: str, ledger: Ledger, call: OpenCall) -> HookContext:
    ids = ledger.ids
    return HookContext(
        event_type,
        ids.session_id,
        ids.run_id,
        tool_name=call.call.name,
        call_key=call.key,
        arguments=call.call.arguments or {},
    )
