"""The engines that the conformance suite runs against: a new one joins by one class and its name in `ENGINES`."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from store_world import Clock, Engine, World

from perdure.store.port import Store
from perdure.store.sqlite import SqliteStore

sys.path.append(str(Path(__file__).parent.parent / "unit"))  # the rules' session in memory is a model for stores, too


class SqliteEngine(Engine):
    def __init__(self, folder: Path, clock: Clock) -> None:
        self.address = str(folder / "data")
        self._clock = clock

    def store(self) -> Store:
        return SqliteStore(self.address, clock=self._clock)

    def make_newer(self) -> None:
        import apsw

        database = apsw.Connection(f"{self.address}/perdure.db")
        database.execute("UPDATE schema_version SET version = version + 1")
        database.close()

    def contents(self) -> bytes:
        return Path(self.address, "perdure.db").read_bytes()


ENGINES = {"sqlite": SqliteEngine}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Engine:
    return ENGINES[request.param](tmp_path, clock)


@pytest.fixture
async def store(engine: Engine) -> AsyncIterator[Store]:
    store = engine.store()
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def world(store: Store) -> World:
    return World(store)
