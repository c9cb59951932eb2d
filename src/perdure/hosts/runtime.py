"""The runtime of one session: calls `init` once, then the handler for one turn after another.

It is the same code in the worker (inline host) and in a session's own process (process host); what differs is the
link through which it speaks with the session's driver.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from perdure.crashpoints import areach, reach
from perdure.errors import PerdureError
from perdure.hosts.context import ComputerInfo, InitContext, RecoveryInfo, RunInfo, SessionInfo, TurnContext
from perdure.hosts.failures import error_json
from perdure.hosts.protocol import (
    Answered,
    Begin,
    Deliver,
    Directive,
    InitRaised,
    Link,
    Raised,
    Ready,
    Released,
    RunSpec,
    Stop,
)
from perdure.hosts.turns import (
    TurnExecution,
    TurnHandler,
    call_surely,
    is_cancelled,
    is_failure,
    is_refusal,
)

log = logging.getLogger("perdure.run")

InitHandler = Callable[[InitContext], Awaitable[Any]]


class Handlers(msgspec.Struct, frozen=True):
    """An agent's code."""

    turn: TurnHandler
    init: InitHandler | None = None


class SessionRuntime:
    """Runs one session's handlers in this event loop. Its methods are called on that loop.

    `shared` says that the process is not the session's alone, so that its handlers may not end it.
    """

    def __init__(
        self, handlers: Handlers, spec: RunSpec, link: Link, context: Context | None = None, *, shared: bool = False
    ) -> None:
        self._handlers: Final = handlers
        self._spec: Final = spec
        self._link: Final = link
        self._context = context
        self._shared: Final = shared
        self._turn_context: TurnContext | None = None
        self._execution: TurnExecution | None = None
        self._task: asyncio.Task[None] | None = None
        self.highest_turn = 0
        self._closed = False
        self.broken: Callable[[str], None] = lambda _: None
        """Called with the reason when nothing can be reported any more, so that this runtime has to be given up."""
        self.initialised = False

    # --- init

    async def start(self) -> None:
        """Run `init` and report how it went. Called once in a runtime's life."""
        try:
            context = _init_context(self._spec)
            await areach("runtime.init.before")
            result = await self._handlers.init(context) if self._handlers.init else None
            await areach("runtime.init.after")
        except BaseException as error:
            if not is_failure(error, cancelled=is_cancelled(), shared=self._shared):
                raise
            log.exception("init failed")
            await call_surely(self._link, InitRaised(self._spec.run_id, error_json(error, "init_failed")))
            return
        self._turn_context = _turn_context(context, result)
        self.initialised = True
        await areach("runtime.ready.before")
        await call_surely(self._link, Ready(self._spec.run_id))
        await areach("runtime.ready.after")

    def be_ready(self) -> None:
        """Take turns at once: for agents without `init` on hosts that need no report."""
        self._turn_context = _turn_context(_init_context(self._spec), None)
        self.initialised = True

    # --- directives

    def tell(self, directive: Directive) -> None:
        """Follow a directive. Turns that were begun before, and what is meant for ended ones, are passed over."""
        if isinstance(directive, Begin):
            self._begin(directive)
        elif self._execution is not None and self._execution.number == directive.turn:
            self._pass_on(self._execution, directive)
        elif isinstance(directive, Stop):
            self._spawn(self._release(directive.turn))

    def _pass_on(self, execution: TurnExecution, directive: Directive) -> None:
        if isinstance(directive, Stop):
            self._stop(execution)
        elif isinstance(directive, Deliver):
            execution.deliver(directive)
        elif isinstance(directive, Answered):
            execution.answered(directive)

    def _begin(self, directive: Begin) -> None:
        reach("runtime.begin")
        if self._closed or directive.turn <= self.highest_turn:
            return
        self.highest_turn = directive.turn
        self._execution = TurnExecution(directive, self._link, shared=self._shared, resumes=self._spec.agent.resumes)
        self._task = self._spawn(self._run(self._execution))

    def _spawn(self, coroutine: Any) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(coroutine, context=self._context)

    async def _run(self, execution: TurnExecution) -> None:
        assert self._turn_context is not None
        context = replace(self._turn_context, _journal=execution.journal)
        try:
            await execution.run(self._handlers.turn, context)
        except asyncio.CancelledError:
            if not execution.stopped:
                raise
        except Exception as error:
            if is_refusal(error):
                # It has lost its turn to someone else: the driver has ended it already.
                log.warning("turn %s was not settled by its handler: %s", execution.number, error)
            else:
                log.exception("turn %s could not be settled", execution.number)
                await self._fail(execution.number, error)
        if execution.stopped:
            await self._release(execution.number)

    async def _fail(self, turn: int, error: Exception) -> None:
        """Fail a turn that could not be settled, unless it was settled all the same."""
        try:
            await call_surely(self._link, Raised(turn, error_json(error, "runtime_failed")))
        except Exception as failure:
            log.exception("turn %s could not be failed either", turn)
            if not is_refusal(failure):
                self.broken(f"its runtime is broken: {failure!r}")

    def _stop(self, execution: TurnExecution) -> None:
        reach("runtime.stop")
        told_before, execution.stopped = execution.stopped, True
        if self._task is None or self._task.done():
            self._spawn(self._release(execution.number))
        elif not told_before:
            # Once: what a handler does to let go is not to be cancelled too.
            self._task.cancel()

    async def _release(self, turn: int) -> None:
        try:
            await areach("runtime.release.before")
            await call_surely(self._link, Released(turn))
            await areach("runtime.release.after")
        except PerdureError as error:
            log.warning("the release of turn %s was refused: %s", turn, error)
        except Exception:
            # Whoever waits for it will have waited long enough, and end this runtime.
            log.exception("the release of turn %s could not be reported", turn)

    # --- end

    @property
    def is_busy(self) -> bool:
        """Whether a handler is at work."""
        return self._task is not None and not self._task.done()

    async def close(self, grace: float) -> bool:
        """Begin no more turns and cancel the handler; return whether it has let go within `grace` seconds."""
        self._closed = True
        if self._task is None or self._task.done():
            return True
        if self._execution is not None:
            self._execution.stopped = True
        self._task.cancel()
        done, _ = await asyncio.wait([self._task], timeout=grace)
        return bool(done)


def _init_context(spec: RunSpec) -> InitContext:
    computer = None
    if spec.computer_id is not None and spec.computer_path is not None:
        computer = ComputerInfo(spec.computer_id, Path(spec.computer_path) / "workspace")
    return InitContext(
        SessionInfo(spec.session_id, spec.agent.id, spec.key),
        RunInfo(spec.run_id, spec.number),
        RecoveryInfo(spec.recovery, spec.reason),
        spec.deployment_id,
        computer,
    )


def _turn_context(context: InitContext, result: Any) -> TurnContext:
    return TurnContext(
        context.session, context.run, context.recovery, context.deployment_id, context.computer, init_result=result
    )
