"""Writes and reads as values. A :class:`Plan` is one transaction; a :class:`Query` is one snapshot (§8).

Nothing here touches a file: `writes` and `reads` build these values, a store performs them, and any driver that
passes the contract suite may be that store. Plans are not frozen, for the price of it (see `effects`); nobody changes
one. All SQL is named: ``statement`` is a name in ``schema/statements``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from .errors import StoreError

T = TypeVar("T")

SqlValue: TypeAlias = "None | int | float | str | bytes"
Params: TypeAlias = Mapping[str, SqlValue]
Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = list[Row]


@dataclass(slots=True)
class Op:
    """One named statement, performed for each of ``rows`` in order.

    ``expect`` is how many rows the statement must change in total; another number refuses the whole plan with
    ``refusal`` as the code. ``returning`` keeps the rows that the statement returns.
    """

    statement: str
    rows: tuple[Params, ...] = ({},)
    expect: int | None = None
    refusal: str = "REFUSED"
    returning: bool = False


@dataclass(slots=True)
class Plan:
    """One transaction: all of ``ops`` or nothing.

    ``durable`` says that something is promised once it is committed: it is synced before the acknowledgement when
    the file's durability is ``power``. Plans without it may be lost by a power cut, never torn.
    """

    ops: tuple[Op, ...]
    durable: bool = False

    def __add__(self, other: Plan) -> Plan:
        return Plan(self.ops + other.ops, self.durable or other.durable)


Returned: TypeAlias = tuple[Rows, ...]
"""What a commit gives back: the rows of each ``returning`` op, in the plan's order."""


@dataclass(slots=True)
class Select:
    """One named read and its parameters."""

    statement: str
    params: Params


@dataclass(slots=True)
class Query(Generic[T]):
    """Named reads in one snapshot, and the pure function that makes their rows a value."""

    selects: tuple[Select, ...]
    decode: Callable[[Sequence[Rows]], T]


class PlanRefused(StoreError):
    """The file said no: an ``expect`` did not hold or a trigger raised ``thence:CODE``. Nothing was written."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Store(Protocol):
    """What a turn needs of a file. One object, both faces; used from any thread or event loop of its process."""

    @property
    def owner(self) -> str:
        """Name of this process in ``session.owner``; its kernel lock is held while the store is open."""
        ...

    def commit(self, plan: Plan) -> Returned: ...

    async def acommit(self, plan: Plan) -> Returned: ...

    def read(self, query: Query[T]) -> T: ...

    async def aread(self, query: Query[T]) -> T: ...
