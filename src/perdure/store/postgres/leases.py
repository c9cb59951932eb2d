"""Leases on PostgreSQL: one row a worker, judged by the database's clock."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from perdure.store import leases
from perdure.store.codec import is_canonical
from perdure.store.leases import LeaseView
from perdure.store.postgres.arrays import array
from perdure.store.postgres.database import Connection, Database, all_rows, one_row
from perdure.store.postgres.statements import sql
from perdure.telemetry import notes

ANYWHERE: Final = ""
"""The `home` of sessions that any machine will do for."""


class Leases(leases.Leases):
    """See `perdure.store.leases`. All of it may be done twice, when a connection is lost in between."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def renew(self, worker: str, duration: int, address: str | None = None, machine: str | None = None) -> bool:
        values = (worker, duration, address, machine)
        granted = bool(await self._database.run(lambda connection: all_rows(connection, sql("renew_lease"), *values)))
        notes.renewed(granted)
        return granted

    async def release(self, worker: str) -> None:
        await self._database.run(lambda connection: all_rows(connection, sql("release_lease"), worker))
        await self._database.run(lambda connection: all_rows(connection, sql("forget_leases")))

    async def claim(self, worker: str, machine: str | None, limit: int) -> list[str]:
        homes = [ANYWHERE] if machine is None else [ANYWHERE, machine]
        tried = False

        async def work(connection: Connection) -> list[str]:
            nonlocal tried
            # The first answer may have been lost on its way, and nobody else would look after what was in it.
            before = await all_rows(connection, sql("claimed"), worker) if tried else []
            tried = True
            return [session for (session,) in before] + await _claim(connection, worker, homes, limit)

        began = time.perf_counter()
        claimed = await self._database.run(work)
        notes.claimed(len(claimed), began)
        return claimed

    async def claimed(self, worker: str) -> list[str]:
        rows = await self._database.run(lambda connection: all_rows(connection, sql("claimed"), worker))
        return [session for (session,) in rows]

    async def owner_address(self, session_id: str) -> str | None:
        if not is_canonical(session_id):
            return None
        row = await self._database.run(lambda connection: one_row(connection, sql("owner_address"), session_id))
        return None if row is None else row[0]

    async def now(self) -> int:
        rows = await self._database.run(lambda connection: all_rows(connection, sql("database_now")))
        instant: int = rows[0][0]
        return instant

    async def alive(self) -> list[LeaseView]:
        rows = await self._database.run(lambda connection: all_rows(connection, sql("alive")))
        return [LeaseView(*row) for row in rows]


async def _claim(connection: Connection, worker: str, homes: Sequence[str], limit: int) -> list[str]:
    here = array("text", homes)
    claimed = await all_rows(connection, sql("claim_free"), worker, limit, here)
    dead = await all_rows(connection, sql("dead_owners")) if len(claimed) < limit else []
    if dead:
        gone = array("text", [owner for (owner,) in dead])
        claimed += await all_rows(connection, sql("claim_from_dead"), worker, limit - len(claimed), here, gone)
    return [session for (session,) in claimed]
