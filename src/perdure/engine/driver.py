"""A session's driver: makes the world follow the session's head, one action after another.

A driver exists while its session has a run, or something that may run. It holds no state of its own that matters: a new
driver with the same head does the same.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from perdure.crashpoints import areach, reach
from perdure.engine import briefing
from perdure.engine.specs import RunDriver
from perdure.engine.translate import to_command
from perdure.errors import NotSupported, PerdureError, ProcessStartFailed, StaleFence, StoreError
from perdure.hosts.protocol import Answered, Begin, Guest, Request
from perdure.hosts.turns import is_cancelled
from perdure.records.ids import new_id
from perdure.records.sessions import Ask, QueuedTurn, RunState, SessionHead
from perdure.records.steps import Step, StepTold
from perdure.rules import commands as c
from perdure.rules.dispatch import WAIT, is_at_rest, next_action
from perdure.store.port import Committed

if TYPE_CHECKING:
    from perdure.engine.engine import Engine

log = logging.getLogger("perdure.engine")

STOP_GRACE: Final = 10.0
LAST_MOMENT: Final = 1.0
_BEGINNINGS: Final = frozenset({"start_run", "start_guest", "start_turn", "resume_computer", "hibernate", "retire"})
_RETRY_FIRST: Final = 0.05
_RETRY_LONGEST: Final = 5.0


class SessionDriver:
    """Drives one session."""

    __slots__ = ("_acting", "_engine", "_guest", "_let_go", "_loss", "_unbriefed", "_untold", "head", "running")

    def __init__(self, engine: Engine, head: SessionHead) -> None:
        self._engine = engine
        self.head = head
        self.running: QueuedTurn | None = None
        self._guest: Guest | None = None
        self._untold: list[Begin] = []
        self._loss: tuple[str, str] | None = None
        self._unbriefed = False
        self._acting: asyncio.Task[None] | None = None
        self._let_go = False

    # --- news from the store

    def committed(self, news: Committed) -> None:
        """Follow a commit: hand a started turn to the runtime, pass on what concerns it, and act."""
        if self._is_taken_over(news):
            self._engine.let_go(self)
            return
        before, self.head = self.head, news.head
        self._follow(before, news)
        self.poke()

    def _follow(self, before: SessionHead, news: Committed) -> None:
        if news.head.active is None:
            self.running = None
        if news.head.run is None:
            self._guest, self._unbriefed = None, False
            self._untold.clear()
        if news.started is not None:
            self.running = news.started
        try:
            self._tell(before, news)
        except Exception:
            log.exception("session %s: its runtime could not be told of a commit; it is told again", self.head.id)
            self._unbriefed = True

    def _tell(self, before: SessionHead, news: Committed) -> None:
        if self._unbriefed:
            # It is told all at once, so that nothing overtakes what it has missed.
            return
        started = news.started
        if started is not None:
            self._begin(Begin(started.number, started.id, started.input_json, started.created_at))
        if self._guest is not None:
            briefing.pass_on(self._guest, before, news)
            self._unbriefed = briefing.is_left_untold(before, news)

    def _is_taken_over(self, news: Committed) -> bool:
        """Whether another worker has claimed the session: nobody bumps its fence but who claims it."""
        head = news.head
        return head.fence > self.head.fence and head.worker != self._engine.worker_id

    def _begin(self, begin: Begin) -> None:
        if self._guest is None and self.head.run is not None and self._loss is None:
            self._guest = self._engine.start_inline(self.head, self)
        reach("engine.begin.before")
        if self._guest is None:
            self._untold.append(begin)
        else:
            self._guest.tell(begin)
        reach("engine.begin.after")

    # --- what the runtime asks

    async def handle(self, fence: int, request: Request) -> Any:
        """Commit what a runtime asks and return the answer."""
        label = type(request).__name__
        await areach("engine.request.before", label)
        start = not (self._engine.draining or self.is_outdated)
        if self._let_go:
            raise StaleFence(self.head.id)
        command = to_command(self.head.id, fence, start, request)
        try:
            applied = await self._engine.store.apply(command)
        except StaleFence:
            if fence == self.head.fence:
                self._engine.let_go(self)
            raise
        await areach("engine.request.after", label)
        receipt = applied.receipt
        if isinstance(receipt, StepTold):
            return [receipt.status, receipt.outcome_json, receipt.elapsed]
        if isinstance(receipt, Step):
            return receipt.status
        return self._answer_to_question(receipt) if isinstance(receipt, Ask) else receipt

    def _answer_to_question(self, ask: Ask) -> str:
        """A question that was asked before may have its answer by now: say so again."""
        if ask.status != "pending" and self._guest is not None:
            self._guest.tell(Answered(ask.turn, ask.id, ask.answer_json, ask.responder))
        return ask.id

    def runtime_lost(self, fence: int, reason: str) -> None:
        """Hear that the runtime which was given this fence is gone without having been asked to go."""
        if self.head.run is not None and self.head.fence == fence and self._loss is None:
            self._loss = (self.head.run.id, reason)
            self._guest = None
            self.poke()

    # --- actions

    def poke(self) -> None:
        """Start to act if there is something to do and nothing is being done."""
        if self._let_go:
            return
        if self._acting is None and self._wanted() != WAIT:
            self._acting = asyncio.get_running_loop().create_task(self._act())
        elif self._acting is None:
            self._engine.rest(self)

    def _wanted(self) -> str:
        action: str
        head, run = self.head, self.head.run
        if run is not None and (self._loss is not None or self._is_unattended(head, run)):
            return "settle_loss" if self._loss is not None else "recover"
        if self._unbriefed and self._guest is not None:
            return "brief"
        action = next_action(head, self._engine.clock())
        if run is not None and action != "stop_run":
            if run.phase == "starting" and self._guest is None:
                action = "start_guest"
            elif run.phase == "ready" and is_at_rest(head) and self.is_outdated:
                action = "retire"
        return WAIT if self._engine.draining and action in _BEGINNINGS else action

    def _is_unattended(self, head: SessionHead, run: RunState) -> bool:
        """Whether the run is another worker's, or ours by now and its runtime was not found again yet."""
        return head.worker != self._engine.worker_id or (run.phase == "ready" and self._guest is None)

    async def _act(self) -> None:
        delay = _RETRY_FIRST
        try:
            while (wanted := self._wanted()) != WAIT:
                before = self.head
                try:
                    await areach("engine.act.before", wanted)
                    await getattr(self, f"_{wanted}")()
                    await areach("engine.act.after", wanted)
                    if self.head is not before or self._wanted() != wanted:
                        delay = _RETRY_FIRST
                        continue
                    # Nothing changed: what we know of the session is not what the store knows.
                    self.head = await self._engine.store.head(self.head.id) or self.head
                except StaleFence:
                    if not await self._look_anew():
                        self._engine.let_go(self)
                        return
                except asyncio.CancelledError as error:
                    if is_cancelled():
                        raise
                    # Something that the action waited for was cancelled, and not the action.
                    self._report(wanted, error)
                except Exception as error:
                    self._report(wanted, error)
                await asyncio.sleep(delay)
                delay = min(delay * 2, _RETRY_LONGEST)
        finally:
            self._acting = None
        self._engine.rest(self)

    async def _look_anew(self) -> bool:
        """Read what has become of the session; returns whether it is still for this worker to drive."""
        head = await self._engine.store.head(self.head.id)
        if head is None or self._let_go or not self._engine.owner.keeps(head):
            return False
        self.head, self._loss = head, None
        return True

    def _report(self, wanted: str, error: BaseException) -> None:
        expected = isinstance(error, StoreError)
        log.error("session %s: %s failed, trying again: %s", self.head.id, wanted, error, exc_info=not expected)

    async def _apply(self, command: c.Command) -> Any:
        return (await self._engine.store.apply(command)).receipt

    async def _start_run(self) -> None:
        head = self.head
        try:
            deployment, agent = await self._engine.deployments.resolve(head)
        except StoreError:
            raise
        except PerdureError as error:
            await self._hold("agent_unavailable", str(error))
            return
        await self._apply(
            c.StartRun(
                session_id=head.id,
                fence=head.fence,
                worker=self._engine.worker_id,
                run_id=new_id(),
                deployment=deployment.id,
                limits=agent.limits,
                home=self._engine.machine,
                resumes=agent.resumes,
            )
        )

    async def _start_guest(self) -> None:
        head = self.head
        assert head.run is not None
        try:
            spec = await self._engine.spec(head)
            await areach("engine.spawn.before")
            guest = await self._engine.host(head.host).start(spec, RunDriver(self, head.run.id, head.fence))
        except StoreError:
            raise
        except Exception as error:
            if not isinstance(error, PerdureError):
                self._report("start_guest", error)
            self._loss = (head.run.id, f"the process could not be started: {str(error) or type(error).__name__}")
            return
        if self._loss is None:
            self._welcome(guest)
        await areach("engine.spawn.after")

    def _welcome(self, guest: Guest) -> None:
        missed = self._unbriefed
        self._guest, self._unbriefed = guest, True
        for begin in self._untold:
            guest.tell(begin)
        self._untold.clear()
        self._unbriefed = missed

    async def _start_turn(self) -> None:
        await self._apply(c.StartTurn(session_id=self.head.id, fence=self.head.fence))

    async def _settle_loss(self) -> None:
        assert self._loss is not None
        run_id, reason = self._loss
        await self._apply(
            c.RunLost(
                session_id=self.head.id,
                fence=self.head.fence,
                worker=self._engine.worker_id,
                run_id=run_id,
                reason=reason,
                hold_id=new_id(),
            )
        )
        self._loss = None
        self._untold.clear()

    async def _recover(self) -> None:
        """Take over a run of a worker that is gone: adopt its runtime if that lives, else settle its loss."""
        head = self.head
        assert head.run is not None
        guest = await self._adopt(head) if head.host == "process" else None
        if guest is not None:
            self._guest, self._unbriefed = guest, True
            await areach("engine.recover.found")
        elif head.run.phase == "stopping":
            await self._note_stopped(head.run)
        else:
            self._loss = self._loss or (head.run.id, "its worker was lost")

    async def _adopt(self, head: SessionHead) -> Guest | None:
        assert head.run is not None
        await self._apply(
            c.AdoptRun(session_id=head.id, fence=head.fence, worker=self._engine.worker_id, run_id=head.run.id)
        )
        await areach("engine.recover.claimed")
        spec = await self._engine.spec(self.head)
        hibernated = head.computer is not None and head.computer.residency in ("hibernated", "resuming")
        driver = RunDriver(self, head.run.id, self.head.fence)
        return await self._engine.host(head.host).adopt(spec, driver, hibernated=hibernated)

    async def _brief(self) -> None:
        """Tell the runtime what may not have reached it; until then nothing else is passed on to it."""
        while True:
            head = self.head
            directives = await briefing.everything(self._engine.store, head)
            if briefing.is_still_true(head, self.head):
                break
        for directive in directives:
            if self._guest is not None:
                self._guest.tell(directive)
        self._unbriefed = False
        self._untold.clear()

    async def _stop_run(self) -> None:
        head = self.head
        assert head.run is not None
        reason = head.run.reason if head.run.phase == "stopping" and head.run.reason else self._stop_reason()
        if head.run.phase != "stopping":
            command = c.StopRun(session_id=head.id, fence=head.fence, run_id=head.run.id, reason=reason)
            await self._apply(command)
        await areach("engine.stop.marked")
        if self._guest is not None:
            await self._guest.stop(0 if reason == "did_not_let_go" else STOP_GRACE)
            self._guest = None
        await areach("engine.stop.ended")
        await self._note_stopped(head.run, reason)

    async def _note_stopped(self, run: RunState, reason: str | None = None) -> None:
        reason = reason or run.reason or "stopped"
        command = c.RunStopped(session_id=self.head.id, fence=self.head.fence, run_id=run.id, reason=reason)
        await self._apply(command)
        self._loss = None

    def _stop_reason(self) -> str:
        head = self.head
        if head.is_terminal:
            return f"session_{head.status}"
        if head.winding is not None and self._engine.clock() >= head.winding.until:
            return "did_not_let_go"
        return "stopped"

    async def _retire(self) -> None:
        """End a run, between two turns, whose code is not current any more; the next turn starts on the new code."""
        if self.head.host == "inline":
            await self.sleep("code_changed", though_queued=True)
        elif (run := self.head.run) is not None:
            await self._apply(
                c.StopRun(
                    session_id=self.head.id,
                    fence=self.head.fence,
                    run_id=run.id,
                    reason="code_changed",
                    if_idle=True,
                    though_queued=True,
                )
            )

    async def sleep(self, reason: str, *, though_queued: bool = False) -> None:
        """End an inline session's idle run; nothing happens when it is not idle after all.

        With `though_queued`, turns that only wait do not keep it.
        """
        run = self.head.run
        if run is None:
            return
        await areach("engine.sleep.before")
        await self._apply(
            c.Sleep(
                session_id=self.head.id,
                fence=self.head.fence,
                run_id=run.id,
                reason=reason,
                though_queued=though_queued,
            )
        )
        if self.head.run is None:
            self._guest = None
        await areach("engine.sleep.after")

    async def _hibernate(self) -> None:
        try:
            note = await self._guest.hibernate() if self._guest else "no process was running"
            residency = "hibernated"
        except NotSupported as error:
            note, residency = str(error), "running"
        await areach("engine.hibernate.stopped")
        await self._set_residency(residency, note)

    async def _resume_computer(self) -> None:
        if self._guest is None:
            raise ProcessStartFailed("The session's process is not known to this worker.")
        note = await self._guest.resume()
        await areach("engine.resume.continued")
        await self._set_residency("running", note)

    async def _set_residency(self, residency: str, note: str) -> None:
        await self._apply(
            c.SetResidency(session_id=self.head.id, fence=self.head.fence, residency=residency, note=note)
        )

    async def _hold(self, reason: str, message: str) -> None:
        await self._apply(c.PlaceHold(session_id=self.head.id, hold_id=new_id(), reason=reason, message=message[:1000]))

    # --- the end of the worker

    async def end(self, reason: str) -> None:
        """End an inline session's run, since its worker ends; a turn that still runs is interrupted and is no loss."""
        await self.sleep(reason, though_queued=True)
        run, guest = self.head.run, self._guest
        if run is not None and guest is not None:
            await guest.stop(LAST_MOMENT)
            await self._note_stopped(run, reason)

    async def detach(self) -> None:
        """Let go of the session: what runs in this process ends, a process of its own is left to who adopts it.

        Nothing is committed, and nothing that the runtime still asks is.
        """
        self._let_go = True
        if self._acting is not None and self._acting is not asyncio.current_task():
            self._acting.cancel()
            await asyncio.wait([self._acting])
        if self._guest is not None:
            await self._guest.detach()

    @property
    def is_settled(self) -> bool:
        """Whether nothing is to be done and nothing is being done."""
        return self._acting is None and self._wanted() == WAIT

    @property
    def is_outdated(self) -> bool:
        """Whether the next turn is for newer code than the present run has."""
        return self.head.run is not None and self._engine.deployments.is_outdated(self.head)

    @property
    def has_guest(self) -> bool:
        """Whether a runtime is at hand."""
        return self._guest is not None
