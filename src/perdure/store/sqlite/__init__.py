"""The embedded engine: one SQLite database in a data folder, one writer with group commit."""

from __future__ import annotations

from perdure.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
