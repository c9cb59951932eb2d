"""The store in memory keeps the promises of the port as far as one process's memory can."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.simulation.memory_store import MemoryStore
from tests.simulation.truth import Truth

for _room in ("unit", "store"):
    sys.path.append(str(Path(__file__).parent.parent / _room))

from store_world import Clock, Engine, World  # noqa: E402
from test_commits import *  # noqa: E402, F403
from test_groups import (  # noqa: E402, F401
    test_a_refusal_touches_no_other_command_of_its_commit,
)
from test_model import test_a_store_tells_the_story_that_the_rules_tell  # noqa: E402, F401
from test_reads import *  # noqa: E402, F403

from perdure.store.port import Store  # noqa: E402


class MemoryEngine(Engine):
    """The truth outlives the views of it, as a database outlives its connections."""

    address = "memory"

    def __init__(self, clock: Clock) -> None:
        self.truth = Truth(clock)

    def store(self) -> Store:
        return MemoryStore(self.truth)

    def make_newer(self) -> None:
        self.truth.newer = True

    def contents(self) -> bytes:
        return repr(sorted(self.truth.entries.items())).encode()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def engine(clock: Clock) -> Engine:
    return MemoryEngine(clock)


@pytest.fixture
async def store(engine: Engine) -> AsyncIterator[Store]:
    store = engine.store()
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def world(store: Store) -> World:
    return World(store)
