"""The reading commands: what they show, in each form, and that they leave no trace."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess

import pytest
from click.testing import CliRunner, Result

from thence import Agent, ModelError, PermissionPolicy, Question, RunFailed, SessionOptions
from thence.cli.app import cli
from thence.codec import _DECODERS
from thence.models.scripted import ScriptedReply
from thence.testing import ScriptedModel, call, reply

COMMANDS = ("ls", "show", "runs", "facts", "events", "trace", "tail", "usage", "stats", "waits", "doctor")
ACTING = ("run", "resume", "steer", "interrupt", "cancel", "demo", "approve", "reject", "answer", "waive")


def words_for(command: str, filled) -> list[str]:
    target = {"events": filled.run_id, "tail": filled.run_id}.get(command, filled.session_id)
    return [command] if command in ("ls", "usage", "stats", "waits", "doctor") else [command, target]


@pytest.fixture
def parked(filled):
    """The filled file, with a run that waits for a person."""

    def pay(cents: int) -> str:
        raise AssertionError("nobody has approved it")

    model = ScriptedModel([reply(calls=[call("pay", {"cents": 500})])])
    with Agent(filled.path, model=model, tools=[pay]) as agent:
        options = SessionOptions(session_id="w-0", permission_policy=PermissionPolicy(ask=("pay",)))
        assert agent.session(".", options).send("Pay it.").status == "parked"
    return filled


@pytest.fixture
def invoke(filled, monkeypatch):
    """``invoke(*words)``: the command in this process, on the filled file."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("THENCE_DB", str(filled.path))

    def run(*words: str) -> Result:
        result = CliRunner().invoke(cli, list(words), prog_name="thence")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run


@pytest.mark.parametrize("command", COMMANDS)
def test_each_form(invoke, parked, command):
    words = words_for(command, parked)
    for where in ([*words, "--json"], ["--json", *words]):
        result = invoke(*where)
        assert (result.exit_code, result.stderr) == (0, "")
        assert json.loads(result.stdout)
    lines = invoke(*words, "--nl").stdout.splitlines()
    assert lines and all(isinstance(json.loads(line), dict) for line in lines)
    plain = invoke(*words)
    assert (plain.exit_code, plain.stderr) == (0, "")
    lines = plain.stdout.splitlines()
    # a path is as long as it is
    assert lines and max(len(line) for line in lines if not line.startswith("path ")) <= 80


def test_what_is_shown(invoke, filled):
    found = json.loads(invoke("ls", "--json").stdout)
    assert [(one["session_id"], one["runs_ever"], one["last_run_state"]) for one in found] == [("t-0", 2, "completed")]
    runs = json.loads(invoke("runs", "t-0", "--json").stdout)
    assert [(run["id"], run["state"], run["result_text"]) for run in runs] == [
        ("run-t-1", "completed", "It says: buy milk."),
        ("run-t-2", "completed", "Not usage-counted."),
    ]
    facts = [json.loads(line) for line in invoke("facts", "t-0", "--nl").stdout.splitlines()]
    assert [fact["seq"] for fact in facts] == list(range(1, len(facts) + 1))
    assert facts[1]["payload"]["parts"][0]["text"] == "Read the notes."
    after = json.loads(invoke("facts", "t-0", "--after", "3", "--json").stdout)
    assert after == facts[3:]
    events = json.loads(invoke("events", "run-t-1", "--json").stdout)
    assert [event["metadata"]["sequence"] for event in events["events"]] == list(range(len(events["events"])))
    assert not events["retention_gap"]
    later = invoke("events", "run-t-1", "--after", "2", "--nl").stdout.splitlines()
    assert [json.loads(line) for line in later] == events["events"][3:]
    traces = json.loads(invoke("trace", "t-0", "--json").stdout)
    assert [(one["name"], one["success"]) for one in traces] == [("read", True), ("read", False)]
    show = json.loads(invoke("show", "run-t-1", "--json").stdout)
    assert show == runs[0]
    assert json.loads(invoke("show", "t-0", "--json").stdout)["runs"] == runs


def test_long_logs_are_read_page_by_page(invoke, filled, monkeypatch):
    whole = [invoke("facts", "t-0", "--json").stdout, invoke("events", "run-t-1", "--json").stdout]
    for page in (1, 2, 3):
        monkeypatch.setattr("thence.cli.looking.PAGE", page)
        assert [invoke("facts", "t-0", "--json").stdout, invoke("events", "run-t-1", "--json").stdout] == whole


def test_the_conversation_is_shown(invoke):
    text = invoke("show", "t-0").stdout
    for words in (
        "> Read the notes.",
        "read path=notes.txt",
        "2 lines: Buy milk. | Call Ann.",
        "failed: ",
        "It says: buy milk.",
        "acme",
    ):
        assert words in text


def test_a_run_is_shown(invoke):
    text = invoke("show", "run-t-1").stdout
    for words in ("completed", "session  t-0", "2 calls", "20 prompt, 10 completion, 30 total", "It says: buy milk."):
        assert words in text


def test_a_finished_run_is_tailed_as_it_was(invoke):
    lines = invoke("tail", "run-t-1").stdout.splitlines()
    assert lines == [
        "prompt: Read the notes.",
        "  > read path=notes.txt",
        "  < read 2 lines: Buy milk. | Call Ann.",
        "  > read path=no.txt",
        "  < read failed: no.txt: No such file or directory",
        "It says: buy milk.",
        "run-t-1: completed",
    ]
    recorded = json.loads(invoke("events", "run-t-1", "--json").stdout)["events"]
    assert json.loads(invoke("tail", "run-t-1", "--json").stdout) == recorded
    assert [
        json.loads(line) for line in invoke("tail", "run-t-1", "--nl", "--after", "4").stdout.splitlines()
    ] == recorded[5:]


def test_usage(invoke):
    for by, key, name in (
        ("session", "session_id", "t-0"),
        ("tenant", "tenant_id", "acme"),
        ("model", "model", "scripted"),
    ):
        (one,) = json.loads(invoke("usage", "--by", by, "--json").stdout)
        assert (one[key], one["requests"], one["total_tokens"], one["requests_without_usage"]) == (name, 3, 30, 1)
    assert "Not in the sums: 1 request " in invoke("usage").stdout


def test_usage_of_one_session(invoke, parked):
    assert [one["session_id"] for one in json.loads(invoke("usage", "--json").stdout)] == ["t-0", "w-0"]
    assert [one["session_id"] for one in json.loads(invoke("usage", "w-0", "--json").stdout)] == ["w-0"]
    assert invoke("usage", "nobody").exit_code == 3


@pytest.fixture
def silent(filled):
    """The filled file, with a session all of whose requests failed, and one of which one failed; both by the API."""
    failure = [ModelError("http_500", "broken", retryable=False)]
    with Agent(filled.path, model=ScriptedModel(failure, name="other")) as agent, pytest.raises(RunFailed):
        agent.session(".", SessionOptions(session_id="failed")).send("x", run_id="run-failed")
    usage = {"prompt_tokens": 7, "completion_tokens": 1}
    with Agent(filled.path, model=ScriptedModel([reply("x", usage=usage), *failure])) as agent:
        mixed = agent.session(".", SessionOptions(session_id="mixed"))
        mixed.send("x")
        with pytest.raises(RunFailed):
            mixed.send("x")
        return {one.session_id: agent.usage(one.session_id) for one in agent.list_sessions()}


def test_usage_says_what_the_api_says(invoke, silent):
    """A request that failed after it was sent may have cost something, also where it is all that a session did."""
    found = {one["session_id"]: one for one in json.loads(invoke("usage", "--json").stdout)}
    assert {
        name: (one["requests"], one["requests_without_usage"], one["total_tokens"]) for name, one in found.items()
    } == {name: (api.known + api.unknown, api.unknown, api.usage.total_tokens) for name, api in silent.items()}
    assert found["failed"]["requests_without_usage"] == 1
    by_model = {
        one["model"]: one["requests_without_usage"]
        for one in json.loads(invoke("usage", "--by", "model", "--json").stdout)
    }
    assert by_model == {"scripted": 2, "other": 1}
    text = invoke("usage").stdout
    assert "Not in the sums: 3 requests " in text
    assert re.search(r"^failed +1 +1 +\? +\? +\? +\?$", text, re.MULTILINE), text
    assert "Not in the sums: 1 request " in invoke("usage", "failed").stdout


def test_what_nobody_knows_is_not_shown_as_nothing(invoke, silent):
    assert re.search(r"^tokens +unknown for 1 request$", invoke("show", "run-failed").stdout, re.MULTILINE)


def test_usage_of_a_log_that_a_later_version_wrote(invoke, silent, monkeypatch):
    """What can be counted is, and it says what cannot."""
    monkeypatch.delitem(_DECODERS, "turn.ended")
    shown = invoke("usage", "--json")
    assert "session t-0: " in shown.stderr and "requests that failed are not counted" in shown.stderr
    assert [one["session_id"] for one in json.loads(shown.stdout)] == ["t-0", "failed", "mixed"]


LONG = "A long story.\n" * 6000


def test_a_long_text_can_be_read(invoke, filled):
    """What is kept beside the log for its length is shown by its number, and where it is cut it says so."""

    def tell() -> str:
        return "\n".join(f"line {number}" for number in range(9000))

    model = ScriptedModel([reply("Look.", calls=[call("tell")]), reply("Long.")])
    with Agent(filled.path, model=model, tools=[tell]) as agent:
        agent.session(".", SessionOptions(session_id="long")).send(LONG)
    table = invoke("facts", "long").stdout
    assert "long text, blob" in table and "thence facts long --seq SEQ" in table
    assert "--seq" not in invoke("facts", "t-0").stdout
    shown = invoke("show", "long").stdout
    assert "thence facts long --seq 2)" in shown and "thence facts long --seq 4)" in shown
    assert LONG in invoke("facts", "long", "--seq", "2").stdout
    (fact,) = json.loads(invoke("facts", "long", "--seq", "2", "--json").stdout)
    assert (fact["seq"], fact["payload"]["parts"][0]["text"]) == (2, LONG)
    # the whole output, of which the model was shown a part
    assert tell() in invoke("facts", "long", "--seq", "4").stdout
    (configured,) = json.loads(invoke("facts", "long", "--seq", "1", "--json").stdout)
    assert [tool["name"] for tool in configured["payload"]["tools"]] == ["tell"]
    assert invoke("facts", "long", "--seq", "99").exit_code == 3


def test_tables_for_people_hold_no_raw_json(invoke, parked):
    class Soft:
        def check_before_llm(self, session_id: str, estimated_tokens: int) -> object:
            return {"decision": "soft", "resource": "tokens", "consumed": 3, "limit": 4, "message": "nearly"}

    def steer(request: object) -> ScriptedReply:
        assert session.steer("Shorter.")
        return reply("x")

    with Agent(parked.path, model=ScriptedModel([steer, reply("y")])) as agent:
        session = agent.session(".", SessionOptions(session_id="soft", budget_guard=Soft()))
        run_id = session.send("x").run_id
    assert invoke("approve", "t1-r1-c0-w1", "--by", "ann").exit_code == 0

    def pay(cents: int) -> str:
        return "paid"

    with Agent(parked.path, model=ScriptedModel([reply("Done.")]), tools=[pay]) as agent:
        options = SessionOptions(permission_policy=PermissionPolicy(ask=("pay",)))
        owed = agent.resume_session("w-0", options)
        owed_id = owed.resume_run(owed.runs()[-1].id).run_id
    events, facts = invoke("events", run_id).stdout, invoke("facts", "w-0").stdout
    for table in (events, facts, invoke("events", owed_id).stdout):
        assert "{" not in table, table
    assert "tokens warns 3.0 of 4.0: nearly" in events and "steer: Shorter." in events
    assert re.search(r"wait\.opened .* confirmation of t1-r1-c0$", facts, re.MULTILINE)
    assert re.search(r"wait\.answered .* t1-r1-c0-w1: yes by ann$", facts, re.MULTILINE), facts


def test_a_parked_run_is_followed_until_it_is_parked(invoke, parked):
    """Nobody works on it: whoever follows it is told what it waits for, and how to follow it further."""
    (run,) = json.loads(invoke("runs", "w-0", "--json").stdout)
    for form in ([], ["--json"], ["--nl"]):
        assert invoke("tail", run["id"], *form).exit_code == 8
    lines = invoke("tail", run["id"]).stdout.splitlines()
    assert lines[-3] == f"{run['id']}: parked" and lines[-2].endswith(f"thence waits {run['id']}")
    after = str(run["event_count"] - 1)
    assert lines[-1].endswith(f"thence tail {run['id']} --after {after}")
    assert json.loads(invoke("tail", run["id"], "--after", after, "--json").stdout) == []


def test_ls_by_tags(invoke):
    assert json.loads(invoke("ls", "--tenant", "acme", "--json").stdout)
    assert json.loads(invoke("ls", "--tenant", "other", "--json").stdout) == []
    result = invoke("ls", "--principal", "nobody")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "no sessions" in result.stderr


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["show", "nobody"], 3, "neither a session nor a run: nobody"),
        (["runs", "nobody"], 3, "Session not found: nobody"),
        (["facts", "nobody"], 3, "Session not found: nobody"),
        (["trace", "nobody"], 3, "Session not found: nobody"),
        (["events", "nobody"], 3, "Run not found: nobody"),
        (["tail", "t-0"], 3, "that is a session"),
        (["ls", "--db", "nothing.db"], 3, "--db"),
        (["ls", "--json", "--nl"], 2, "exclude each other"),
        (["nonsense", "x"], 2, "No such command"),
        (["facts"], 2, "Missing argument"),
        (["facts", "t-0", "--after", "-1"], 2, "--after"),
    ],
)
def test_what_is_wrong(invoke, tmp_path, monkeypatch, words, code, message):
    monkeypatch.chdir(tmp_path)
    for more in ([], ["--json"]):
        result = invoke(*words, *more)
        assert (result.exit_code, result.stdout) == (code, "")
        assert message in result.stderr
    error = json.loads(invoke(*words, "--json").stderr)["error"]
    assert set(error) == {"code", "message"} and message in error["message"]
    assert not (tmp_path / "nothing.db").exists()


@pytest.mark.parametrize("command", [*COMMANDS, *ACTING])
def test_each_command_has_help(invoke, command):
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert "--db" in result.stdout and len(result.stdout.splitlines()) > 5
    short = [line for line in invoke("--help").stdout.splitlines() if line.split()[:1] == [command]]
    assert short and not short[0].endswith("...")


def test_no_command_is_untested(invoke):
    assert set(cli.commands) == {*COMMANDS, *ACTING}


@pytest.mark.parametrize("content", [b"", b"text" * 300, None])
def test_other_files_are_refused_untouched(invoke, tmp_path, content):
    path = tmp_path / "other.db"
    if content is None:
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE mine(x)")
        connection.close()
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    result = invoke("ls", "--db", str(path))
    assert (result.exit_code, result.stdout) == (3 if content == b"" else 1, "")
    assert str(path) in result.stderr
    assert path.read_bytes() == before
    assert not [name for name in os.listdir(tmp_path) if name.startswith("other.db-")]


def test_nothing_is_left_behind(shell, parked, listing, tmp_path):
    before = listing(tmp_path), parked.path.read_bytes()
    for command in COMMANDS:
        shell.ok(*words_for(command, parked))
    assert (listing(tmp_path), parked.path.read_bytes()) == before


ONE_AFTER_THE_OTHER = """
import json, os, sys
from thence.cli import main
codes = []
for words in json.loads(sys.argv[1]):
    pid = os.fork()
    if pid == 0:
        sys.argv = ["thence", *words]
        sys.exit(main())
    codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
print(json.dumps(codes))
"""
"""Each command in a process of its own, all from one that has given up its rights."""

# For root a mode says nothing, unless it gives up the right to overrule it.
POWERLESS = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search") if os.geteuid() == 0 else ()


@pytest.mark.skipif(bool(POWERLESS) and shutil.which("setpriv") is None, reason="nothing is read-only for root")
@pytest.mark.parametrize("live", [False, True])
def test_in_a_folder_that_cannot_be_written(shell, parked, listing, tmp_path, live):
    folder = tmp_path / "frozen"
    folder.mkdir()
    path = folder / "thence.db"
    shutil.copy(parked.path, path)
    # somebody else's connection: its -wal holds what is read then
    other = sqlite3.connect(path, isolation_level=None)
    if live:
        other.execute("UPDATE session SET principal = 'late', fence = fence + 1")
    other.execute("SELECT 1 FROM session").fetchall() if live else other.close()
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)
    try:
        before = listing(folder)
        assert subprocess.run([*POWERLESS, "touch", str(folder / "x")], check=False, capture_output=True).returncode
        every = [["--db", str(path), *words_for(command, parked)] for command in COMMANDS]
        done = shell.run(json.dumps(every), program=("-c", ONE_AFTER_THE_OTHER), under=POWERLESS)
        assert (done.returncode, done.stderr) == (0, ""), done
        assert json.loads(done.stdout.splitlines()[-1]) == [0] * len(COMMANDS)
        found = json.loads(shell.run("--db", str(path), "ls", "--json", under=POWERLESS).stdout)
        assert found[0]["principal"] == ("late" if live else None)
        assert listing(folder) == before
    finally:
        folder.chmod(0o755)
        other.close()


def test_hostile_text_is_only_shown(invoke, filled, monkeypatch):
    evil = "evil\x1b[2J\x9b1m\u202e"
    # the library refuses such ids; another program may write them
    monkeypatch.setattr("thence.options.check_id", lambda value, field: value)
    model = ScriptedModel([reply(calls=[call(evil, {evil: evil})]), reply(evil)], name=evil)
    with Agent(filled.path, model=model) as agent:
        run_id = agent.session(".", SessionOptions(session_id=evil, tenant_id=evil)).send(evil).run_id

    def ask(text: str) -> str:
        raise Question(text)

    with Agent(filled.path, model=ScriptedModel([reply(calls=[call("ask", {"text": evil})])]), tools=[ask]) as agent:
        assert agent.session(".", SessionOptions(session_id=evil + "q")).send(evil).status == "parked"
    for words in (
        ["ls"],
        ["show", evil],
        ["show", run_id],
        ["events", run_id],
        ["tail", run_id],
        ["runs", evil],
        ["facts", evil],
        ["trace", evil],
        ["usage"],
        ["waits"],
    ):
        for form in ([], ["--json"], ["--nl"]):
            result = invoke(*words, *form)
            assert result.exit_code == 0, result.output
            assert not set(result.output) & {"\x1b", "\x9b", "\u202e"}
            if words in (["ls"], ["waits"]):
                assert "evil\\x1b" in result.stdout or "evil\\u001b" in result.stdout
    for words in (["runs", evil + "2"], ["nothing\x1b"], ["events", evil]):
        assert "\x1b" not in invoke(*words).output
