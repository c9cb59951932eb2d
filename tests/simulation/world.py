"""One run of one seed: nodes and clients around one store, things that go wrong, then peace, then the checks."""

from __future__ import annotations

import asyncio
import logging
import random as global_random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from tests.simulation import checks
from tests.simulation.clients import Client
from tests.simulation.onlookers import Follower
from tests.simulation.plan import Mishap, Plan, draw
from tests.simulation.simulated_agents import Handlers, Note
from tests.simulation.simulated_nodes import DATA, DEPLOYMENT, EPOCH, SCOPE, Node
from tests.simulation.truth import Truth
from tests.simulation.virtual_loop import PROCESS, Stuck, VirtualLoop, here

from perdure.errors import StoreError
from perdure.records import ids
from perdure.records.instants import SECOND
from perdure.records.sessions import SessionHead
from perdure.rules.commands import FencedCommand, RunLost
from perdure.rules.dispatch import wake_at
from perdure.store.batch import Outcome, Request

PEACE: Final = 150.0
"""Seconds after which nothing may be left to do, once nothing goes wrong any more."""

LAST_BREATH: Final = 0.1
"""Seconds for which handlers may go on after their worker's lease has run out, or after it stood still."""

_LOGGER: Final = logging.getLogger("perdure")


@dataclass(frozen=True)
class Report:
    """What came of a seed: what is wrong, all that was stored and done, and the trace if one was asked for."""

    seed: int
    problems: list[str]
    history: list[str]
    trace: list[str]


class World(logging.Handler):
    """See the module. It hears what the engine logs, too."""

    def __init__(self, plan: Plan, *, traced: bool = False) -> None:
        super().__init__()
        self.plan: Final = plan
        self.loop: Final = VirtualLoop(Random(f"loop {plan.seed}"), until=3_000)
        self.random: Final = Random(f"world {plan.seed}")
        self.problems: list[str] = []
        self.ledger: list[Note] = []
        self.bad_inits: dict[str, int] = {}
        self.side: list[asyncio.Task[Any]] = []
        self.watches: list[asyncio.Task[Any]] = []
        self.is_troubled = True
        self._traced = traced
        self._lines: list[str] = []
        self._ids = 0
        self._commits = 0
        self._workers: dict[str, str] = {}
        self._store_offset = self.random.choice((0.0, 1800.0))
        self.truth: Final = Truth(self._store_clock)
        self.truth.on_commit = self._watch_commit
        self.handlers: Final = Handlers(self)
        offsets = plan.offsets
        self.nodes: Final = [
            Node(self, number, works=number < plan.workers, offset=offsets[number])
            for number in range(plan.workers + plan.servers)
        ]
        self.clients: Final = [Client(self, number, talk) for number, talk in enumerate(plan.talks)]
        self._followers: Final = [Follower(self, number) for number in range(plan.feeds)]
        self.loop.on_failure = self._on_failure

    def _store_clock(self) -> int:
        """Return the time of the database; an embedded store has its node's."""
        if not self.plan.shared:
            return self.nodes[0].clock()
        return EPOCH + int((self.loop.time() + self._store_offset) * SECOND)

    # --- for those in it

    def trace(self, text: str) -> None:
        """Note what happens, for whoever reads along."""
        if self._traced:
            self._lines.append(f"{self.loop.time():9.4f} {here():10} {text}")

    def problem(self, text: str) -> None:
        """Note that something is wrong."""
        self.problems.append(f"at {self.loop.time():.4f}: {text}")
        self.trace(f"WRONG: {text}")

    def outside(self, callback: Callable[..., object], *args: Any) -> None:
        """Call something that belongs to no node."""
        self.loop.call_soon(callback, *args, context=self.loop.outside.context.copy())

    def some_node(self) -> Node | None:
        """Return a node that looks as if it could answer."""
        up = [node for node in self.nodes if node.is_up]
        return up[int(self.random.random() * len(up))] if up else None

    def effect(self, note: Note) -> None:
        """Enter what a handler has done into the ledger; a worker whose lease is over does nothing any more."""
        self.ledger.append(note)
        worker = self._workers.get(note.run)
        process = PROCESS.get()
        if not self.plan.shared or worker is None or note.clings or process is None:
            return
        lease = self.truth.leases[worker]
        since = max((lease.expires_at - EPOCH) / SECOND - self._store_offset, process.thawed_at)
        if note.at > since + LAST_BREATH:
            self.problem(f"{note.place} works on turn {note.turn} {note.at - since:.3f} s after its lease has run out")

    # --- what is seen of it

    def _watch_commit(self, asker: str, before: SessionHead | None, request: Request, outcome: Outcome) -> None:
        command = request.command
        if self._traced:
            result = "done" if outcome.committed else f"no: {outcome.answer!r}"[:60]
            fence = before.fence if before else 0
            self.trace(f"    {asker}'s {type(command).__name__} of {command.session_id[-6:]}, fence {fence}: {result}")
        if outcome.committed is None:
            return
        self._commits += 1
        for mishap in self.plan.mishaps:
            if mishap.commit == self._commits:
                self._befall(mishap, next((n for n in self.nodes if n.process.name == asker), self.nodes[mishap.node]))
        head = outcome.committed.head
        if head.run is not None and head.worker is not None:
            self._workers.setdefault(head.run.id, head.worker)
        if before is None:
            return
        if isinstance(command, FencedCommand) and command.fence != before.fence:
            self.problem(f"a stale owner's {type(command).__name__} was accepted for session {before.id}")
        if isinstance(command, RunLost) and before.worker != command.worker and self.truth.is_alive(before.worker):
            self.problem(f"the run of session {before.id} was taken from a worker that is alive")

    def _on_failure(self, context: dict[str, Any]) -> None:
        self.problem(f"the loop: {context.get('message')}: {context.get('exception')!r}")

    def emit(self, record: logging.LogRecord) -> None:
        """Hear what the engine logs: an exception that it did not expect is a problem."""
        self.trace(f"log: {record.getMessage()}")
        if record.levelno < logging.ERROR or record.name != "perdure.engine" or not record.exc_info:
            return
        if not isinstance(record.exc_info[1], StoreError):
            self.problem(f"the engine logs {record.getMessage()!r}: {record.exc_info[1]!r}")

    # --- the run

    def run(self) -> Report:
        """Live through the plan and check all that is left."""
        with self._nothing_real():
            try:
                self.loop.run(self._live())
            except Stuck as stuck:
                self.problem(f"stuck: {stuck}")
        self.problems += checks.of(self)
        return Report(self.plan.seed, self.problems, checks.history(self), self._lines)

    @contextmanager
    def _nothing_real(self) -> Iterator[None]:
        """Take ids and chance from the seed for the time being, and what is logged to the trace."""
        state, make = global_random.getstate(), ids.uuid7
        level, propagate, handlers = _LOGGER.level, _LOGGER.propagate, _LOGGER.handlers
        global_random.seed(self.plan.seed)
        ids.uuid7 = self._new_id  # type: ignore[assignment,attr-defined]
        _LOGGER.setLevel(logging.INFO if self._traced else logging.ERROR)
        _LOGGER.propagate, _LOGGER.handlers = False, [self]
        try:
            yield
        finally:
            ids.uuid7 = make  # type: ignore[attr-defined]
            global_random.setstate(state)
            _LOGGER.propagate, _LOGGER.handlers = propagate, handlers
            _LOGGER.setLevel(level)

    def _new_id(self) -> str:
        process = PROCESS.get() or self.loop.outside
        now = 1_800_000_000_000 + int((self.loop.time() + process.offset) * 1000)
        process.last_id = now = max(now, process.last_id)
        self._ids += 1
        return f"{now >> 16:08x}-{now & 0xFFFF:04x}-7000-8000-{self._ids:012x}"

    async def _live(self) -> None:
        self.truth.put_deployment(DEPLOYMENT, b"")
        self.truth.promote(SCOPE.id, DEPLOYMENT.id)
        for node in self.nodes:
            node.start()
        self.watches += [self.loop.create_task(follower.run()) for follower in self._followers]
        talking = [self.loop.create_task(client.run()) for client in self.clients]
        for mishap in self.plan.mishaps:
            if mishap.commit is None:
                self.loop.call_later(mishap.at, self._befall, mishap, self.nodes[mishap.node])
        await asyncio.sleep(self.plan.length)
        self._heal()
        await self._come_to_rest(talking)
        await self._stop()

    # --- what goes wrong

    def _befall(self, mishap: Mishap, node: Node) -> None:
        if not self.is_troubled:
            return
        act = getattr(self, f"_{mishap.kind}")
        if mishap.steps:
            # Between any two steps, and not only where a node waits.
            node.process.steps = mishap.steps
            node.process.fuse = lambda: act(node, mishap.seconds)
        else:
            act(node, mishap.seconds)

    def _after(self, seconds: float, callback: Callable[..., object], *args: Any) -> None:
        self.loop.call_later(seconds, callback, *args)

    def _crash(self, node: Node, seconds: float) -> None:
        node.crash(seconds)

    def _drain(self, node: Node, seconds: float) -> None:
        node.drain(seconds)

    def _freeze(self, node: Node, seconds: float) -> None:
        process = node.process
        self.trace(f"{process.name} stands still for {seconds:.2f} s")
        self.loop.freeze(process)
        self._after(seconds, self._thaw, process)

    def _thaw(self, process: Any) -> None:
        self.trace(f"{process.name} goes on")
        self.loop.thaw(process)

    def _cut(self, node: Node, seconds: float) -> None:
        self.trace(f"{node.name} is cut off from the store for {seconds:.2f} s")
        node.wire.up = False
        self._after(seconds, self._mend, node)

    def _deaf(self, node: Node, seconds: float) -> None:
        self.trace(f"{node.name} hears no hints for {seconds:.2f} s")
        node.wire.hints_up = False
        self._after(seconds, self._mend, node)

    def _slow(self, node: Node, seconds: float) -> None:
        self.trace(f"the way from {node.name} to the store is slow for {seconds:.2f} s")
        node.wire.slowness = 50.0
        self._after(seconds, self._mend, node)

    def _mend(self, node: Node) -> None:
        node.wire.up = node.wire.hints_up = True
        node.wire.slowness = 1.0

    def _down(self, _: Node, seconds: float) -> None:
        self.trace(f"the store is down for {seconds:.2f} s")
        self.truth.up = False
        self._after(seconds, self._up)

    def _up(self) -> None:
        self.truth.up = True

    def _clock(self, node: Node, _: float) -> None:
        # An embedded store goes by this very clock: set back, it would rightly wait for an hour.
        node.set_clock(node.offset + (self.random.choice((-3600.0, 3600.0)) if self.plan.shared else 3600.0))
        self.trace(f"the clock of {node.name} is now off by {node.offset} s")
        if node.is_up:
            self.loop.call_soon(node.engine.look_again, context=node.process.context.copy())

    # --- peace

    def _heal(self) -> None:
        self.trace("--- nothing goes wrong from here on")
        self.is_troubled = False
        self._up()
        for node in self.nodes:
            self._mend(node)
            node.wire.stop_losing()
            node.process.fuse = None
            self.loop.thaw(node.process)

    async def _come_to_rest(self, talking: list[asyncio.Task[None]]) -> None:
        """Release holds, answer questions, and wait until nothing is left to do and all watchers have been told."""
        until = self.loop.time() + PEACE
        while self.loop.time() < until:
            await self._take_care()
            busy = [task for task in (*talking, *self.side) if not task.done()]
            if not busy and all(self._is_settled(entry.head) for entry in self.truth.entries.values()):
                break
            await asyncio.sleep(0.5)
        else:
            self._complain(talking)
            return
        for task in (*talking, *self.side):
            task.result()
        await self._tell_all()

    def _complain(self, talking: list[asyncio.Task[None]]) -> None:
        unsettled = [repr(e.head) for e in self.truth.entries.values() if not self._is_settled(e.head)]
        waiting = [client.name for client, task in zip(self.clients, talking, strict=True) if not task.done()]
        told = "\n".join([*unsettled, f"clients: {waiting}", self.loop.waiting()])
        self.problem(f"{PEACE:g} s after the last mishap there is still something to do:\n{told}")

    def _is_settled(self, head: SessionHead) -> bool:
        at_rest = not head.queued and head.active is None and head.winding is None and not head.holds
        if head.is_terminal:
            return head.run is None
        # What an embedded engine had of an idle session is gone with it; the next input finds out.
        gone = not self.plan.shared and head.worker != self.nodes[0].engine.worker_id
        ready = head.run is None or head.run.phase == "ready" or gone
        return at_rest and ready and head.status == "open" and wake_at(head) is None

    async def _take_care(self) -> None:
        client = self.clients[0]
        for entry in list(self.truth.entries.values()):
            head = entry.head
            if head.is_terminal:
                continue
            for hold in head.holds:
                await client._resume(head.id, hold.id)
            for ask in head.active.asks if head.active else ():
                await client.answer(head.id, ask)

    async def _tell_all(self) -> None:
        watchers = [*self._followers, *(watcher for client in self.clients for watcher in client.watchers)]
        until = self.loop.time() + 15
        while lags := [lag for watcher in watchers if (lag := watcher.lag(self.truth))] + self._strays():
            if self.loop.time() > until:
                self.problems += lags
                return
            await asyncio.sleep(0.25)

    def _strays(self) -> list[str]:
        """Return which engines drive other sessions than those that are their own."""
        found = []
        for node in self.nodes:
            if node.is_up:
                name = node.engine.worker_id
                own = [e.head.id for e in self.truth.entries.values() if e.head.run and e.head.worker == name]
                if node.engine.awake != len(own):
                    found.append(f"{node.name} drives {node.engine.awake} sessions, its own are {own}")
        return found

    async def _stop(self) -> None:
        """Stop all nodes gracefully: nothing is left that belongs to one."""
        for node in self.nodes:
            node.wanted = False
            if node.is_up:
                node.drain(0)
            else:
                node.crash()
        until = self.loop.time() + 30
        while not all(node.process.dead for node in self.nodes):
            if self.loop.time() > until:
                left = [node.name for node in self.nodes if not node.process.dead]
                self.problem(f"{left} do not stop:\n{self.loop.waiting()}")
                return
            await asyncio.sleep(0.1)


def run(seed: int, *, traced: bool = False) -> Report:
    """Run one seed."""
    (DATA / "runs").mkdir(parents=True, exist_ok=True)
    return World(draw(seed), traced=traced).run()
