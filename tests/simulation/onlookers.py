"""Those who look on: readers of a session's news, and of the feed of all sessions, who come back with their cursor."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
from tests.simulation.simulated_nodes import SCOPE, Node, Unreachable
from tests.simulation.truth import Truth

from perdure.engine.operations import EngineService
from perdure.engine.service import EventItem, LiveItem, SnapshotItem, WatchEnd, WatchItem
from perdure.errors import PerdureError
from perdure.store.port import FeedPage

if TYPE_CHECKING:
    from tests.simulation.clients import Client
    from tests.simulation.world import World


class Onlooker(ABC):
    """Reads a stream at one node after the other, without a gap and without a repeat."""

    def __init__(self, world: World, name: str) -> None:
        self.world: Final = world
        self.name: Final = name
        self.ended = False
        self._inbox: asyncio.Queue[Any] = asyncio.Queue()

    @abstractmethod
    def _open(self, service: EngineService) -> AsyncIterator[Any]:
        """Begin to read at a node, after what was read before."""

    @abstractmethod
    def _take(self, item: Any) -> None:
        """Read one item."""

    @abstractmethod
    def lag(self, truth: Truth) -> str | None:
        """Return what this reader has not been shown, in words."""

    async def run(self) -> None:
        """Read until the stream has ended."""
        while not self.ended:
            node = self.world.some_node()
            if node is not None:
                await self._visit(node)
            await asyncio.sleep(self.world.random.uniform(0.01, 0.5))

    async def _visit(self, node: Node) -> None:
        self._inbox = inbox = asyncio.Queue()
        process = node.process
        pump = self.world.loop.create_task(self._pump(self._open(node.service), inbox), context=process.context.copy())
        self.world.trace(f"{self.name} reads at {process.name}")
        until = self.world.random.uniform(2, 12) if self.world.is_troubled else 1_000.0
        try:
            async with asyncio.timeout(until):
                while not self.ended:
                    item = await self._next(node)
                    if isinstance(item, Exception):
                        return self._interrupted(item)
                    self._take(item)
        except TimeoutError:
            return None
        finally:
            pump.cancel()

    async def _next(self, node: Node) -> Any:
        while True:
            if node.process.dead:
                return Unreachable()
            try:
                async with asyncio.timeout(1.0):
                    return await self._inbox.get()
            except TimeoutError:
                continue

    async def _pump(self, items: AsyncIterator[Any], inbox: asyncio.Queue[Any]) -> None:
        put = inbox.put_nowait
        try:
            async for item in items:
                self.world.outside(put, item)
            self.world.outside(put, Unreachable())
        except PerdureError as error:
            self.world.outside(put, error)

    def _interrupted(self, error: Exception) -> None:
        if isinstance(error, PerdureError) and error.status < 500:
            self.world.problem(f"{self.name}: the stream was refused: {error}")


class Follower(Onlooker):
    """Follows the feed of all sessions, and compares it with the order of all commits."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, f"follower{number}")
        self._cursor = ""
        self._seen = 0

    def _open(self, service: EngineService) -> AsyncIterator[FeedPage]:
        return service.follow(SCOPE, self._cursor)

    def _take(self, item: FeedPage) -> None:
        shown = [(event.session_id, event.seq) for event in item.events]
        order = self.world.truth.order[self._seen : self._seen + len(shown)]
        if shown != [(rows.id, event.seq) for _, rows, event in order]:
            self.world.problem(f"{self.name}: was shown {shown} after {self._seen} others")
        self._cursor, self._seen = item.cursor, self._seen + len(shown)

    def lag(self, truth: Truth) -> str | None:
        return None if self._seen == len(truth.order) else f"{self.name}: was shown {self._seen} of {len(truth.order)}"


class Watcher(Onlooker):
    """Follows one session."""

    def __init__(self, client: Client, name: str, session: str) -> None:
        super().__init__(client.world, name)
        self.client = client
        self.session = session
        self.cursor: int | None = None
        self.live: dict[str, bytes] = {}

    def _open(self, service: EngineService) -> AsyncIterator[WatchItem]:
        # The newest live slots are sent anew; what was shown of older ones counts no more.
        self.live.clear()
        return service.watch(SCOPE, self.session, self.cursor)

    def _take(self, item: WatchItem) -> None:
        self.world.trace(f"{self.name} is shown {_summary(item)}")
        if isinstance(item, SnapshotItem):
            if self.cursor is not None:
                self.world.problem(f"{self.name}: a snapshot came to a reader that had a cursor")
            self.cursor = item.snapshot.head.last_seq
            self.live = {slot: content.content_json for slot, content in item.snapshot.live.items()}
        elif isinstance(item, EventItem):
            if item.event.seq != (self.cursor or 0) + 1:
                self.world.problem(f"{self.name}: event {item.event.seq} came after {self.cursor}")
            self.cursor = item.event.seq
            self._react(item)
        elif isinstance(item, LiveItem):
            if item.content is None:
                self.live.clear()
            else:
                self.live[item.slot] = item.content.content_json
        elif isinstance(item, WatchEnd):
            self.ended = True

    def _react(self, item: EventItem) -> None:
        event = item.event
        if event.type == "ask.created" and self.world.random.random() < 0.8:
            ask = msgspec.json.decode(event.data)["ask_id"]
            self.world.loop.call_later(self.world.random.uniform(0, 2), self._answer, ask)

    def _answer(self, ask: str) -> None:
        self.world.side.append(self.world.loop.create_task(self.client.answer(self.session, ask)))

    def lag(self, truth: Truth) -> str | None:
        """Return what this watcher has not been shown, in words."""
        head = truth.head(self.session)
        assert head is not None
        missed = truth.rows[self.session].events[self.cursor or 0 :]
        if self.ended and all(event.type == "session.resumed" for event in missed):
            # A hold of a session that has ended may still be released.
            return None
        if missed:
            return f"{self.name}: was shown {self.cursor} of {head.last_seq} events"
        if self.ended != (head.is_terminal and head.run is None):
            return (
                f"{self.name}: the session is {head.status} with run {head.run}, and the watch has ended: {self.ended}"
            )
        live = {slot: content.content_json for slot, content in truth.rows[self.session].live.items()}
        if self.live != live and not self.ended:
            return f"{self.name}: shows the live slots {self.live}, there are {live}"
        return None


def _summary(item: WatchItem) -> str:
    if isinstance(item, EventItem):
        return f"event {item.event.seq} {item.event.type}"
    if isinstance(item, SnapshotItem):
        return f"a snapshot at {item.snapshot.head.last_seq} with {sorted(item.snapshot.live)}"
    if isinstance(item, LiveItem):
        return f"live slot {item.slot}" if item.content else "that the live slots are cleared"
    return repr(item)
