"""Retention: policies of environments, and the short transactions that remove what is too old."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import Final

from perdure.errors import EnvironmentNotFound
from perdure.store.feed import BEGINNING, Place
from perdure.store.port import Retention
from perdure.store.postgres.arrays import arrays
from perdure.store.postgres.database import Connection, Database, Row, Statement, all_rows, one_row, roll_back, trip
from perdure.store.postgres.statements import sql
from perdure.store.pruning import PRUNES, Old, Sweep

_BEGIN: Final[Statement] = (sql("begin"), ())
_COMMIT: Final[Statement] = (sql("commit"), ())
_ROLLBACK: Final[Statement] = (sql("rollback"), ())


async def retention(connection: Connection, environment: str) -> Retention:
    """Return an environment's policy."""
    row = await one_row(connection, sql("retention"), environment)
    if row is None:
        raise EnvironmentNotFound(environment)
    return Retention(*row)


async def set_retention(connection: Connection, environment: str, policy: Retention) -> None:
    """Set an environment's policy."""
    values = (policy.events, policy.sessions, policy.receipts)
    if not await all_rows(connection, sql("set_retention"), environment, *values):
        raise EnvironmentNotFound(environment)


class Sweeper(Sweep):
    """See `perdure.store.pruning`. All of it may be done twice, when a connection is lost in between."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def _rows(self, name: str, *values: object) -> list[Row]:
        return await self._database.run(lambda connection: all_rows(connection, sql(name), *values))

    async def raise_floor(self, environment: str, before: int, limit: int) -> int:
        ((_, *floor),) = await self._rows("feed", environment)
        found = await self._oldest(environment, (floor[0], floor[1]), before, limit)
        if found:
            await self._rows("raise_feed_floor", environment, *found[-1].place)
        return len(found)

    async def old_commits(self, environment: str, before: int, limit: int) -> list[Old]:
        return await self._oldest(environment, BEGINNING, before, limit)

    async def _oldest(self, environment: str, after: Place, before: int, limit: int) -> list[Old]:
        rows = await self._rows("oldest_commits", environment, *after, limit)
        old = takewhile(lambda row: row[2] < before, rows)
        return [Old((mark, xid), dict(zip(sessions, lasts, strict=True))) for mark, xid, _, sessions, lasts in old]

    async def drop_commits(self, environment: str, upto: Place) -> None:
        await self._rows("drop_commits", environment, *upto)

    async def remove(self, kind: str, floors: Mapping[str, int], before: int, limit: int) -> int:
        columns = arrays(("uuid", "int8"), list(floors.items()))
        return len(await self._rows(PRUNES[kind], *columns, before, limit))

    async def ended(self, environment: str, before: int, limit: int) -> dict[str, int]:
        rows = await self._rows("ended_sessions", environment, before, limit)
        return {session_id: last for session_id, last in rows}  # noqa: C416

    async def forget(self, session_id: str) -> bool:
        return await self._database.run(lambda connection: _forget(connection, session_id))

    async def drop_receipts(self, environment: str, before: int, limit: int) -> int:
        return len(await self._rows("prune_receipts", environment, before, limit))


async def _forget(connection: Connection, session_id: str) -> bool:
    """Remove what is left of a session; whoever waits for its head finds none."""
    try:
        key = arrays(("uuid",), [(session_id,)])
        gone = (await trip(connection, [_BEGIN, (sql("lock_heads"), key), (sql("forget_session"), (session_id,))]))[2]
        rest = [(sql("forget_head"), (session_id,)), (sql("forget_rows"), (session_id,)), _COMMIT]
        await trip(connection, rest if gone else [_ROLLBACK])
    except BaseException:
        await roll_back(connection)
        raise
    return bool(gone)
