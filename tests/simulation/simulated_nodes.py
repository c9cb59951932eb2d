"""Servers and workers of a simulation: the real engine on the store in memory, in a process that can be lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tests.simulation.memory_store import Link, MemoryStore
from tests.simulation.simulated_agents import DEFINITIONS
from tests.simulation.virtual_loop import Process

from perdure.engine.deployments import Deployments
from perdure.engine.engine import Engine, Settings
from perdure.engine.operations import EngineService
from perdure.engine.service import Scope
from perdure.errors import PerdureError
from perdure.hosts import runtime
from perdure.hosts.protocol import RunSpec
from perdure.records.instants import SECOND
from perdure.records.sessions import Issuer
from perdure.store.port import Deployment

if TYPE_CHECKING:
    from tests.simulation.world import World

T = TypeVar("T")

SCOPE: Final = Scope("demo", "development", Issuer("user", "ada"))
DEPLOYMENT: Final = Deployment(
    "0195d1f0-0000-7000-8000-000000000001", SCOPE.id, "digest", 1_800_000_000_000_000, "/nowhere", DEFINITIONS
)
EPOCH: Final = 1_800_000_000 * SECOND
DATA: Final = Path("/tmp/perdure-simulation")


class Unreachable(Exception):
    """Raised to clients whose request was not answered: its server is away, or fell silent."""


class Wire(Link):
    """A node's way to the store, which has moods."""

    def __init__(self, random: Random, latency: float, loses_answers: float, loses_hints: float) -> None:
        self._random = random.random
        self._latency = latency
        self._loses_answers = loses_answers
        self._loses_hints = loses_hints
        self.slowness = 1.0

    def delay(self) -> float:
        lot = self._random()
        if lot < 0.02:
            return self._latency * self.slowness * 1_000 * lot
        return self._latency * self.slowness * (0.5 + lot)

    def stop_losing(self) -> None:
        """Lose no more answers; hints may be lost for ever."""
        self._loses_answers = 0.0

    def notice(self) -> float:
        return 0.01 + 0.5 * self._random()

    def loses_answer(self) -> bool:
        return self._random() < self._loses_answers

    def hint_delays(self) -> tuple[float, ...]:
        lot = self._random()
        if lot < self._loses_hints:
            return ()
        return (0.3 * lot, 2 * lot) if lot > 0.9 else (0.0,)


class Code(Deployments):
    """Deployments whose code is in memory after a while, as if it had been imported."""

    def __init__(self, store: MemoryStore, project: Any) -> None:
        super().__init__(store, DATA)
        self._project = project

    async def place(self, deployment: Deployment) -> Path:
        return DATA

    async def handlers(self, spec: RunSpec) -> runtime.Handlers:
        if self.loaded(spec.deployment_id, spec.agent.id) is None:
            await asyncio.sleep(0.03)
            self._keep(spec.deployment_id, self._project)
        found = self.loaded(spec.deployment_id, spec.agent.id)
        assert found is not None
        return found


class Node:
    """One server or worker. It has another process, engine and view of the store each time that it is started."""

    def __init__(self, world: World, number: int, *, works: bool, offset: float) -> None:
        self.world: Final = world
        self.name: Final = f"{'worker' if works else 'server'}{number}"
        self.works: Final = works
        self.offset = offset
        plan = world.plan
        self.wire: Final = Wire(world.random, plan.latency, plan.loses_answers, plan.loses_hints)
        self.starts = 0
        self.is_up = False
        self.wanted = True
        self.process = Process(self.name)
        self.engine: Engine
        self.service: EngineService
        self.store: MemoryStore
        self._asked: dict[asyncio.Future[Any], None] = {}

    def clock(self) -> int:
        """Return what the node takes for the time."""
        return EPOCH + int((self.world.loop.time() + self.offset) * SECOND)

    # --- life

    def start(self) -> None:
        """Start a new process of this node."""
        self.starts += 1
        self.wanted = True
        self.process = Process(f"{self.name}.{self.starts}")
        self.process.offset = self.offset
        self.world.trace(f"{self.process.name} starts")
        self.process.context.copy().run(self._begin)

    def _begin(self) -> None:
        plan = self.world.plan
        world = self.world
        outside = world.loop.outside.context
        self.store = MemoryStore(world.truth, self.wire, shared=plan.shared, outside=outside, name=self.process.name)
        settings = Settings(sleep_after=plan.sleep_after, drain=2.0, works=self.works, lease=plan.lease)
        code = Code(self.store, self.world.handlers.project)
        self.engine = Engine(self.store, DATA, code, None, settings, self.clock, machine=self.name)
        self.service = EngineService(self.engine)
        self.world.loop.create_task(self._open(self.process))

    async def _open(self, process: Process) -> None:
        try:
            await self.store.open()
            await self.engine.start()
        except PerdureError as error:
            self.world.trace(f"{process.name} cannot start: {error}")
            self.world.outside(self.crash, 0.5)
        else:
            self.is_up = True
            self.world.trace(f"{process.name} is up")

    def set_clock(self, offset: float) -> None:
        """Set the clock of the machine."""
        self.offset = self.process.offset = offset

    def crash(self, away: float = 0.0) -> None:
        """Lose the process, whatever it is at, and start another one `away` seconds later."""
        if self.process.dead:
            return
        self.world.trace(f"{self.process.name} crashes")
        self.world.loop.kill(self.process)
        self._gone(away)

    def _gone(self, away: float) -> None:
        self.is_up = False
        self.store.forget()
        asked, self._asked = self._asked, {}
        for future in asked:
            self._fail(future)
        if self.wanted:
            self.world.loop.call_later(away + 0.01, self._start_again)

    def _start_again(self) -> None:
        if self.wanted and self.process.dead:
            self.start()

    def drain(self, away: float) -> None:
        """Stop gracefully, then start again; whoever is impatient kills it after a while."""
        if not self.is_up:
            return
        self.world.trace(f"{self.process.name} is told to stop")
        self.is_up = False
        process = self.process
        self.world.loop.create_task(self._stop(process, away), context=process.context.copy())
        self.world.loop.call_later(40, lambda: self.crash(away) if self.process is process else None)

    async def _stop(self, process: Process, away: float) -> None:
        await self.engine.stop()
        await self.store.close()
        self.world.outside(self._ended, process, away)

    def _ended(self, process: Process, away: float) -> None:
        if self.process is process and not process.dead:
            self.world.trace(f"{process.name} has stopped")
            self.world.loop.kill(process)
            self._gone(away)

    # --- requests of clients

    async def ask(self, operation: Callable[[EngineService], Awaitable[T]], patience: float = 10.0) -> T:
        """Do an operation here, as a request over the network; raises `Unreachable`, or what the operation raises."""
        if not self.is_up:
            raise Unreachable
        loop = self.world.loop
        future: asyncio.Future[T] = loop.create_future()
        self._asked[future] = None
        timer = loop.call_later(patience, self._fail, future)
        loop.create_task(self._serve(operation, future), context=self.process.context.copy())
        try:
            return await future
        finally:
            timer.cancel()
            self._asked.pop(future, None)

    async def _serve(self, operation: Callable[[EngineService], Awaitable[T]], future: asyncio.Future[T]) -> None:
        try:
            answer: Any = await operation(self.service)
        except PerdureError as error:
            answer = error
        self.world.outside(_answer, future, answer)

    def _fail(self, future: asyncio.Future[Any]) -> None:
        if not future.done():
            future.set_exception(Unreachable(self.name))


def _answer(future: asyncio.Future[Any], answer: Any) -> None:
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
