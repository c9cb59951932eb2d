"""The engines that the conformance suite runs against: a new one joins by one class and its name."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from postgres_server import INSTALL, PostgresServer, binaries
from store_engines import PostgresEngine, SqliteEngine
from store_world import Clock, Engine, World

from perdure.store import open_store
from perdure.store.port import Store

sys.path.append(str(Path(__file__).parent.parent / "unit"))  # the rules' session in memory is a model for stores, too


ENGINES = ("sqlite", "postgres")


def need_postgres() -> None:
    """Fail without a PostgreSQL server; skip where the one who runs the tests could not install it."""
    if binaries() is None:
        (pytest.fail if os.geteuid() == 0 else pytest.skip)(INSTALL)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    need_postgres()
    # Nobody pulls this one's plug: without flushes a new database costs a tenth. Tests of crashes have their own.
    server = PostgresServer(fsync=False)
    yield server
    server.remove()


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresServer) -> str:
    """A database with the schema in it, which nobody is connected to."""
    name = postgres.new_database()

    async def migrate() -> None:
        store = open_store(postgres.url(name))
        await store.open()
        await store.close()

    asyncio.run(migrate())
    return name


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Engine]:
    if request.param == "sqlite":
        yield SqliteEngine(tmp_path, clock)
        return
    server, template = request.getfixturevalue("postgres"), request.getfixturevalue("postgres_template")
    engine = PostgresEngine(server, template, clock)
    yield engine
    server.drop_database(engine.database)


@pytest.fixture
async def store(engine: Engine) -> AsyncIterator[Store]:
    store = engine.store()
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def world(store: Store) -> World:
    return World(store)
