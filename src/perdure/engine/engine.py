"""The engine: owns sessions, and makes state move. It reacts to commits and to time, and polls for nothing."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from math import inf
from pathlib import Path
from typing import Final

import msgspec

from perdure.crashpoints import areach
from perdure.engine.clock import SharedClock
from perdure.engine.deployments import Deployments, agent_of
from perdure.engine.driver import SessionDriver
from perdure.engine.logbook import Logbook
from perdure.engine.lookout import SELDOM, Lookout
from perdure.engine.membership import Member
from perdure.engine.ownership import Onlooker, Ownership, SoleOwner
from perdure.engine.specs import RunDriver, spec_of
from perdure.engine.timers import Timers
from perdure.engine.waits import TurnWaits
from perdure.engine.watches import Hub
from perdure.errors import PerdureError, SessionNotFound, StaleFence
from perdure.hosts.inline import InlineHost
from perdure.hosts.protocol import Guest, Host, RunSpec
from perdure.records import instants
from perdure.records.definitions import AgentDefinition
from perdure.records.ids import new_id
from perdure.records.sessions import SessionHead
from perdure.rules.commands import Permit, Tick
from perdure.rules.dispatch import is_at_rest, is_idle, needs_owner, wake_at
from perdure.store.leases import Leases
from perdure.store.port import Committed, Store

log = logging.getLogger("perdure.engine")

_PAGE: Final = 500
_SWEEP: Final = 1.0
_UNHINTED: Final = 1.0
_SECOND_LOOK: Final = 5 * instants.SECOND


class Settings(msgspec.Struct, frozen=True):
    """How an engine behaves. `sleep_after` is how many seconds an idle inline session stays in memory; `awake` how many
    idle ones may; `drain` how many seconds a graceful stop waits for running inline turns. Where a store is shared,
    `works` tells whether this engine owns sessions, and `lease` for how many seconds others wait for it."""

    sleep_after: float = 60.0
    awake: int = 1_000
    drain: float = 30.0
    works: bool = True
    lease: float = 15.0


class Engine:
    """Drives the sessions of one worker. Use it as: `start`, then work, then `stop`."""

    def __init__(
        self,
        store: Store,
        data: Path,
        deployments: Deployments,
        process_host: Host | None = None,
        settings: Settings | None = None,
        clock: Callable[[], int] = instants.now,
        machine: str = "",
    ) -> None:
        """Take what the engine works with. `machine` names the one whose disk `data` is on."""
        self.store: Final = store
        self.data: Final = data
        self.deployments: Final = deployments
        self.settings: Final = settings or Settings()
        self.clock: Final = SharedClock(clock)
        self.machine: Final = machine
        self.owner: Final = self._owner(store.leases)
        self.hub: Final = Hub()
        self.waits: Final = TurnWaits()
        self.draining = False
        self.timers: Final = Timers(store.due, self._tick, self.clock, self._fresh)
        self._lookout: Final = Lookout(store, self._known, self._missed, self.hub.doubt_live)
        self._logbook: Final = Logbook(store, self.log_path, self._present_runs)
        self._inline: Final = InlineHost(deployments.handlers)
        self._hosts: Final[Mapping[str, Host | None]] = {"inline": self._inline, "process": process_host}
        self._drivers: dict[str, SessionDriver] = {}
        self._resting: OrderedDict[str, float] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsubscribe: Callable[[], None] | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._settled = asyncio.Event()

    def _owner(self, leases: Leases | None) -> Ownership:
        if leases is None:
            return SoleOwner()
        if not self.settings.works:
            return Onlooker()
        return Member(
            leases,
            self.machine,
            self.settings.lease,
            claimed=self._claimed,
            lost=self._lease_lost,
            is_hinted=lambda: self.store.hints_heard,
            clock=self.clock,
        )

    @property
    def worker_id(self) -> str:
        """The name under which runs are begun here; a worker that loses its lease goes on under another."""
        return self.owner.worker_id

    # --- life

    async def start(self) -> None:
        """Take over what is this engine's: adopt or settle what ran, and start what may run."""
        (self.data / "runs").mkdir(parents=True, exist_ok=True)
        self._unsubscribe = self.store.subscribe(self._committed, self._matters)
        await self.owner.start()
        if self.owner.shares:
            self._lookout.start()
        else:
            await self._take_all()
        if self.owner.shares and self.settings.works:
            self._logbook.start()
        if self.settings.works:
            self.timers.start()
            self._schedule_sweep()

    async def _take_all(self) -> None:
        after = ""
        while page := await self.store.unsettled(after, _PAGE):
            for head in page:
                self._drive(head).poke()
            after = page[-1].id

    async def stop(self) -> None:
        """Stop gracefully: let running inline turns finish for a while, hand sessions over, let go of processes."""
        self.draining = True
        self.owner.stop_claiming()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self.timers.stop()
        await self._drain()
        await asyncio.gather(*(driver.detach() for driver in self._drivers.values()))
        await self._lookout.stop()
        await self._logbook.stop()
        for task in self._tasks:
            task.cancel()
        for host in self._hosts.values():
            if host is not None:
                await host.close()
        await self.owner.stop()
        if self._unsubscribe is not None:
            self._unsubscribe()

    async def _drain(self) -> None:
        """Hand each inline session over once no turn of it runs; wait for that at most as long as the settings say."""
        for driver in list(self._drivers.values()):
            if driver.is_settled:
                self.rest(driver)
        try:
            async with asyncio.timeout(self.settings.drain):
                while any(self._holds_work(driver) for driver in self._drivers.values()):
                    self._settled.clear()
                    await self._settled.wait()
        except TimeoutError:
            busy = [d.head.id for d in self._drivers.values() if self._holds_work(d)]
            log.warning("stopping while %d inline turns still run; they will be interrupted", len(busy))
        inline = [d for d in self._drivers.values() if d.head.host == "inline" and d.head.run is not None]
        await asyncio.gather(*(self._end_inline(driver) for driver in inline))

    async def _end_inline(self, driver: SessionDriver) -> None:
        try:
            await driver.end("server_stopped")
        except StaleFence:
            self.let_go(driver)
        except Exception:
            # The stop goes on for all others, and processes are to be let go of.
            log.exception("session %s could not be ended; its next worker settles it", driver.head.id)

    def _holds_work(self, driver: SessionDriver) -> bool:
        """Whether a stop has to wait: not for turns that wait for a person, whom nobody hears any more."""
        head = driver.head
        at_work = head.active is not None and not head.active.asks
        return head.host == "inline" and (at_work or head.winding is not None or not driver.is_settled)

    # --- what is owned

    async def _claimed(self, session_ids: list[str]) -> None:
        """Drive sessions that were claimed for this engine."""
        for session_id in session_ids:
            head = await self.store.head(session_id)
            # The run of a worker that is gone is settled also when nothing is to be done: nobody else would, later.
            if head is None or (head.run is None and not needs_owner(head)) or not await self.owner.may_drive(head):
                continue
            if session_id in self._drivers or not self.owner.works:
                continue
            self.timers.note(session_id, wake_at(head))
            self._drive(head).poke()

    async def _lease_lost(self, reason: str) -> None:
        """Stop all handlers without a word to the store, which may be others' to write to by now."""
        drivers = list(self._drivers.values())
        self._drivers.clear()
        self._resting.clear()
        log.error("%d sessions are let go of: %s", len(drivers), reason)
        ends = await asyncio.gather(*(driver.detach() for driver in drivers), return_exceptions=True)
        for driver, end in zip(drivers, ends, strict=True):
            if isinstance(end, BaseException):
                log.error("session %s could not be let go of", driver.head.id, exc_info=end)

    def let_go(self, driver: SessionDriver) -> None:
        """Stop driving a session that another worker has claimed: its handler stops here, and writes nothing more."""
        if self._drivers.get(driver.head.id) is driver:
            self.forget(driver)
            log.warning("session %s has another owner now; what ran of it here is stopped", driver.head.id)
            self._spawn(driver.detach())

    # --- what was missed

    def _fresh(self) -> float:
        """For how many seconds a list of sessions that time will wake is good enough."""
        if not self.owner.shares:
            return inf
        return SELDOM if self.store.hints_heard else _UNHINTED

    def _known(self) -> dict[str, int]:
        """Return the sessions that somebody here waits for news of, with the number of the newest event heard of."""
        return {
            **self.hub.known(),
            **dict.fromkeys(self.waits.sessions(), 0),
            **{driver.head.id: driver.head.last_seq for driver in self._drivers.values()},
        }

    def _present_runs(self) -> list[str]:
        return [driver.head.run.id for driver in self._drivers.values() if driver.head.run is not None]

    def _missed(self, head: SessionHead) -> None:
        self._committed(Committed(head, None, (), None, live=True))

    # --- news

    def _matters(self, session_id: str) -> bool:
        """Whether somebody here drives, watches or waits for a session."""
        return session_id in self._drivers or self.hub.watches(session_id) or self.waits.waits_for(session_id)

    def _committed(self, news: Committed) -> None:
        head = news.head
        self.timers.note(head.id, wake_at(head))
        self.hub.committed(news)
        driver = self._drivers.get(head.id)
        self.waits.committed(news, driver.head if driver else None, driver.running if driver else None)
        if driver is None:
            if not needs_owner(head) or not self.owner.wants(news):
                return
            driver = self._drive(head)
        before = driver.head.run
        if before is not None and (head.run is None or head.run.id != before.id):
            self._logbook.ended(before.id)
        driver.committed(news)
        if self.draining:
            self._settled.set()

    def _drive(self, head: SessionHead) -> SessionDriver:
        driver = SessionDriver(self, head)
        self._drivers[head.id] = driver
        return driver

    async def _tick(self, session_id: str) -> None:
        """Do what a session's wake time makes due, then let its driver look again."""
        try:
            if not await self._is_due_here(session_id):
                return
            await areach("engine.tick.before")
            await self.store.apply(Tick(session_id=session_id, hold_id=new_id()))
            await areach("engine.tick.after")
        except SessionNotFound:
            return
        except PerdureError as error:
            log.error("session %s: its timer could not be served, trying again: %s", session_id, error)
            self.timers.note(session_id, self.clock() + instants.SECOND)
            return
        driver = self._drivers.get(session_id)
        if driver is not None:
            driver.poke()

    async def _is_due_here(self, session_id: str) -> bool:
        """Whether time has something to do in a session, and it is for this engine to see to it."""
        driver = self._drivers.get(session_id)
        head = driver.head if driver is not None else await self.store.head(session_id)
        at = None if head is None else wake_at(head)
        if head is None or at is None:
            return False
        if at <= self.clock() and (driver is not None or self.owner.serves_timer_of(head)):
            return True
        if driver is not None:
            self.timers.note(session_id, at)
            return False
        # Whoever serves it may be lost before: look again.
        self.timers.note(session_id, max(at, self.clock() + _SECOND_LOOK))
        return False

    # --- rest and sleep

    def rest(self, driver: SessionDriver) -> None:
        """Hear from a driver that it has nothing to do just now."""
        head = driver.head
        if head.run is None:
            if self._drivers.get(head.id) is driver:
                self.forget(driver)
        elif self.draining and head.host == "inline" and is_at_rest(head):
            self._spawn(self._end_inline(driver))
        elif head.host == "inline" and head.run.phase == "ready" and is_idle(head):
            self._resting[head.id] = asyncio.get_running_loop().time() + self.settings.sleep_after
            self._resting.move_to_end(head.id)
        if self.draining:
            self._settled.set()

    def forget(self, driver: SessionDriver) -> None:
        """Drop a driver from memory."""
        self._drivers.pop(driver.head.id, None)
        self._resting.pop(driver.head.id, None)

    def _schedule_sweep(self) -> None:
        self._sweeper = asyncio.get_running_loop().call_later(_SWEEP, self._sweep)

    def _sweep(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._resting:
            session_id, until = next(iter(self._resting.items()))
            if until > now and len(self._resting) <= self.settings.awake:
                break
            del self._resting[session_id]
            driver = self._drivers.get(session_id)
            if driver is not None and driver.is_settled and is_idle(driver.head):
                self._spawn(self._sleep(driver, "slept"))
        self._schedule_sweep()

    async def _sleep(self, driver: SessionDriver, reason: str) -> None:
        try:
            await driver.sleep(reason)
        except PerdureError as error:
            log.warning("session %s could not be put to sleep: %s", driver.head.id, error)

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def look_again(self) -> None:
        """Let timers and drivers look again, after something other than a head has changed: a promotion, the clock."""
        self.timers.look_again()
        for driver in list(self._drivers.values()):
            driver.poke()

    # --- what drivers need

    def host(self, kind: str) -> Host:
        """Return a host by kind."""
        host = self._hosts[kind]
        if host is None:
            raise PerdureError(f"This worker has no {kind} host.")
        return host

    async def spec(self, head: SessionHead) -> RunSpec:
        """Return what a host needs for the session's present run."""
        assert head.run is not None
        deployment = await self.deployments.get(head.deployment)
        agent = agent_of(deployment, head.agent)
        computer = None if head.computer is None else str(self.data / "computers" / head.computer.id)
        return spec_of(
            head,
            agent=agent,
            source=str(await self.deployments.place(deployment)),
            log_path=str(self.log_path(head.run.id)),
            computer_path=computer,
        )

    def log_path(self, run_id: str) -> Path:
        """Return where a run's log is."""
        return self.data / "runs" / f"{run_id}.log"

    def start_inline(self, head: SessionHead, driver: SessionDriver) -> Guest | None:
        """Start the runtime of an inline run that its permit made ready at once."""
        deployment = self.deployments.known(head.deployment)
        handlers = self.deployments.loaded(head.deployment, head.agent)
        if head.host != "inline" or deployment is None or handlers is None or head.run is None:
            return None
        agent = agent_of(deployment, head.agent)
        log_path = str(self.log_path(head.run.id))
        source = str(self.deployments.known_place(deployment))
        spec = spec_of(head, agent=agent, source=source, log_path=log_path, computer_path=None)
        return self._inline.start_ready(handlers, spec, RunDriver(driver, head.run.id, head.fence))

    def permit(self, session_id: str) -> Permit | None:
        """Return the leave to start a turn of an awake session in the commit that admits it."""
        driver = self._drivers.get(session_id)
        if self._begins_nothing or driver is None or not driver.has_guest or driver.is_outdated:
            return None
        return Permit(self.worker_id)

    def permit_new(self, deployment_id: str, agent: AgentDefinition) -> Permit | None:
        """Return the leave to begin a new session's first run in the commit that creates it.

        None for an inline agent that has an `init` or whose code is not loaded yet: its run is not ready at once.
        """
        prepared = not agent.has_init and self.deployments.loaded(deployment_id, agent.id) is not None
        if self._begins_nothing or (agent.host == "inline" and not prepared):
            return None
        return Permit(self.worker_id, new_id(), self.machine)

    @property
    def _begins_nothing(self) -> bool:
        return self.draining or not self.owner.works

    def head_in_memory(self, session_id: str) -> SessionHead | None:
        """Return the newest head of a session that this engine drives, where nobody else may have a newer one."""
        if self.owner.shares:
            return None
        driver = self._drivers.get(session_id)
        return driver.head if driver is not None else None

    def running_turn(self, session_id: str, turn_id: str) -> int | None:
        """Return the number of a turn that runs here, as far as this engine has heard."""
        driver = self._drivers.get(session_id)
        active = driver.head.active if driver is not None else None
        return active.number if active is not None and active.id == turn_id else None

    @property
    def awake(self) -> int:
        """How many sessions have a driver in memory."""
        return len(self._drivers)
