"""One timer for all sessions: a heap of near wake times, fed from the store.

A session whose wake time lies beyond the horizon is not in memory at all: the store knows it, and each refill looks one
horizon ahead. Entries are hints; what is due is decided anew by the rule from the session's head.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable
from math import inf
from typing import Final

from perdure.records import instants
from perdure.records.instants import SECOND

HORIZON: Final = 60 * SECOND
PAGE: Final = 1_000
_LONGEST_SLEEP: Final = 5.0
_RETRY: Final = 1.0

log = logging.getLogger("perdure.engine")


class Timers:
    """Calls `fire(session_id)` when a session's wake time has come."""

    def __init__(
        self,
        due: Callable[[int, int], Awaitable[list[tuple[str, int]]]],
        fire: Callable[[str], Awaitable[None]],
        clock: Callable[[], int] = instants.now,
        fresh: Callable[[], float] = lambda: inf,
    ) -> None:
        """Take how the store is asked, what to call and the clock.

        `fresh` tells for how many seconds what was read stays true where others commit too, whose news may be lost.
        """
        self._due = due
        self._fire = fire
        self._clock = clock
        self._heap: list[tuple[int, str]] = []
        self._known: dict[str, int] = {}
        self._loaded_until = 0
        self._loaded_at = -inf
        self._fresh = fresh
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch the clock."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def note(self, session_id: str, wake_at: int | None) -> None:
        """Note a session's wake time as of its newest commit."""
        if wake_at is None or wake_at > self._loaded_until:
            self._known.pop(session_id, None)
            return
        if self._known.get(session_id) != wake_at:
            self._known[session_id] = wake_at
            heapq.heappush(self._heap, (wake_at, session_id))
            if self._heap[0] == (wake_at, session_id):
                self._changed.set()

    def look_again(self) -> None:
        """Look at the clock now: it was set."""
        self._changed.set()

    async def _run(self) -> None:
        while True:
            now = self._clock()
            if now + HORIZON // 2 >= self._loaded_until or self._age() >= self._fresh():
                await self._load_surely(now)
            await self._fire_due()
            await self._wait()

    def _age(self) -> float:
        return asyncio.get_running_loop().time() - self._loaded_at

    async def _load_surely(self, now: int) -> None:
        try:
            await self._load(now)
        except Exception:
            log.exception("the sessions that time will wake could not be read; trying again")
            self._loaded_until = now
            await asyncio.sleep(_RETRY)

    async def _load(self, now: int) -> None:
        until = now + HORIZON
        self._loaded_until, self._loaded_at = until, asyncio.get_running_loop().time()
        page = await self._due(until, PAGE)
        for session_id, wake_at in page:
            self.note(session_id, wake_at)
        if len(page) == PAGE:
            # More is due soon than one page holds: look again once these have been dealt with.
            self._loaded_until = page[-1][1]

    async def _fire_due(self) -> None:
        now = self._clock()
        while self._heap and self._heap[0][0] <= now:
            wake_at, session_id = heapq.heappop(self._heap)
            if self._known.get(session_id) == wake_at:
                del self._known[session_id]
                await self._fire_surely(session_id)

    async def _fire_surely(self, session_id: str) -> None:
        try:
            await self._fire(session_id)
        except Exception:
            log.exception("session %s: its timer could not be served; trying again", session_id)
            if session_id not in self._known:
                self.note(session_id, self._clock() + int(_RETRY * SECOND))

    async def _wait(self) -> None:
        self._changed.clear()
        first = self._heap[0][0] if self._heap else self._loaded_until - HORIZON // 2
        # Never longer than a few seconds, since the machine's clock may be set while we wait.
        stale = max(self._fresh() - self._age(), 0)
        seconds = min(max(first - self._clock(), 0) / SECOND, _LONGEST_SLEEP, stale)
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return
