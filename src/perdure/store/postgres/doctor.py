"""What can be asked of a PostgreSQL server about how safe its promises are, and about the store in it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from perdure.store.postgres import schema
from perdure.store.postgres.address import Address
from perdure.store.postgres.arrays import array
from perdure.store.postgres.database import Connection, Database, all_rows
from perdure.store.postgres.leases import Leases
from perdure.store.postgres.statements import sql


class Facts(msgspec.Struct, kw_only=True):
    """What was found out; `skew` in seconds, by which the server's clock is ahead of this machine's."""

    version: int
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    standby_names: str
    standbys: int
    in_recovery: bool
    read_only: bool
    wal_level: str
    archive_mode: str
    autovacuum: bool
    limit: int
    skew: float = 0.0
    free: float | None = None
    a_process: int = 0
    direct: bool = True
    hears: bool = True
    open_for_long: list[tuple[int, str]] = []
    store: StoreFacts | None = None


class StoreFacts(msgspec.Struct, kw_only=True):
    """What was found out about the store: migrations that are due, workers, and whom sessions wait for."""

    missing: list[tuple[int, str]]
    workers: int = 0
    dead: list[tuple[str, int, int | None]] = []
    machines: list[tuple[str, int]] = []
    unowned: int = 0
    feed_is_ahead: bool = False


async def examine(database: Database, address: Address, clock: Callable[[], int]) -> Facts:
    """Look at a server, changing nothing. Raises `StoreError` when it cannot be asked."""
    return await database.run(lambda connection: _examine(connection, database, address, clock))


async def _examine(connection: Connection, database: Database, address: Address, clock: Callable[[], int]) -> Facts:
    before = clock()
    ((*row, at, folder, local),) = await all_rows(connection, sql("server_facts"))
    names = Facts.__struct_fields__[: len(row)]
    facts = Facts(**dict(zip(names, row, strict=True)))
    facts.skew = (at - (before + clock()) / 2) / 1e6
    facts.free = _free(folder) if local else None
    # Those of the pool, and one that listens.
    facts.a_process = address.connections + 1
    facts.direct = connection.is_direct
    facts.hears = address.hints is False or address.listen is not None or database.may_listen(connection)
    facts.open_for_long = [(seconds, whose) for seconds, whose in await all_rows(connection, sql("open_for_long"))]
    done = await schema.applied(connection)
    if done:
        facts.store = await _store(connection, database, done)
    return facts


def _free(folder: str | None) -> float | None:
    """Return which part of the disk of a folder on this machine is free."""
    if folder is None or not Path(folder).exists():
        return None
    disk = os.statvfs(folder)
    return disk.f_bavail / max(disk.f_blocks, 1)


async def _store(connection: Connection, database: Database, done: set[tuple[int, str]]) -> StoreFacts:
    missing = sorted({step.key for step in schema.migrations()} - done, key=lambda key: (key[0], key[1] == "post"))
    facts = StoreFacts(missing=missing)
    if any(phase == "pre" for _, phase in missing):
        return facts
    facts.workers = len(await Leases(database).alive())
    dead = [owner for (owner,) in await all_rows(connection, sql("dead_owners"))]
    held = await all_rows(connection, sql("held_by_the_dead"), array("text", dead)) if dead else []
    facts.dead = [(worker, count, since) for worker, count, since in held]
    facts.machines = [(home, count) for home, count in await all_rows(connection, sql("waiting_for_a_machine"))]
    ((facts.unowned,),) = await all_rows(connection, sql("unowned"))
    ((facts.feed_is_ahead,),) = await all_rows(connection, sql("feed_is_ahead"))
    return facts
