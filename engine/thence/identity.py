"""Identity: the four opaque tags of a session and the binding of durable memory (§3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

from .canonical import check_text
from .errors import SessionConfiguration

TAG_NAMES = ("tenant_id", "principal", "agent_template_id", "correlation_id")
MAX_ID_BYTES = 1024 * 1024
MAX_EVENT_TYPE_BYTES = 200
MAX_REQUEST_ID_BYTES = 1000
"""Both as the view `event_in` has them: no cap of what is kept counts these texts."""


@dataclass(frozen=True, slots=True)
class Tags:
    """The four tags: opaque optional strings, never interpreted, compared by equality only."""

    tenant_id: str | None = None
    principal: str | None = None
    agent_template_id: str | None = None
    correlation_id: str | None = None

    def given(self) -> dict[str, str]:
        """The tags that are set, by name."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}

    def over(self, stored: Tags) -> Tags:
        """Tags after a resume: per field, a value given now wins over the stored one."""
        return Tags(**{**stored.given(), **self.given()})

    def beside(self, stored: Tags) -> Tags:
        """Those of the tags that are not the stored ones."""
        return Tags(**{name: value for name, value in self.given().items() if value != getattr(stored, name)})


@dataclass(frozen=True, slots=True)
class Scope:
    """Which sessions an agent may see: those whose tags equal ``tags``, each by its name; None is untagged.

    A tag that is not named may be anything: the empty scope sees every session. All that an agent does not see, it does
    not see by :meth:`conflict`.
    """

    tags: Mapping[str, str | None] = field(default_factory=dict[str, "str | None"])

    def conflict(self, given: Mapping[str, str | None]) -> str | None:
        """The first tag that ``given`` says another value of; None: there is none."""
        return next((name for name, value in self.tags.items() if name in given and given[name] != value), None)

    def sees(self, tags: Tags) -> bool:
        """Whether a session with these tags is there for the agent."""
        return self.conflict(asdict(tags)) is None

    def narrowed(self, given: Mapping[str, str | None]) -> Scope:
        """This scope and ``given`` together. Raises SessionConfiguration where they contradict each other."""
        self._refuse(given)
        return Scope({**self.tags, **given})

    def over(self, given: Tags) -> Tags:
        """The tags of a session that the agent opens with ``given``. Raises SessionConfiguration, naming the field."""
        self._refuse(given.given())
        return Tags(**{**asdict(given), **self.tags})

    def _refuse(self, given: Mapping[str, str | None]) -> None:
        name = self.conflict(given)
        if name is not None:
            raise SessionConfiguration(name, "must be what the agent is scoped to; a scope can only be narrowed")


@dataclass(frozen=True, slots=True)
class DurableMemoryBinding:
    """Namespace of a session's durable memory, stored with the session (§3).

    Every resume must give an equal one. Omitted tags of the session take its values; explicit ones must equal them.

    Attributes:
        tenant_id, principal: what the session's tags of these names are, or become.
        scope: names the memory within them; a free text.
    """

    tenant_id: str
    principal: str
    scope: str


def check_id(value: object, field: str, limit: int = MAX_ID_BYTES) -> str:
    """Return ``value`` if it may be an id.

    Raises:
        TypeError: it is not a string.
        SessionConfiguration: blank, a control character (NUL, newline, ...), a lone surrogate or over ``limit`` bytes
            (1 MiB).
    """
    if not isinstance(value, str):
        raise TypeError(f"'{field}' must be a string, not {type(value).__name__}")
    if not value.strip():
        raise SessionConfiguration(field, "must not be empty or whitespace")
    if any(ord(c) < 32 or 127 <= ord(c) < 160 for c in value):
        raise SessionConfiguration(field, "must not contain control characters")
    try:
        check_text(value, field)
    except ValueError as error:
        raise SessionConfiguration(field, str(error)) from None
    if len(value.encode()) > limit:
        raise SessionConfiguration(field, f"must be at most {limit} bytes")
    return value


def check_tags(given: Mapping[str, object]) -> dict[str, str | None]:
    """Return tags by name; None is: untagged.

    Raises:
        TypeError: an unknown name, or a value that is neither a string nor None.
        SessionConfiguration: a value that cannot be a tag.
    """
    unknown = sorted(given.keys() - set(TAG_NAMES))
    if unknown:
        raise TypeError(f"unknown tag '{unknown[0]}'; tags: {', '.join(TAG_NAMES)}")
    return {name: None if value is None else check_id(value, name) for name, value in given.items()}


def bind_memory(tags: Tags, binding: DurableMemoryBinding | None) -> Tags:
    """Tags of a session under ``binding``.

    Raises:
        SessionConfiguration: naming the tag that contradicts the binding.
    """
    if binding is None:
        return tags
    for name, bound in (("tenant_id", binding.tenant_id), ("principal", binding.principal)):
        given = getattr(tags, name)
        if given is not None and given != bound:
            raise SessionConfiguration(name, "must equal the durable-memory namespace exactly")
    return Tags(binding.tenant_id, binding.principal, tags.agent_template_id, tags.correlation_id)


def check_memory_on_resume(stored: DurableMemoryBinding | None, given: DurableMemoryBinding | None) -> None:
    """Refuse a resume whose binding is not the stored one; three distinct messages, field ``durable_memory``."""
    if stored == given:
        return
    if given is None:
        message = "the session is bound to a durable-memory namespace: give the same binding to resume it"
    elif stored is None:
        message = "an existing unbound session cannot acquire a durable-memory binding; create a new bound session"
    else:
        message = "the given binding differs from the namespace that the session is bound to"
    raise SessionConfiguration("durable_memory", message)
