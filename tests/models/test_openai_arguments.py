"""What an OpenAIModel refuses where it is made: by name, at once, and never with the key in the text (§1, §12)."""

from __future__ import annotations

import sqlite3
import traceback
from pathlib import Path
from typing import Any

import pytest

from thence import Agent, ThenceError
from thence.chat import Request, UserMessage
from thence.errors import ModelError

pytest.importorskip("openai")

from thence.models.openai import OpenAIModel

HELLO = Request("", "", (UserMessage("hello"),))
SECRET = "sk-VERYSECRET-0123456789"

NO_ADDRESS = (
    "", "not a url", "api.example.org/v1", "localhost:8000/v1", "ftp://h/v1", "http://", "http://h:x/v1", "http://[/v1",
)  # fmt: skip
REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"name": 5}, TypeError, "'name'"),
    ({"name": None}, TypeError, "'name'"),
    ({"name": " "}, ValueError, "'name'"),
    ({"name": "a\ud800"}, ValueError, "'name'"),
    ({"api_key": 5}, TypeError, "'api_key'"),
    ({"api_key": SECRET.encode()}, TypeError, "'api_key'"),
    ({"base_url": 5}, TypeError, "'base_url'"),
    *(({"base_url": url}, ValueError, "'base_url'") for url in NO_ADDRESS),
    ({"base_url": "http://h/v1\n"}, ValueError, "'base_url'"),
    *(({field: "5"}, TypeError, f"'{field}'") for field in ("read_timeout_s", "connect_timeout_s")),
    *(({"read_timeout_s": bad}, TypeError, "'read_timeout_s'") for bad in (None, True, [1])),
    *(({"read_timeout_s": bad}, ValueError, "'read_timeout_s'") for bad in (0, -1, float("nan"), float("inf"))),
    ({"organisation": "x"}, TypeError, "'organisation'.*organization"),
    ({"max_retries": 5}, TypeError, "'max_retries'.*circuit_breaker_threshold"),
    ({"timeout": 5}, TypeError, "'timeout'.*read_timeout_s"),
]


@pytest.mark.parametrize(("given", "kind", "words"), REFUSED, ids=[str(given)[:60] for given, _, _ in REFUSED])
def test_an_argument_is_refused_by_name(given: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words) as refused:
        OpenAIModel(**{"name": "m", "api_key": SECRET, **given})
    assert "VERYSECRET" not in str(refused.value)


def test_an_address_of_the_environment_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "localhost:8000")
    with pytest.raises(ValueError, match="OPENAI_BASE_URL"):
        OpenAIModel("m", api_key=SECRET)
    OpenAIModel("m", "http://localhost:8000", SECRET)


UNSENDABLE = [f"{SECRET}\nx", f"{SECRET}\rx", f"{SECRET}\tx", f"{SECRET} x", f"{SECRET}ключ"]


@pytest.mark.parametrize("key", UNSENDABLE, ids=ascii)
@pytest.mark.parametrize("where", ["api_key", "OPENAI_API_KEY"])
def test_a_key_that_no_header_can_carry(monkeypatch: pytest.MonkeyPatch, where: str, key: str) -> None:
    given = {"api_key": key}
    if where != "api_key":
        monkeypatch.setenv(where, key)
        given = {}
    with pytest.raises(ModelError, match=where) as refused:
        OpenAIModel("m", **given)  # type: ignore[arg-type]
    assert (refused.value.kind, refused.value.retryable) == ("configuration", False)
    told = "".join(traceback.format_exception(refused.value)) + repr(vars(refused.value))
    assert "VERYSECRET" not in told


@pytest.mark.parametrize("around", ["\n", "\r\n", " ", "\t"])
def test_white_space_around_a_key_is_dropped(ask: Any, wire: Any, chunk: Any, around: str) -> None:
    """As a ``.env`` file with foreign line ends leaves it."""
    wire.streams(chunk(text="ok", finish="stop"))
    ask(OpenAIModel("m", wire.url, around + SECRET + around), HELLO)
    assert wire.headers[0]["authorization"] == f"Bearer {SECRET}"


@pytest.mark.parametrize("bad", [f"{SECRET}\n", f"{SECRET}\r", f"{SECRET}ключ"], ids=ascii)
def test_another_header_that_cannot_be_sent_is_not_tried_again_and_not_shown(ask: Any, wire: Any, bad: str) -> None:
    """Some providers want their key in a header of its own."""
    with pytest.raises(ModelError) as refused:
        ask(OpenAIModel("m", wire.url, "unused-key", default_headers={"api-key": bad}), HELLO)
    assert (refused.value.kind, refused.value.retryable) == ("configuration", False)
    assert "VERYSECRET" not in str(refused.value)


def test_an_option_of_a_wrong_type_is_a_configuration_error(ask: Any, wire: Any) -> None:
    with pytest.raises(ModelError) as refused:
        ask(OpenAIModel("m", wire.url, "unused-key", http_client=5), HELLO)
    assert (refused.value.kind, refused.value.retryable) == ("configuration", False)


@pytest.mark.parametrize("quote", [str, repr, ascii])
def test_a_key_is_hidden_in_every_form_of_it(ask: Any, wire: Any, quote: Any) -> None:
    key = "sk-'\"\\-VERYSECRET"
    wire.fails(400, {"message": f"bad key {quote(key)}"})
    with pytest.raises(ModelError) as refused:
        ask(OpenAIModel("m", wire.url, key), HELLO)
    assert "VERYSECRET" not in str(refused.value)


def test_a_key_gets_neither_into_an_error_of_a_run_nor_into_the_file(wire: Any, tmp_path: Path) -> None:
    for _ in range(3):
        wire.fails(400, {"message": f"no: b'Bearer {SECRET}'"})
    for model in (
        OpenAIModel("m", wire.url, f"{SECRET}\n"),
        OpenAIModel("m", wire.url, "unused-key", default_headers={"x": f"{SECRET}\r"}),
    ):
        with Agent(tmp_path / "a.db", model=model) as agent, pytest.raises(ThenceError) as failed:
            agent.session(".").send("go")
        assert "VERYSECRET" not in str(failed.value) + repr(failed.value)
    with sqlite3.connect(tmp_path / "a.db") as db:
        assert db.execute("select count(*) from runs").fetchone() == (2,)
        assert not any("VERYSECRET" in line for line in db.iterdump())
