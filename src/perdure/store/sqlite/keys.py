"""API keys."""

from __future__ import annotations

from perdure.store.port import ApiKey
from perdure.store.sqlite.database import Database, one
from perdure.store.sqlite.statements import sql


def api_keys(database: Database) -> list[ApiKey]:
    """Return all keys in order of their making."""
    return [ApiKey(*row) for row in database.execute(sql("api_keys"))]


def put(database: Database, key: ApiKey) -> None:
    """Store a key."""
    database.execute(sql("put_api_key"), (key.id, key.name, key.sha256, key.created_at, key.ended_at))


def end(database: Database, key_id: str, at: int) -> bool:
    """End a key; returns whether there was one to end."""
    return one(database, sql("end_api_key"), (key_id, at)) is not None
