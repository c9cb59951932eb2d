"""Retention: policies of environments, and the short transactions that remove what is too old."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import Any, Final

from perdure.errors import EnvironmentNotFound
from perdure.store.feed import Place
from perdure.store.port import Retention
from perdure.store.pruning import PRUNES, Old, Sweep
from perdure.store.sqlite import reads
from perdure.store.sqlite.codec import pack_id, position, unpack_id
from perdure.store.sqlite.database import Database, one
from perdure.store.sqlite.feed import unpack_ranges
from perdure.store.sqlite.readers import Readers
from perdure.store.sqlite.statements import sql
from perdure.store.sqlite.writer import Writer

_LEFT: Final = (
    "forget_holds",
    "forget_asks",
    "forget_messages",
    "forget_steps",
    "forget_memos",
    "forget_logs",
    "forget_runs",
    "forget_turns",
    "forget_events",
    "forget_head",
)


def retention(database: Database, environment: str) -> Retention:
    """Return an environment's policy."""
    row = one(database, sql("retention"), (environment,))
    if row is None:
        raise EnvironmentNotFound(environment)
    return Retention(*row)


def set_retention(database: Database, environment: str, policy: Retention) -> None:
    """Set an environment's policy."""
    values = (environment, policy.events, policy.sessions, policy.receipts)
    if one(database, sql("set_retention"), values) is None:
        raise EnvironmentNotFound(environment)


class Sweeper(Sweep):
    """See `perdure.store.pruning`. What it removes goes between the commits of others, a little at a time."""

    def __init__(self, write: Writer, read: Readers) -> None:
        self._write = write
        self._read = read

    async def raise_floor(self, environment: str, before: int, limit: int) -> int:
        _, floor = await self._read.read(one, sql("feed"), (environment,))
        found = await self._oldest(environment, floor, before, limit)
        if found:
            values = (environment, found[-1].place[0])
            await self._write.run(lambda database: _changes(database, "raise_feed_floor", values))
        return len(found)

    async def old_commits(self, environment: str, before: int, limit: int) -> list[Old]:
        return await self._oldest(environment, 0, before, limit)

    async def _oldest(self, environment: str, after: int, before: int, limit: int) -> list[Old]:
        return await self._read.read(_oldest, environment, after, before, limit)

    async def drop_commits(self, environment: str, upto: Place) -> None:
        await self._write.run(lambda database: _changes(database, "drop_commits", (environment, upto[0])))

    async def remove(self, kind: str, floors: Mapping[str, int], before: int, limit: int) -> int:
        return await self._write.run(lambda database: _remove(database, PRUNES[kind], floors, before, limit))

    async def ended(self, environment: str, before: int, limit: int) -> dict[str, int]:
        return await self._read.read(_ended, environment, before, limit)

    async def forget(self, session_id: str) -> bool:
        return await self._write.run(lambda database: _forget(database, session_id), forgets=session_id)

    async def drop_receipts(self, environment: str, before: int, limit: int) -> int:
        values = (environment, before, limit)
        return await self._write.run(lambda database: _changes(database, "prune_receipts", values))


def _changes(database: Database, name: str, values: tuple[Any, ...]) -> int:
    """Run a statement and return how many rows it changed."""
    database.execute(sql(name), values).fetchall()
    return database.changes()


def _oldest(database: Database, environment: str, after: int, before: int, limit: int) -> list[Old]:
    rows: list[Any] = database.execute(sql("oldest_commits"), (environment, after, limit)).fetchall()
    found: list[Old] = []
    for number, _, ranges in takewhile(lambda row: row[1] < before, rows):
        lasts = {sid: last for sid, _, last in unpack_ranges(ranges)}
        ids = {sid: one(database, sql("session_id"), (sid,)) for sid in lasts}
        found.append(Old((number, 0), {unpack_id(ids[sid][0]): last for sid, last in lasts.items() if ids[sid]}))
    return found


def _remove(database: Database, name: str, floors: Mapping[str, int], before: int, limit: int) -> int:
    gone = 0
    for session_id, floor in floors.items():
        sid = reads.sid_of(database, session_id)
        if sid is not None and gone < limit:
            gone += _changes(database, name, (position(sid, 0), floor, before, limit - gone))
    return gone


def _ended(database: Database, environment: str, before: int, limit: int) -> dict[str, int]:
    rows: list[Any] = database.execute(sql("ended_sessions"), (environment, before, limit)).fetchall()
    heads = reads.heads(database, [unpack_id(found) for (found,) in rows])
    return {head.id: head.last_seq for head in heads}


def _forget(database: Database, session_id: str) -> bool:
    row = one(database, sql("forget_session"), (pack_id(session_id),))
    if row is None:
        return False
    for name in _LEFT:
        _changes(database, name, (row[0],))
    return True
