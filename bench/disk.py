"""How many bytes a SQLite database really takes."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from pathlib import Path


def stored(database: Path) -> int:
    """Bytes of the database file once all of its write-ahead log is folded into it."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        for _ in range(100):
            busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if not busy:
                return database.stat().st_size
            time.sleep(0.02)
    raise AssertionError(f"the log of {database} could not be folded in: a reader or writer never lets go")
