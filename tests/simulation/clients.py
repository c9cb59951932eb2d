"""Those outside: clients that insist until they are answered, and watchers that come back with their cursor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from tests.simulation.plan import Act, Talk
from tests.simulation.simulated_nodes import SCOPE, Node, Unreachable
from tests.simulation.truth import Truth

from perdure.engine.operations import EngineService
from perdure.engine.service import CaughtUp, EventItem, LiveItem, SnapshotItem, WatchEnd, WatchItem
from perdure.errors import IdempotencyConflict, PerdureError
from perdure.records.sessions import ENDED

if TYPE_CHECKING:
    from tests.simulation.world import World

T = TypeVar("T")
Operation = Callable[[EngineService], Awaitable[T]]

INPUT_KINDS: Final = ("create", "input", "send")


class Client:
    """Carries on one talk. `receipts` are of inputs that were accepted."""

    def __init__(self, world: World, number: int, talk: Talk) -> None:
        self.world = world
        self.name = f"client{number}"
        self.talk = talk
        self.session: str | None = None
        self.receipts: list[dict[str, Any]] = []
        self.watchers: list[Watcher] = []
        self.conflicts = 0
        self._keys = 0
        self._side: list[asyncio.Task[Any]] = []

    # --- asking

    async def insist(self, what: str, operation: Operation[T]) -> T | PerdureError:
        """Ask one node after the other until one of them has an answer; a refusal is one."""
        while True:
            node = self.world.some_node()
            try:
                if node is None:
                    raise Unreachable
                return await node.ask(operation)
            except Unreachable:
                pass
            except PerdureError as error:
                if error.status < 500:
                    self.world.trace(f"{self.name} {what}: refused, {error.code}")
                    if isinstance(error, IdempotencyConflict):
                        self.world.problem(f"{self.name}: {what} conflicts with itself: {error}")
                    return error
            await asyncio.sleep(self.world.random.uniform(0.05, 0.6))

    async def get(self, what: str, operation: Operation[bytes]) -> dict[str, Any] | None:
        """Return a receipt, asking again now and then for the same to see that the same is answered."""
        answer = await self.insist(what, operation)
        if isinstance(answer, PerdureError):
            return None
        if self.world.random.random() < 0.3:
            self._side.append(self.world.loop.create_task(self._repeat(what, operation, answer)))
        receipt: dict[str, Any] = msgspec.json.decode(answer)
        self.world.trace(f"{self.name} {what}: {_short(receipt)}")
        if what in INPUT_KINDS and receipt.get("sequence") is not None:
            self.receipts.append(receipt)
        return receipt

    async def _repeat(self, what: str, operation: Operation[bytes], first: bytes) -> None:
        await asyncio.sleep(self.world.random.uniform(0, 4))
        again = await self.insist(f"{what} again", operation)
        if again != first:
            self.world.problem(f"{self.name}: {what} was answered {first!r} and then {again!r}")

    def key(self) -> str:
        """Return a new idempotency key."""
        self._keys += 1
        return f"{self.name}-{self._keys}"

    # --- the course of a talk

    async def run(self) -> None:
        """Do all of the talk."""
        await asyncio.sleep(self.talk.start)
        await self._begin()
        if self.session is None:
            return
        self.world.bad_inits.setdefault(self.session, self.talk.bad_inits)
        for number in range(self.talk.watches):
            watcher = Watcher(self, f"{self.name}/watcher{number}", self.session)
            self.watchers.append(watcher)
            self.world.watches.append(self.world.loop.create_task(watcher.run()))
        for act in self.talk.acts:
            await asyncio.sleep(act.pause)
            await self._do(act, self.session)
        while self._side:
            await self._side.pop()

    async def _begin(self) -> None:
        talk, key = self.talk, self.key()
        if talk.key is None:
            receipt = await self.get(
                "create",
                lambda service: service.create_session(SCOPE, talk.agent, input=talk.said, idempotency_key=key),
            )
        else:
            name = talk.key
            receipt = await self.get(
                "create",
                lambda service: service.get_or_create(
                    SCOPE, talk.agent, key=name, input=talk.said, idempotency_key=key
                ),
            )
        self.session = None if receipt is None else receipt["session_id"]

    async def _do(self, act: Act, session: str) -> None:
        await getattr(self, f"_{act.kind}")(act, session)

    async def _input(self, act: Act, session: str) -> None:
        key = self.key()
        await self.get("input", lambda service: service.enqueue(SCOPE, session, act.text, idempotency_key=key))

    async def _send(self, act: Act, session: str) -> None:
        key = self.key()
        await self.get("send", lambda service: service.send(SCOPE, session, act.text, idempotency_key=key))

    async def _steer(self, act: Act, session: str) -> None:
        head = self.world.truth.head(session)
        if head is not None and head.active is not None:
            turn, key = head.active.id, self.key()
            await self.get(
                "steer", lambda service: service.send_to_turn(SCOPE, session, turn, act.text, idempotency_key=key)
            )

    async def _interrupt(self, act: Act, session: str) -> None:
        key = self.key()
        receipt = await self.get("interrupt", lambda service: service.interrupt(SCOPE, session, idempotency_key=key))
        if receipt is not None:
            self._side.append(self.world.loop.create_task(self._resume(session, receipt["hold_id"])))

    async def _resume(self, session: str, hold: str) -> None:
        await asyncio.sleep(self.world.random.uniform(0, 3))
        key = self.key()
        await self.get("resume", lambda service: service.resume(SCOPE, session, hold, idempotency_key=key))

    async def _close(self, act: Act, session: str) -> None:
        key = self.key()
        await self.get("close", lambda service: service.close(SCOPE, session, idempotency_key=key))

    async def _cancel(self, act: Act, session: str) -> None:
        key = self.key()
        await self.get("cancel", lambda service: service.cancel(SCOPE, session, idempotency_key=key))

    async def _wait(self, act: Act, session: str) -> None:
        if self.receipts:
            self._side.append(self.world.loop.create_task(self._wait_for(session, self.receipts[-1]["turn_id"])))

    async def _wait_for(self, session: str, turn_id: str) -> None:
        while True:
            turn = await self.insist("wait", lambda service: service.wait_turn(SCOPE, session, turn_id, 3_000_000))
            if isinstance(turn, PerdureError):
                self.world.problem(f"{self.name}: a turn that was accepted cannot be read: {turn}")
                return
            if turn.status in ENDED:
                break
        self.world.trace(f"{self.name} hears that turn {turn.number} is {turn.status}")
        stored = self.world.truth.rows[session].turn(turn.number)
        if turn != stored:
            self.world.problem(f"{self.name}: who waited got {turn}, stored is {stored}")

    # --- what others need

    async def answer(self, session: str, ask: str) -> None:
        """Answer a question."""
        answer = {"selected": [{"id": "yes", "value": "yes"}]}
        key = self.key()
        await self.insist("answer", lambda service: service.answer_ask(SCOPE, session, ask, answer, key))


def _short(receipt: dict[str, Any]) -> str:
    return " ".join(f"{key}={str(value)[-6:]}" for key, value in receipt.items() if value is not None)


def _summary(item: WatchItem) -> str:
    if isinstance(item, EventItem):
        return f"event {item.event.seq} {item.event.type}"
    if isinstance(item, SnapshotItem):
        return f"a snapshot at {item.snapshot.head.last_seq} with {sorted(item.snapshot.live)}"
    if isinstance(item, LiveItem):
        return f"live slot {item.slot}" if item.content else "that the live slots are cleared"
    return repr(item)


class Watcher:
    """Follows a session wherever it is served, and notes what it is shown."""

    def __init__(self, client: Client, name: str, session: str) -> None:
        self.world = client.world
        self.client = client
        self.name = name
        self.session = session
        self.cursor: int | None = None
        self.live: dict[str, bytes] = {}
        self.ended = False
        self.is_current = False
        self._inbox: asyncio.Queue[WatchItem | Exception] = asyncio.Queue()

    async def run(self) -> None:
        """Watch until the session has ended, on one node after the other."""
        while not self.ended:
            node = self.world.some_node()
            self.is_current = False
            if node is not None:
                await self._visit(node)
            await asyncio.sleep(self.world.random.uniform(0.01, 0.5))

    async def _visit(self, node: Node) -> None:
        self._inbox = inbox = asyncio.Queue()
        # The newest live slots are sent anew; what was shown of older ones counts no more.
        self.live.clear()
        process = node.process
        self.world.trace(f"{self.name} watches at {process.name} from {self.cursor}")
        pump = self.world.loop.create_task(self._pump(node.service, inbox, self.cursor), context=process.context.copy())
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

    async def _next(self, node: Node) -> WatchItem | Exception:
        while True:
            if node.process.dead:
                return Unreachable()
            try:
                async with asyncio.timeout(1.0):
                    return await self._inbox.get()
            except TimeoutError:
                continue

    async def _pump(
        self, service: EngineService, inbox: asyncio.Queue[WatchItem | Exception], after: int | None
    ) -> None:
        put = inbox.put_nowait
        items: AsyncIterator[WatchItem] = service.watch(SCOPE, self.session, after)
        try:
            async for item in items:
                self.world.outside(put, item)
            self.world.outside(put, Unreachable())
        except PerdureError as error:
            self.world.outside(put, error)

    def _interrupted(self, error: Exception) -> None:
        if isinstance(error, PerdureError) and error.status < 500:
            self.world.problem(f"{self.name}: the watch was refused: {error}")

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
        elif isinstance(item, CaughtUp):
            self.is_current = True
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
