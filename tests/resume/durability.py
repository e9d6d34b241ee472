"""The promises of durability, each with the tests that hold it: `docs/DURABILITY.md` is made from this list."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "DURABILITY.md"

PREAMBLE = """# What survives what

What dies, when, what is kept, and what may run again. Every line is held by the tests it names; this page is made from
their own list by `python3 tools/durability.py`, and a test fails when the two differ.

Words: a *started* call has its row in the file, written before the tool runs; a *landed* one has its result there, as a
row or as a fact. *Acknowledged* is what a call has returned, or what another process was told. An effect is declared
with `@tool(effect=…)`; an undeclared one is treated as one that may be run again with the same idempotency key, so
declare `once` whatever must not be. §s are those of the contract.
"""


@dataclass(frozen=True, slots=True)
class Promise:
    """One line: ``tests`` are ``folder/file::name`` below ``tests/``, without ``.py``."""

    dies: str
    when: str
    kept: str
    again: str
    tests: tuple[str, ...]


def _tests(*names: str) -> tuple[str, ...]:
    return tuple(name if "/" in name.split("::")[0] else f"resume/{name}" for name in names)


EVERY = "test_every_effect::test_before_and_after_every_effect"
PROCESS, RESUME, MACHINE, NOBODY = "the process", "the process that resumes", "the machine", "nobody"

PROMISES = (
    Promise(
        PROCESS,
        "before `send` has written its message",
        "what was there before; nothing of this run, and nothing was acknowledged",
        "nothing: `send` again",
        _tests(EVERY, "test_killed::test_p2_killed_at_every_commit"),
    ),
    Promise(
        PROCESS,
        "while the model answers",
        "all facts so far; the half answer is void",
        "the model is asked again",
        _tests(EVERY, "test_killed::test_p1_b02_killed_at_any_moment"),
    ),
    Promise(
        PROCESS,
        "after the answer was recorded, before a call of it had started",
        "the answer with its calls",
        "nothing; each call runs once, whatever its effect",
        _tests(
            "test_effects::test_a_call_that_had_not_started_runs_once", "test_effects::test_a01_a_call_without_a_result"
        ),
    ),
    Promise(
        PROCESS,
        "while a call runs (`read`, `idempotent`, undeclared)",
        "that it had started",
        "the call, once a death, with the same idempotency key",
        _tests(
            "test_effects::test_a_started_call_runs_again_with_the_same_key",
            "test_effects::test_the_key_is_the_same_in_a_copy_of_the_file",
            EVERY,
        ),
    ),
    Promise(
        PROCESS,
        "while a `once` call runs",
        "that it had started",
        "nothing before somebody has said what came of it: the run asks, and is parked; no word counts twice",
        _tests(
            "test_once::test_a_started_once_call_is_not_run_again",
            "test_once::test_once_stays_unknown_over_further_deaths",
            "test_once::test_the_effect_that_counts_is_the_one_it_started_with",
            "waits/test_outcomes::test_a_started_once_call_asks_what_happened",
            "waits/test_outcomes::test_what_a_person_may_say_about_it",
            "waits/test_outcomes::test_run_it_now_and_dying_again_asks_again",
            EVERY,
        ),
    ),
    Promise(
        PROCESS,
        "while its run is parked, before the answer",
        "the run, its waits and all results so far; who is to answer needs no process of the run",
        "nothing: answered, the same run goes on",
        _tests(
            "waits/test_restarts::test_three_processes",
            "waits/test_restarts::test_restarts_before_and_after_the_answer_change_nothing",
            "waits/test_parking::test_what_a_parked_run_leaves_in_the_file",
        ),
    ),
    Promise(
        PROCESS,
        "while its run is parked, after an answer was taken",
        "the answer: the first one that was taken, with who gave it",
        "nothing: the run goes on with that answer, be it late",
        _tests(
            "waits/test_restarts::test_restarts_before_and_after_the_answer_change_nothing",
            "waits/test_answer_rows::test_answers_are_durable_when_they_return",
            "waits/test_parking::test_answered_in_time_counts_also_when_nobody_went_on_for_long",
        ),
    ),
    Promise(
        PROCESS,
        "on the way to a wait, or on the way on from it",
        "what was asked and what was answered, once each",
        "as above; the log comes out as the undisturbed one",
        _tests("waits/test_restarts::test_a_death_at_every_effect_of_parking_and_of_going_on"),
    ),
    Promise(
        PROCESS,
        "while a call runs that a person had approved",
        "the approval",
        "the call with the same key, and nobody is asked again; a `once` call asks what came of it",
        _tests(
            "waits/test_restarts::test_a_death_in_the_approved_call",
            "waits/test_restarts::test_the_idempotency_key_is_that_of_the_call",
        ),
    ),
    Promise(
        PROCESS,
        "after some calls of a batch have landed",
        "their results, one by one",
        "only the calls that have not landed",
        _tests(
            "test_effects::test_a_landed_result_is_never_run_again",
            "test_effects::test_b01_each_subset_of_a_batch",
            "test_effects::test_b19_a_free_call_beside_a_denied_one",
        ),
    ),
    Promise(
        PROCESS,
        "between two rounds",
        "all rounds; counters, usage and the duplicate window with them",
        "nothing; the next request is made",
        _tests(
            "test_table::test_with_a_checkpoint",
            "test_table::test_a_checkpoint_decides_nothing",
            "test_counters::test_b03_rounds_are_counted_once",
            "test_counters::test_the_duplicate_window",
            "test_counters::test_usage_and_calls_over_three_resumes",
        ),
    ),
    Promise(
        PROCESS,
        "after the turn has ended, before or after `send` returned",
        "the whole turn",
        "nothing: the recorded outcome is given again",
        _tests(
            "test_table::test_a_settled_turn_is_replayed",
            "test_table::test_a_failed_turn_raises_its_recorded_error_again",
            "test_killed::test_b17_the_answer_is_there_when_send_returns",
        ),
    ),
    Promise(
        PROCESS,
        "at any commit and at any moment (`kill -9`)",
        "everything acknowledged; the chain of facts verifies",
        "a call in flight, once a death; never a landed one",
        _tests(
            "test_killed::test_p2_killed_at_every_commit",
            "test_killed::test_p1_b02_killed_at_any_moment",
            "test_killed::test_p1_three_thousand_kills",
        ),
    ),
    Promise(
        RESUME,
        "five times in a row",
        "everything; each attempt is a run of its own, old rows stay byte for byte",
        "as above; at most six attempts to the undisturbed end",
        _tests(
            "test_every_effect::test_killed_again_five_deep",
            "test_killed::test_p3_killed_five_times_in_a_row",
            "test_counters::test_one_run_an_attempt",
            "test_table::test_resume_of_a_resumed_run_goes_to_the_newest_descendant",
        ),
    ),
    Promise(
        "the provider, a budget",
        "at a model request",
        "the turn so far; the run is `failed` and resumable until the next turn",
        "only the failed request",
        _tests(
            "test_failed::test_a_model_that_failed",
            "test_failed::test_b07_a_denied_request_keeps_the_pair_before_it",
            "test_failed::test_the_next_turn_closes_it",
        ),
    ),
    Promise(
        "the disk (full)",
        "when a result is to be stored",
        "everything acknowledged; the call is started, not landed",
        "the call, with the same key; `once` asks first",
        _tests(
            "test_effects::test_b05_a_result_that_could_not_be_stored",
            "test_effects::test_b05_once_is_charged_once",
            "test_own_claim::test_a_claim_of_this_process_without_an_operation_counts_for_nothing",
        ),
    ),
    Promise(
        PROCESS,
        "while somebody had cancelled, or sent an event from elsewhere",
        "the cancel and the event, in the inbox",
        "nothing that was cancelled",
        _tests(
            "test_recover::test_a_cancel_that_was_acknowledged_outlives_its_owner",
            "test_recover::test_events_that_waited_for_a_dead_owner_are_taken_by_the_next",
        ),
    ),
    Promise(
        NOBODY,
        "the owner is stopped, the clock jumps, the lid is closed",
        "the session stays its owner's; others are told `SESSION_BUSY`",
        "nothing",
        _tests("test_ownership::test_clock_jumps_take_nothing_away"),
    ),
    Promise(
        NOBODY,
        "a stopped owner is displaced by `takeover(force=True)`, then wakes",
        "what it had written before; every later write of it is refused, `OWNERSHIP_LOST`",
        "its calls in flight, while the displaced one may still be running them: that is what force means",
        _tests(
            "test_ownership::test_c04_a_stopped_owner_is_displaced_by_force_and_writes_nothing_more",
            "test_ownership::test_c01_a_stale_writer_does_not_reload_and_go_on",
            "test_ownership::test_stale_writes_of_every_kind_are_refused_inside_sqlite",
        ),
    ),
    Promise(
        NOBODY,
        "many processes resume, recover, spawn or answer the same at once",
        "one of them does it; the others are told busy, that it has its answer, or get its outcome",
        "nothing twice",
        _tests(
            "test_races::test_c05_eight_processes_resume_one_run",
            "test_races::test_b11_four_processes_resume_all",
            "test_spawn_many::test_eight_processes_spawn_one_id",
            "waits/test_answer_rows::test_two_answerers_at_once_in_two_processes",
        ),
    ),
    Promise(
        PROCESS,
        "after `steer` has returned True",
        "the message, in the inbox or as a fact, never both",
        "nothing: whoever resumes reads it once",
        _tests(
            "test_steered::test_what_was_said_is_read_once_wherever_the_process_dies",
            "processes/test_steering::test_what_was_acknowledged_outlives_the_process_that_was_to_read_it",
        ),
    ),
    Promise(
        "a run's row (evicted)",
        "after its end",
        "its id, with what it was asked, as long as the session's facts",
        "nothing: the same id and prompt are replayed",
        _tests(
            "test_spawn::test_after_eviction_the_promise_holds", "test_spawn::test_b08_an_id_lives_as_long_as_its_facts"
        ),
    ),
    Promise(
        "a row (damaged)",
        "at rest",
        "the file as it is: the damage is said, nothing is folded as if it were good",
        "nothing",
        _tests(
            "test_refused::test_a_damaged_fact", "test_refused::test_a_damaged_landing", "test_refused::test_a_cut_log"
        ),
    ),
    Promise(
        MACHINE,
        'at any moment (power cut), `durability="power"`',
        "everything acknowledged",
        "as when the process dies; a landed `read` whose row was not synced yet, too",
        _tests(
            "faults/test_power_cut::test_p5_nothing_acknowledged_is_lost",
            "test_killed::test_b14_a_torn_tail_of_the_log",
        ),
    ),
    Promise(
        MACHINE,
        'at any moment (power cut), `durability="process"`',
        "the file is sound, up to some earlier commit",
        "whatever came after that commit",
        _tests("faults/test_power_cut::test_the_judge_sees_what_a_process_that_does_not_sync_loses"),
    ),
)


def render() -> str:
    """The page."""
    lines = [PREAMBLE, "| what dies | when | what is kept | what may run again | tests |", "|---|---|---|---|---|"]
    for one in PROMISES:
        tests = "<br>".join(f"`{name}`" for name in one.tests)
        lines.append(f"| {one.dies} | {one.when} | {one.kept} | {one.again} | {tests} |")
    return "\n".join(lines) + "\n"
