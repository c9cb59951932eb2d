"""Connections: how the store opens its database, and the few calls that it makes on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, TypeAlias

import apsw

Database: TypeAlias = apsw.Connection
Row: TypeAlias = tuple[Any, ...]

PATIENCE_MS: Final = 5_000
_STATEMENTS: Final = 256

# Spilling is off because it would write to disk in the middle of a transaction, on the event loop. Checkpoints are the
# writer's business: SQLite's own run inside a commit that somebody waits for.
_WRITER: Final = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    "PRAGMA cache_size = -4096",
    "PRAGMA cache_spill = 0",
    "PRAGMA wal_autocheckpoint = 0",
    "PRAGMA journal_size_limit = 67108864",
)


def open_writer(file: Path) -> Database:
    """Open the one connection that writes. It does not wait for locks of other processes unless told to."""
    database = apsw.Connection(str(file), statementcachesize=_STATEMENTS)
    database.set_busy_timeout(PATIENCE_MS)
    for pragma in _WRITER:
        database.execute(pragma).fetchall()
    database.set_busy_timeout(0)
    return database


def open_reader(file: Path) -> Database:
    """Open a connection that cannot write."""
    database = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY, statementcachesize=_STATEMENTS)
    database.set_busy_timeout(PATIENCE_MS)
    return database


def one(database: Database, statement: str, values: tuple[Any, ...] = ()) -> Any:
    """Return the first row, or None; the statement is finished, so that it holds no lock."""
    rows = database.execute(statement, values).fetchall()
    return rows[0] if rows else None
