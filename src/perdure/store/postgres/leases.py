"""Leases on PostgreSQL: one row a worker, judged by the database's clock."""

from __future__ import annotations

from perdure.store import leases
from perdure.store.codec import is_canonical
from perdure.store.postgres.database import Connection, Database, all_rows, one_row
from perdure.store.postgres.statements import sql


class Leases(leases.Leases):
    """See `perdure.store.leases`. All of it may be done twice, when a connection is lost in between."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def renew(self, worker: str, duration: int, address: str | None = None) -> bool:
        values = (worker, duration, address)
        return bool(await self._database.run(lambda connection: all_rows(connection, sql("renew_lease"), *values)))

    async def release(self, worker: str) -> None:
        await self._database.run(lambda connection: all_rows(connection, sql("release_lease"), worker))
        await self._database.run(lambda connection: all_rows(connection, sql("forget_leases")))

    async def claim(self, worker: str, limit: int) -> list[str]:
        tried = False

        async def work(connection: Connection) -> list[str]:
            nonlocal tried
            # The first answer may have been lost on its way, and nobody else would look after what was in it.
            before = await all_rows(connection, sql("claimed"), worker) if tried else []
            tried = True
            return [session for (session,) in before] + await _claim(connection, worker, limit)

        return await self._database.run(work)

    async def owner_address(self, session_id: str) -> str | None:
        if not is_canonical(session_id):
            return None
        row = await self._database.run(lambda connection: one_row(connection, sql("owner_address"), session_id))
        return None if row is None else row[0]


async def _claim(connection: Connection, worker: str, limit: int) -> list[str]:
    claimed = await all_rows(connection, sql("claim_free"), worker, limit)
    if len(claimed) < limit:
        claimed += await all_rows(connection, sql("claim_from_dead"), worker, limit - len(claimed))
    return [session for (session,) in claimed]
