"""The one timer of all sessions: fed from the store, on a clock of the test's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from perdure.engine import timers
from perdure.engine.timers import HORIZON, Timers
from perdure.records.instants import SECOND

pytestmark = pytest.mark.anyio

START = 1_000 * SECOND


class World:
    """A clock, a store's list of wake times, and what fired."""

    def __init__(self) -> None:
        self.now = START
        self.stored: dict[str, int] = {}
        self.fired: asyncio.Queue[str] = asyncio.Queue()
        self.loads: list[int] = []

    async def due(self, until: int, limit: int) -> list[tuple[str, int]]:
        self.loads.append(until)
        found = sorted((at, sid) for sid, at in self.stored.items() if at <= until)
        return [(sid, at) for at, sid in found[:limit]]

    async def fire(self, session_id: str) -> None:
        self.stored.pop(session_id, None)
        await self.fired.put(session_id)

    async def next(self) -> str:
        async with asyncio.timeout(5):
            return await self.fired.get()


@asynccontextmanager
async def running(world: World) -> AsyncIterator[Timers]:
    """Timers that have looked into the store once; what they fired for that is put back."""
    first = dict(world.stored) or {"start": START - 1}
    world.stored = dict(first)
    made = Timers(world.due, world.fire, lambda: world.now)
    made.start()
    try:
        if "start" in first:
            assert await world.next() == "start"
        yield made
    finally:
        await made.stop()


@pytest.fixture
def world() -> World:
    return World()


async def test_what_was_due_before_the_start_fires_at_once_in_order(world: World) -> None:
    world.stored = {"b": START - 1, "a": START - 5 * SECOND}
    async with running(world):
        assert [await world.next(), await world.next()] == ["a", "b"]


async def test_a_wake_time_that_moved_fires_only_at_its_newest(world: World) -> None:
    async with running(world) as made:
        made.note("moved", START + 10 * SECOND)
        made.note("moved", START + 20 * SECOND)
        world.now = START + 15 * SECOND
        made.note("marker", world.now)
        made.look_again()
        assert await world.next() == "marker"
        world.now = START + 20 * SECOND
        made.look_again()
        assert await world.next() == "moved"


async def test_a_cancelled_wake_time_does_not_fire(world: World) -> None:
    async with running(world) as made:
        made.note("cancelled", START + SECOND)
        made.note("cancelled", None)
        world.now = START + 2 * SECOND
        made.note("marker", world.now)
        made.look_again()
        assert await world.next() == "marker"
        assert world.fired.empty()


async def test_wake_times_beyond_the_horizon_stay_in_the_store(world: World) -> None:
    async with running(world) as made:
        made.note("far", START + 10 * HORIZON)
        assert made._heap == []


async def test_more_due_sessions_than_a_page_all_fire(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "PAGE", 10)
    world.stored = {f"s{number:03}": START - 100 + number for number in range(35)}
    async with running(world):
        assert [await world.next() for _ in range(35)] == [f"s{number:03}" for number in range(35)]


async def test_the_store_is_asked_once_a_horizon_however_many_sessions_are_noted(world: World) -> None:
    async with running(world) as made:
        made.note("marker", START)
        await world.next()
        asked = len(world.loads)
        for number in range(1_000):
            made.note(f"s{number}", START + SECOND)
        made.note("last", START)
        made.look_again()
        await world.next()
        assert len(world.loads) == asked
