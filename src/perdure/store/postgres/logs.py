"""Logs of runs, in pieces."""

from __future__ import annotations

from perdure.store.codec import is_canonical
from perdure.store.logs import PIECE, cut, join
from perdure.store.postgres.arrays import uuid_bytes
from perdure.store.postgres.database import Connection, all_rows, trip
from perdure.store.postgres.statements import sql


async def append(connection: Connection, run_id: str, offset: int, data: bytes) -> None:
    """Store a piece of a log. It may be done twice, when a connection is lost in between."""
    uuid_bytes(run_id)
    if pieces := [(sql("append_log"), (run_id, start, piece)) for start, piece in cut(offset, data)]:
        await trip(connection, pieces)


async def read(connection: Connection, run_id: str, offset: int, limit: int) -> bytes:
    """Return a piece of a log."""
    if not is_canonical(run_id) or limit <= 0:
        return b""
    pieces = await all_rows(connection, sql("read_log"), run_id, offset - PIECE, offset + limit)
    return join(offset, limit, [(start, data) for start, data in pieces])
