"""Logs of runs, in pieces."""

from __future__ import annotations

from typing import Any

from perdure.store.logs import PIECE, cut, join
from perdure.store.sqlite.codec import pack_id
from perdure.store.sqlite.database import Database
from perdure.store.sqlite.statements import sql


def append(database: Database, run_id: str, offset: int, data: bytes) -> None:
    """Store a piece of a log."""
    run = pack_id(run_id)
    for start, piece in cut(offset, data):
        database.execute(sql("append_log"), (run, start, piece))


def read(database: Database, run_id: str, offset: int, limit: int) -> bytes:
    """Return a piece of a log."""
    if limit <= 0:
        return b""
    bounds = (pack_id(run_id), offset - PIECE, offset + limit)
    pieces: list[Any] = database.execute(sql("read_log"), bounds).fetchall()
    return join(offset, limit, pieces)
