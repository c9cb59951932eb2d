"""Those who ask for something: clients that insist until they are answered, and repeat themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
from tests.simulation.onlookers import Watcher
from tests.simulation.plan import Act, Talk
from tests.simulation.simulated_nodes import SCOPE, Unreachable

from perdure.engine.operations import EngineService
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
