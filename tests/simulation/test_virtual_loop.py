"""The loop of the simulation: time that jumps, order by lot between processes, and processes that stop or die."""

from __future__ import annotations

import asyncio
import time
from random import Random
from typing import Any

import pytest
from tests.simulation.virtual_loop import PROCESS, Process, Stuck, VirtualLoop


def run(main: Any, seed: int = 1, **more: Any) -> Any:
    return VirtualLoop(Random(seed), **more).run(main)


def test_time_jumps_to_the_next_timer() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        await asyncio.gather(asyncio.sleep(3600), asyncio.sleep(7200))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        return loop.time()

    began = time.monotonic()
    assert run(main()) == pytest.approx(7205, abs=0.001)
    assert time.monotonic() - began < 5


def test_a_run_that_would_wait_for_ever_says_what_waits() -> None:
    async def forgotten() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(forgotten())
        await task

    with pytest.raises(Stuck, match=r"nothing is left.*(?s:.)*forgotten.*Event\.wait"):
        run(main())


def test_a_run_that_never_ends_is_given_up() -> None:
    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    async def tick() -> None:
        while True:
            await asyncio.sleep(1)

    with pytest.raises(Stuck, match="for ever"):
        run(spin(), steps=1000)
    with pytest.raises(Stuck, match="for ever"):
        run(tick(), until=100)


def _interleaved(seed: int) -> str:
    told: list[str] = []

    async def say(letter: str) -> None:
        for number in range(5):
            told.append(f"{letter}{number}")
            await asyncio.sleep(0)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        places = [Process(name) for name in "abc"]
        await asyncio.gather(*[loop.create_task(say(place.name), context=place.context) for place in places])

    run(main(), seed)
    for letter in "abc":
        assert [one for one in told if one[0] == letter] == [f"{letter}{number}" for number in range(5)]
    return " ".join(told)


def test_order_between_processes_is_by_lot_and_the_same_for_a_seed() -> None:
    orders = {seed: _interleaved(seed) for seed in range(20)}
    assert len(set(orders.values())) > 10
    assert orders == {seed: _interleaved(seed) for seed in range(20)}


def test_what_a_process_begins_belongs_to_it() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        place = Process("a")
        seen: list[Any] = []

        async def child() -> None:
            await asyncio.sleep(1)
            seen.append(PROCESS.get())

        async def parent() -> None:
            await asyncio.create_task(child())
            loop.call_later(1, lambda: seen.append(PROCESS.get()))
            await asyncio.to_thread(lambda: None)

        await loop.create_task(parent(), context=place.context)
        await asyncio.sleep(2)
        assert seen == [place, place]

    run(main())


def test_a_frozen_process_goes_on_where_it_stood() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        place = Process("a")
        told: list[tuple[float, int]] = []

        async def count() -> None:
            for number in range(4):
                await asyncio.sleep(1)
                told.append((round(loop.time(), 3), number))

        counting = loop.create_task(count(), context=place.context)
        await asyncio.sleep(1.5)
        loop.freeze(place)
        await asyncio.sleep(10)
        loop.thaw(place)
        await counting
        assert told == [(1.0, 0), (11.5, 1), (12.5, 2), (13.5, 3)]

    run(main())


def test_a_dead_process_does_nothing_more_not_even_clean_up() -> None:
    told: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        place = Process("a")

        async def work() -> None:
            try:
                await asyncio.sleep(1)
                told.append("worked")
            finally:
                if loop.is_running():
                    told.append("cleaned up")

        working = loop.create_task(work(), context=place.context)
        await asyncio.sleep(0.5)
        loop.kill(place)
        await asyncio.sleep(10)
        assert not working.done()

    run(main())
    assert told == []


def test_a_fuse_burns_by_steps() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        place = Process("a")
        count = 0

        async def step() -> None:
            nonlocal count
            while True:
                count += 1
                await asyncio.sleep(0)

        place.steps, place.fuse = 7, lambda: loop.kill(place)
        stepping = loop.create_task(step(), context=place.context)
        await asyncio.sleep(1)
        assert not stepping.done()
        return count

    assert run(main()) == 7
