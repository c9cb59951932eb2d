"""Stores of the first schema that have sessions in them are brought to this one, and everything finds its place."""

from __future__ import annotations

from pathlib import Path

import apsw
from postgres_server import PostgresServer
from store_engines import PostgresEngine, SqliteEngine
from store_life import Life
from store_world import ENVIRONMENT, Clock, World

from perdure.store.port import Retention, Store
from perdure.store.postgres import address
from perdure.store.postgres import schema as postgres_schema
from perdure.store.postgres.database import Database
from perdure.store.sqlite import schema as sqlite_schema
from perdure.store.sqlite.database import open_writer
from perdure.store.tools.check import check
from perdure.store.tools.prune import prune

DAY = 86_400_000_000
TABLES = ("sessions", "heads", "events", "turns", "runs", "holds", "asks", "messages", "live", "idempotency")
ALL_TABLES = (*TABLES, "environments", "deployments")


async def lived(store: Store) -> Life:
    life = Life()
    await store.open()
    await life.live(World(store), steps=False)
    await store.close()
    return life


async def is_well(store: Store, where: str, life: Life, clock: Clock) -> None:
    """Check that what was written before is where what is written now is looked for."""
    await store.open()
    world = World(store)
    try:
        before = await store.feed(ENVIRONMENT, "", 1000)
        sessions = (life.closed, life.waiting, life.running)
        for session in sessions:
            told = [event.seq for event in before.events if event.session_id == session.id]
            assert told == [seq for seq, _ in await world.log(session)]
        known = {session.id: 0 for session in sessions}
        assert {head.id for head in await store.changed(known)} == set(known)
        await world.enqueue(life.waiting)
        assert len((await store.feed(ENVIRONMENT, before.cursor, 10)).events) == 1
        assert [finding for finding in await check(where) if finding.severity == "error"] == []
        clock.now += 2 * DAY
        head = await world.head(life.closed)
        assert head.run is not None
        await store.set_retention(ENVIRONMENT, Retention(events=DAY, sessions=DAY, receipts=DAY))
        await prune(store, clock.now)
        assert (await world.head(life.waiting)).retained_after > 0
    finally:
        await store.close()


async def test_a_data_folder_of_the_first_schema(tmp_path: Path, clock: Clock) -> None:
    new = SqliteEngine(tmp_path / "new", clock)
    life = await lived(new.store())
    old = SqliteEngine(tmp_path / "old", clock)
    Path(old.address).mkdir(parents=True)
    database = open_writer(Path(old.address, "perdure.db"))
    sqlite_schema.migrate(database, sqlite_schema.migrations()[:1])
    database.execute(f"ATTACH '{new.address}/perdure.db' AS new")
    for table in ALL_TABLES:
        (names,) = database.execute("SELECT group_concat(name) FROM pragma_table_info(?)", (table,)).fetchone()  # type: ignore[misc]
        database.execute(f"INSERT INTO main.{table} ({names}) SELECT {names} FROM new.{table}")
    database.close()
    await is_well(old.store(), old.address, life, clock)
    seen = apsw.Connection(f"{old.address}/perdure.db")
    assert seen.execute("SELECT count(*) FROM sessions WHERE ended_at IS NOT NULL").fetchall() == [(1,)]
    seen.close()


async def test_a_database_of_the_first_schema(postgres: PostgresServer, postgres_template: str, clock: Clock) -> None:
    new = PostgresEngine(postgres, postgres_template, clock)
    life = await lived(new.store())
    name = postgres.new_database()
    database = Database(address.parse(postgres.url(name)))
    await postgres_schema.open_schema(database, postgres_schema.migrations()[:1])
    await database.close()
    old = PostgresEngine(postgres, name, clock)
    for table in ALL_TABLES:
        ((names,),) = postgres.sql(
            "SELECT string_agg(quote_ident(column_name::text), ',' ORDER BY ordinal_position) "
            "FROM information_schema.columns WHERE table_schema = 'perdure' AND table_name = %s",
            table,
            database=name,
        )
        moved(postgres, new.database, old.database, table, str(names))
    await is_well(old.store(), old.address, life, clock)
    assert postgres.sql("SELECT count(*) FROM perdure.sessions WHERE ended_at > 0", database=old.database) == [(1,)]
    wrong = (
        "SELECT count(*) FROM perdure.heads h "
        "WHERE seq <> (SELECT max(seq) FROM perdure.events WHERE session = h.session)"
    )
    assert postgres.sql(wrong, database=old.database) == [(0,)]
    for database_name in (name, old.database, new.database):
        postgres.drop_database(database_name)


def moved(postgres: PostgresServer, source: str, target: str, table: str, names: str) -> None:
    """Copy the columns of a table that both databases have."""
    import psycopg

    with psycopg.connect(postgres.url(source)) as here, psycopg.connect(postgres.url(target)) as there:
        with (
            here.cursor().copy(f"COPY perdure.{table} ({names}) TO STDOUT".encode()) as reading,
            there.cursor().copy(f"COPY perdure.{table} ({names}) FROM STDIN".encode()) as writing,
        ):
            for data in reading:
                writing.write(data)
        there.commit()
