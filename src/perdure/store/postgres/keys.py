"""API keys. What writes may be done twice, when a connection is lost in between."""

from __future__ import annotations

from perdure.store.port import ApiKey
from perdure.store.postgres.database import Connection, all_rows, one_row
from perdure.store.postgres.statements import sql


async def api_keys(connection: Connection) -> list[ApiKey]:
    """Return all keys in order of their making."""
    rows = await all_rows(connection, sql("api_keys"))
    # A name is bytes in its column, because people may write NUL.
    return [ApiKey(key_id, name.decode(), *rest) for key_id, name, *rest in rows]


async def put(connection: Connection, key: ApiKey) -> None:
    """Store a key."""
    values = (key.id, key.name.encode(), key.sha256, key.created_at, key.ended_at)
    await all_rows(connection, sql("put_api_key"), *values)


async def end(connection: Connection, key_id: str, at: int) -> bool:
    """End a key; returns whether it was this that ended it."""
    row = await one_row(connection, sql("end_api_key"), key_id, at)
    return row is not None and row[0] == at
