"""What time it is where several machines share a store: the store's time, whatever their own clocks say."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from perdure.records.instants import SECOND


class SharedClock:
    """Counts on from the store's time by this machine's monotonic clock; until it has been asked, by `otherwise`."""

    def __init__(self, otherwise: Callable[[], int]) -> None:
        self._otherwise = otherwise
        self._begun: int | None = None

    def __call__(self) -> int:
        """Return the instant in microseconds."""
        if self._begun is None:
            return self._otherwise()
        return self._begun + _monotonic()

    async def sync(self, ask: Callable[[], Awaitable[int]]) -> None:
        """Ask the store. What the answer took on its way is taken to be the same both ways."""
        before = _monotonic()
        there = await ask()
        self._begun = there - (before + _monotonic()) // 2


def _monotonic() -> int:
    return int(asyncio.get_running_loop().time() * SECOND)
