"""The store: the only code that touches the database file (§8)."""

from __future__ import annotations
