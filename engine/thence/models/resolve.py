"""From what a host writes for ``model=`` to a model object (§12)."""

from __future__ import annotations

from ..canonical import check_text
from ..chat import AsyncModel, Model, SyncModel
from ..errors import ModelError

_FORMS = "a model object, 'openai:NAME', 'anthropic:NAME' or 'local'"


def resolve_model(spec: Model | str) -> Model:
    """The model that ``spec`` stands for.

    Args:
        spec: an object with a ``name`` and a ``stream`` or ``astream`` method, as it is; ``"openai:NAME"`` (key and
            server from the environment); or ``"local"``.

    Raises:
        TypeError: neither a text nor a model, or a model whose name is none.
        ValueError: a text of another form, or a name with a lone surrogate.
        ModelError: ``configuration``: the provider's extra or key is missing, or the provider is not available yet.
    """
    if not isinstance(spec, str):
        if isinstance(spec, SyncModel | AsyncModel):  # pyright: ignore[reportUnnecessaryIsInstance]
            _check_name(spec.name)
            return spec
        raise TypeError(f"model must be {_FORMS}, not a {type(spec).__name__}")
    provider, _, name = spec.partition(":")
    if provider == "openai" and name.strip():
        from .openai import OpenAIModel

        return OpenAIModel(name)
    if spec == "local":
        from .local import LocalModel

        return LocalModel()
    if provider == "anthropic" and name.strip():
        raise ModelError(
            "configuration",
            "'anthropic:' models are not available yet; OpenAIModel(name, base_url=...) reaches any compatible address",
            retryable=False,
        )
    raise ValueError(f"model must be {_FORMS}, not {spec!r}")


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(f"a model's 'name' must be a string, not {type(name).__name__}")
    check_text(name, "name")
