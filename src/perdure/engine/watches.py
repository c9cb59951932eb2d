"""Watches: who waits for news of a session, and the order in which it is told.

The hub holds no events. A watcher keeps a cursor and reads from the store when it is woken, so that a slow one costs no
memory; live slots are overwritten in place.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final

from perdure.engine.service import (
    CaughtUp,
    EventItem,
    LiveItem,
    SessionView,
    SnapshotItem,
    WatchEnd,
    WatchItem,
)
from perdure.engine.waits import ENDS
from perdure.errors import InvalidCursor, SessionNotFound
from perdure.records.sessions import SessionHead
from perdure.rules.commands import WriteLive
from perdure.store.port import Committed, LiveSlot, Snapshot, Store

SNAPSHOT_TURNS: Final = 100
PAGE: Final = 200
FAR_BEHIND: Final = 5_000


class Watcher:
    """One reader's place in the stream of a session's news."""

    __slots__ = ("last_seq", "live", "live_cleared", "live_doubted", "news", "terminal")

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self.last_seq = 0
        self.live: dict[str, LiveSlot] = {}
        self.live_cleared = False
        self.live_doubted = False
        self.terminal = False


class Hub:
    """Wakes the watchers of sessions that a commit has changed."""

    def __init__(self) -> None:
        # In order of their coming, so that what is done twice is done twice in the same way.
        self._watchers: dict[str, dict[Watcher, None]] = {}

    def add(self, session_id: str) -> Watcher:
        """Register a watcher for a session."""
        watcher = Watcher()
        self._watchers.setdefault(session_id, {})[watcher] = None
        return watcher

    def remove(self, session_id: str, watcher: Watcher) -> None:
        """Forget a watcher."""
        watchers = self._watchers.get(session_id, {})
        watchers.pop(watcher, None)
        if not watchers:
            self._watchers.pop(session_id, None)

    def watches(self, session_id: str) -> bool:
        """Whether anybody watches a session."""
        return session_id in self._watchers

    def known(self) -> dict[str, int]:
        """Return the sessions that are watched, with the number of the newest event that all have heard of."""
        return {session_id: min(each.last_seq for each in found) for session_id, found in self._watchers.items()}

    def doubt_live(self) -> None:
        """Have all look for new live slots, since nobody would tell of them."""
        for watchers in self._watchers.values():
            for watcher in watchers:
                watcher.live_doubted = True
                watcher.news.set()

    def __len__(self) -> int:
        """Return how many watch."""
        return sum(len(watchers) for watchers in self._watchers.values())

    def committed(self, committed: Committed) -> None:
        """Tell a session's watchers of a commit."""
        watchers = self._watchers.get(committed.head.id)
        if watchers:
            for watcher in watchers:
                _tell(watcher, committed)


def _is_over(head: SessionHead) -> bool:
    """Whether no event can follow: the process of a session that has ended still reports its own end."""
    return head.is_terminal and head.run is None


def _tell(watcher: Watcher, committed: Committed) -> None:
    command = committed.command
    watcher.last_seq = max(watcher.last_seq, committed.head.last_seq)
    watcher.terminal = _is_over(committed.head)
    if isinstance(command, WriteLive) and committed.head.active is not None:
        slot = LiveSlot(committed.head.active.id, command.content_json, committed.head.active.started_at)
        watcher.live[command.slot] = slot
    elif committed.live and command is None:
        watcher.live_doubted = True
    elif committed.live:
        watcher.live.clear()
        watcher.live_cleared = True
    watcher.news.set()


def _mark(content: LiveSlot) -> tuple[str, int]:
    return content.turn_id, content.at


def _marks(live: Mapping[str, LiveSlot]) -> dict[str, tuple[str, int]]:
    return {slot: _mark(content) for slot, content in live.items()}


class Follower:
    """Follows one session for one reader; see `follow`."""

    def __init__(
        self,
        store: Store,
        hub: Hub,
        view: Callable[[SessionHead], Awaitable[SessionView]],
        session_id: str,
        after: int | None,
    ) -> None:
        self._store = store
        self._hub = hub
        self._view = view
        self._session_id = session_id
        self._after = after
        self._cursor = after or 0
        self._watcher = Watcher()
        self._shown: dict[str, tuple[str, int]] = {}
        self._turn_ended = False

    async def follow(self) -> AsyncIterator[WatchItem]:
        """Yield a snapshot or the events after the cursor, the live slots, `CaughtUp`, then news until the end."""
        self._watcher = self._hub.add(self._session_id)
        try:
            async for item in self._catch_up():
                yield item
            async for item in self._news():
                yield item
        finally:
            self._hub.remove(self._session_id, self._watcher)

    async def _catch_up(self) -> AsyncIterator[WatchItem]:
        snapshot = await self._snapshot()
        head = snapshot.head
        if self._after is None:
            self._cursor = head.last_seq
            self._shown = _marks(snapshot.live)
            yield SnapshotItem(await self._view(head), snapshot)
        elif self._after > head.last_seq:
            raise InvalidCursor(
                f"The session has {head.last_seq} events; there is none after {self._after} to wait for."
            )
        async for item in self._events():
            yield item
        if self._after is not None:
            live = (await self._live()).items()
            for slot, content in live:
                yield LiveItem(slot, content)
        yield CaughtUp(self._cursor)
        # Not the cursor: of what was committed since, the head may still have something to tell.
        self._watcher.last_seq = max(self._watcher.last_seq, head.last_seq)
        self._watcher.terminal = self._watcher.terminal or _is_over(head)
        self._watcher.news.set()

    async def _snapshot(self) -> Snapshot:
        return await self._read(SNAPSHOT_TURNS if self._after is None else 0)

    async def _read(self, turns: int) -> Snapshot:
        snapshot = await self._store.snapshot(self._session_id, turns)
        if snapshot is None:
            raise SessionNotFound(self._session_id)
        return snapshot

    async def _live(self) -> dict[str, LiveSlot]:
        live = (await self._read(0)).live
        self._shown = _marks(live)
        return live

    async def _events(self) -> AsyncIterator[WatchItem]:
        while True:
            page = await self._store.events(self._session_id, self._cursor, PAGE)
            for event in page.events:
                self._cursor = event.seq
                # Its live slots have gone with it, and the hint that said so may be lost.
                self._turn_ended = self._turn_ended or event.type in ENDS
                yield EventItem(event)
            if not page.has_more:
                return

    async def _news(self) -> AsyncIterator[WatchItem]:
        watcher = self._watcher
        while True:
            await watcher.news.wait()
            watcher.news.clear()
            if watcher.last_seq - self._cursor > FAR_BEHIND:
                async for item in self._move_to_snapshot():
                    yield item
            if watcher.last_seq > self._cursor:
                async for item in self._events():
                    yield item
            for item in self._take_live():
                yield item
            if watcher.live_doubted or (self._turn_ended and self._shown):
                watcher.live_doubted = False
                for item in await self._reread_live():
                    yield item
            self._turn_ended = False
            if watcher.terminal and watcher.last_seq <= self._cursor:
                yield WatchEnd(self._cursor)
                return

    def _take_live(self) -> list[LiveItem]:
        watcher = self._watcher
        items: list[LiveItem] = []
        if watcher.live_cleared:
            self._shown.clear()
            items.append(LiveItem("", None))
        for slot, content in watcher.live.items():
            self._shown[slot] = _mark(content)
            items.append(LiveItem(slot, content))
        watcher.live_cleared = False
        watcher.live.clear()
        return items

    async def _reread_live(self) -> list[LiveItem]:
        """Return how live slots differ from what was shown: others tell no more of them than that they changed."""
        shown = self._shown
        live = await self._live()
        if shown.keys() - live.keys():
            return [LiveItem("", None), *(LiveItem(slot, content) for slot, content in live.items())]
        return [LiveItem(slot, content) for slot, content in live.items() if shown.get(slot) != _mark(content)]

    async def _move_to_snapshot(self) -> AsyncIterator[WatchItem]:
        snapshot = await self._read(SNAPSHOT_TURNS)
        self._cursor = snapshot.head.last_seq
        self._shown = _marks(snapshot.live)
        yield SnapshotItem(await self._view(snapshot.head), snapshot)
