"""`waits`, `approve`, `reject` and `answer` (§13): what they show and do, and their exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from thence import Agent, SessionOptions, tool
from thence.testing import ScriptedModel, call, reply

from .kit import C0, C1, Plain, asks, digest

W = f"{C0}-w1"
FIELDS = {
    "id", "session_id", "run_id", "kind", "subject", "tool", "arguments", "question", "digest", "deadline_ms", "state",
    "opened_ms", "value", "by",
}  # fmt: skip


# ------------------------------------------------------------------ waits


def test_waits_in_every_form(file, invoke):
    """§13: `--json` one document, `--nl` lines, a table for people; reading writes nothing."""
    run_id = file.park("a")
    file.park("b", "ask:3")
    with Plain(file.path) as plain:
        before = plain.state()
    found = json.loads(invoke("waits", "--json").stdout)
    assert [(one["session_id"], one["id"], one["kind"], one["state"]) for one in found] == [
        ("a", W, "confirmation", "open"), ("b", W, "question", "open"),
    ]  # fmt: skip
    first, second = found
    assert set(first) >= FIELDS
    assert (first["run_id"], first["subject"], first["tool"], first["arguments"]) == (run_id, C0, "put", {"n": 1})
    assert (first["digest"], first["deadline_ms"], first["value"], first["by"]) == (
        digest("put", {"n": 1}), None, None, None,
    )  # fmt: skip
    assert second["question"] == "Which one, 3?"
    assert [json.loads(line) for line in invoke("waits", "--nl").stdout.splitlines()] == found
    assert json.loads(invoke("waits", "b", "--json").stdout) == [second]
    table = invoke("waits")
    assert (table.exit_code, table.stderr) == (0, "")
    for words in (W, "put", "Which one, 3?"):
        assert words in table.stdout, table.stdout
    assert max(len(line) for line in table.stdout.splitlines()) <= 100
    with Plain(file.path) as plain:
        assert plain.state() == before


def test_waits_that_are_answered_are_shown_until_somebody_went_on(file, invoke):
    """Public API: waits not closed. After the run went on there are none, and that is no error."""
    file.park()
    assert invoke("approve", W, "--by", "ann").exit_code == 0
    [one] = json.loads(invoke("waits", "--json").stdout)
    assert (one["state"], one["by"]) == ("answered", "ann")
    file.go_on()
    assert json.loads(invoke("waits", "--json").stdout) == []
    assert (invoke("waits").exit_code, invoke("waits", "--nl").stdout) == (0, "")


def test_what_has_no_waits(file, invoke):
    """§13: 3 not found."""
    assert invoke("waits").exit_code == 3
    file.park()
    for form in ([], ["--json"], ["--nl"]):
        assert invoke("waits", "nobody", *form).exit_code == 3


LONG = "x " * 2000


@pytest.fixture
def shell_call(file) -> str:
    """A parked run whose call has arguments that no line holds; its id."""

    @tool(effect="once")
    def bash(script: str, env: dict[str, Any], note: str, seconds: int | str) -> str:
        raise AssertionError("nobody has approved it")

    given: dict[str, Any] = {
        "script": "set -e\nrm -rf \u202e/ \x1b[2J",
        "env": {"A": [1, 2]},
        "note": LONG,
        "seconds": "40",
    }
    options = SessionOptions(session_id="sh", permission_policy=asks("bash"))
    with Agent(file.path, model=ScriptedModel([reply(calls=[call("bash", given)])]), tools=[bash]) as agent:
        return agent.session("/w", options).send("Go.").run_id


WHOLE = ("call      bash", "| set -e", "| rm -rf \\u202e/ \\x1b[2J", '{"A": [1, 2]}', f'"{LONG}"', 'seconds  "40"')


@pytest.mark.parametrize("words", [["waits", W], ["waits", "RUN"], ["waits", W, "-s", "sh"], ["show", "RUN"]])
def test_what_is_to_be_approved_is_shown_whole(invoke, shell_call: str, words: list[str]):
    """Nobody can say yes to what he has not seen: every argument as it is, and nothing that a terminal would obey."""
    shown = invoke(*(shell_call if word == "RUN" else word for word in words))
    assert shown.exit_code == 0, shown.output
    for told in (*WHOLE, f"approve {W} -s sh", f"reject {W} -s sh"):
        assert told in shown.stdout, (told, shown.stdout)


@pytest.mark.parametrize("word", ["approve", "reject"])
def test_approve_and_reject_repeat_what_was_answered(invoke, shell_call: str, word: str):
    said = invoke(word, W)
    assert said.exit_code == 0 and said.stdout.startswith(f"{W}: {word.removesuffix('e')}ed\n")
    for told in WHOLE:
        assert told in said.stdout, (told, said.stdout)


@pytest.mark.parametrize("columns", ["40", "60", "80", "200"])
def test_the_table_says_where_it_is_cut(file, invoke, shell_call: str, monkeypatch, columns: str):
    """What fits is never cut; what does not says how to see all."""
    file.park("books-of-a-rather-long-name")
    monkeypatch.setenv("COLUMNS", columns)
    table = invoke("waits").stdout
    assert "put n=1" in table and "thence waits WAIT" in table and "…" in table
    monkeypatch.setenv("COLUMNS", "400")
    assert "…" not in invoke("waits", "books-of-a-rather-long-name").stdout


def test_what_is_answered_is_no_longer_waited_for(file, invoke):
    run_id = file.park()
    assert "it waits:" in invoke("show", run_id).stdout
    assert invoke("approve", W, "--by", "ann").exit_code == 0
    shown = invoke("show", run_id).stdout
    assert "it waits" not in shown and "it is answered:" in shown and '{"approved": true}' in shown and "ann" in shown


def test_the_way_on_is_one_that_works(file, invoke):
    """The command line has none of a program's tools: it does not send anybody to `thence resume`."""
    run_id = file.park("s", "look:1", "look:2", policy=asks("look"))
    first = invoke("approve", W)
    assert "still waits for 1 answer" in first.stdout and f"thence waits {run_id}" in first.stdout
    second = invoke("approve", f"{C1}-w1")
    for said in (second.stdout, invoke("show", run_id).stdout):
        assert f"agent.recover(), or session.resume_run('{run_id}')" in said, said
        assert "thence resume" not in said


# ------------------------------------------------------------------ approve, reject, answer


@pytest.mark.parametrize("by_run", [False, True], ids=["by wait", "by run"])
def test_approve(file, invoke, by_run: bool):
    """§13: a wait or a run; the answer is there, nothing runs by it."""
    run_id = file.park()
    words = ["approve", run_id if by_run else W, "--by", "ann"]
    assert invoke(*words).exit_code == 0
    assert file.effects.ran == []
    [(session_id, wait_id, _, by)] = file.answers()
    assert (session_id, wait_id, by) == ("s", W, "ann")
    result = file.go_on()
    assert (result.status, result.run_id, file.effects.keys()) == ("completed", run_id, [C0])


@pytest.mark.parametrize("by_run", [False, True], ids=["by wait", "by run"])
def test_reject(file, invoke, by_run: bool):
    """§13, §10: the reason reaches the model."""
    run_id = file.park()
    assert invoke("reject", run_id if by_run else W, "--reason", "too risky").exit_code == 0
    assert (file.go_on().status, file.effects.ran) == ("completed", [])
    with Plain(file.path) as plain:
        said = plain.one("SELECT payload FROM facts WHERE kind = 'tool.result'")
    assert "Error: rejected by " in said and ": too risky" in said


@pytest.mark.parametrize("second", [["approve", W], ["reject", W], ["approve", "RUN"], ["answer", W, "true"]])
def test_a_second_answer_comes_too_late(file, invoke, second: list[str]):
    """§13: 4; the first answer stays."""
    run_id = file.park()
    assert invoke("reject", W, "--reason", "no").exit_code == 0
    before = file.answers()
    words = [run_id if word == "RUN" else word for word in second]
    done_ = invoke(*words, *(["--json-value"] if second[0] == "answer" else []))
    assert (done_.exit_code, done_.stdout) == (4, ""), done_.output
    assert "answered" in done_.stderr
    assert file.answers() == before


@pytest.mark.parametrize("words", [["approve", "nobody"], ["reject", "nobody"], ["answer", "nobody", "x"]])
def test_what_is_not_there(file, invoke, words: list[str]):
    """§13: 3 not found, without a file as well."""
    assert invoke(*words).exit_code == 3
    assert not file.path.exists()
    file.park()
    found = invoke(*words)
    assert (found.exit_code, found.stdout) == (3, "") and "nobody" in found.stderr
    assert invoke("approve", W, "-s", "nobody").exit_code == 3
    assert file.answers() == []


def test_a_wait_of_one_of_two_sessions(file, invoke):
    """§13 `-s`: the same wait id in two sessions is not guessed at; with a session, or by run, it is clear."""
    file.park("a")
    file.park("b")
    unclear = invoke("approve", W)
    assert unclear.exit_code not in (0, 4) and file.answers() == [], unclear.output
    assert invoke("approve", W, "-s", "b").exit_code == 0
    assert [(row[0], row[1]) for row in file.answers()] == [("b", W)]
    assert invoke("reject", file.runs["a"]).exit_code == 0
    assert [(row[0], row[1]) for row in file.answers()] == [("a", W), ("b", W)]


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["The red one."], "The red one."), (["5"], "5"), (['{"a":1}'], '{"a":1}'),
        (["5", "--json-value"], 5), (['{"a":1}', "--json-value"], {"a": 1}), (["null", "--json-value"], None),
    ],
)  # fmt: skip
def test_answer_a_question(file, invoke, words: list[str], value: Any):
    """§13: a text as it is; with `--json-value` the JSON that it says."""
    file.park("s", "ask:3")
    assert invoke("answer", W, *words).exit_code == 0
    [(_, _, stored, _)] = file.answers()
    assert json.loads(stored) == value


@pytest.mark.parametrize(
    "words", [["answer", W, "{oops", "--json-value"], ["answer", W, "NaN", "--json-value"], ["approve", W]]
)
def test_what_is_no_answer_to_a_question(file, invoke, words: list[str]):
    """§13: 2 for what cannot be read; a question is not approved. The wait stays open."""
    file.park("s", "ask:3")
    refused = invoke(*words)
    assert refused.exit_code in ((2,) if words[0] == "answer" else (1, 2, 3)), refused.output
    assert file.answers() == [] and refused.stdout == ""


def test_a_confirmation_takes_no_text(file, invoke):
    """§10: the shape of the value is judged before anything is written."""
    file.park()
    assert invoke("answer", W, "yes").exit_code in (1, 2)
    assert file.answers() == []
