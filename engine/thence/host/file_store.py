"""What an agent needs of its store."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from ..plan import Store


class FileStore(Store, Protocol):
    """What an agent needs of a store beside transactions."""

    @property
    def path(self) -> Path | None: ...

    @property
    def allow_network_fs(self) -> bool: ...

    def owner_alive(self, owner: str) -> bool: ...

    def forbidden_files(self) -> frozenset[tuple[int, int]]: ...

    def check_usable(self) -> None:
        """Raises StoreError in a forked child, whose threads and locks are the parent's."""
        ...

    def close(self) -> None: ...

    async def aclose(self) -> None: ...
