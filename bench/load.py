"""The load: closed loops of conversations, the same code inside every driver. Standard library only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

INPUT = "i" * 200
OUTPUT = "o" * 300
RESPONSE = "r" * 300
PAYLOAD_BYTES = len(INPUT) + len(OUTPUT) + len(RESPONSE)

Turn = Callable[[str, int], Awaitable[object]]
"""`await turn(conversation, index)` runs one whole turn; inside a conversation the indexes count up from 0."""


class Clock:
    """Wall time and CPU time of this process (all threads) inside `with`, and the latency of each piece of work."""

    def __init__(self) -> None:
        self.latencies: list[float] = []

    def __enter__(self) -> Clock:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall = time.perf_counter() - self._wall
        self.cpu = time.process_time() - self._cpu

    async def time(self, work: Awaitable[object]) -> None:
        start = time.perf_counter()
        await work
        self.latencies.append(time.perf_counter() - start)

    def sample(self) -> dict[str, Any]:
        """What goes to the harness: seconds, and latencies in whole microseconds."""
        return {"wall": self.wall, "cpu": self.cpu, "latencies_us": [round(x * 1e6) for x in self.latencies]}


async def converse(turn: Turn, *, conversations: int, turns: int, seconds: float, tag: str) -> dict[str, Any]:
    """Keep `conversations` going at once, turns strictly one after the other inside each, for `seconds`.

    A conversation ends after `turns` turns and a new one takes its place: no system is measured on long histories.
    """
    clock, started = Clock(), iter(range(1 << 30))
    stop = time.perf_counter() + seconds

    async def talk() -> None:
        while True:
            name = f"{tag}-{next(started)}"
            for index in range(turns):
                if time.perf_counter() >= stop:
                    return
                await clock.time(turn(name, index))

    with clock:
        await asyncio.gather(*[talk() for _ in range(conversations)])
    return clock.sample()


async def open_many(turn: Turn, *, count: int, at_once: int, tag: str) -> dict[str, Any]:
    """Open `count` new conversations, one turn in each, `at_once` at a time."""
    clock, names = Clock(), iter([f"{tag}-{n}" for n in range(count)])

    async def work() -> None:
        for name in names:
            await clock.time(turn(name, 0))

    with clock:
        await asyncio.gather(*[work() for _ in range(at_once)])
    return clock.sample()


async def extend(turn: Turn, *, conversation: str, start: int, count: int) -> dict[str, Any]:
    """`count` more turns of one conversation that has had `start`."""
    clock = Clock()
    with clock:
        for index in range(start, start + count):
            await clock.time(turn(conversation, index))
    return clock.sample()


async def grow(turn: Turn, *, conversations: int, turns: int, tag: str) -> None:
    """Give `conversations` new conversations, all at once, a history of `turns` turns each."""

    async def talk(name: str) -> None:
        for index in range(turns):
            await turn(name, index)

    await asyncio.gather(*[talk(f"{tag}-{n}") for n in range(conversations)])


class Gate:
    """Where turns stop for good once it is shut, so that they are in flight when their process is killed."""

    def __init__(self) -> None:
        self.shut = False
        self._stopped = 0

    async def enter(self) -> None:
        if self.shut:
            self._stopped += 1
            await asyncio.Event().wait()

    async def hold(self, turn: Turn, *, count: int) -> None:
        """Start `count` turns and return once all of them stand at the gate."""
        self.shut = True
        self._turns = [asyncio.ensure_future(turn(f"stuck-{n}", 0)) for n in range(count)]
        while self._stopped < count:
            await asyncio.sleep(0.005)
