"""An event loop whose time is virtual: when nothing is ready it jumps to the next timer.

Callbacks belong to *processes*, by the context in which they were scheduled. Those of one process run in the order that
asyncio promises; between processes the order is drawn by lot. A process can be stopped for a while, as by SIGSTOP, or
killed: what it had scheduled never runs then, not even its `finally` blocks.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any, Final, TypeVar

T = TypeVar("T")

A_STEP: Final = 1e-6
"""The seconds that one step takes: nothing is for nothing, and who looks at the clock for ever sees it move."""


class Process:
    """Whose callbacks they are. `fuse` is called once `steps` more of them have run."""

    __slots__ = ("context", "dead", "frozen", "fuse", "last_id", "name", "offset", "ready", "steps", "thawed_at")

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.ready: deque[asyncio.Handle] = deque()
        self.dead = False
        self.frozen = False
        self.steps = 0
        self.offset = 0.0
        self.last_id = 0
        self.thawed_at = -1.0
        self.fuse: Callable[[], None] | None = None
        self.context: Final = copy_context()
        self.context.run(PROCESS.set, self)


PROCESS: ContextVar[Process | None] = ContextVar("simulated_process", default=None)


def here() -> str:
    """Return the name of the process that runs now."""
    process = PROCESS.get()
    return "outside" if process is None else process.name


class Stuck(Exception):
    """Raised when a run would not end: nothing can happen any more, or far too much has."""


class _Task(asyncio.Task[Any]):
    """A task whose place in a set does not depend on where it lies in memory."""

    _numbers = itertools.count(1)
    process: Process

    def __init__(self, *args: Any, **more: Any) -> None:
        self._number = next(self._numbers)
        super().__init__(*args, **more)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.BaseEventLoop):
    """See the module. `time()` begins at 0; `until` is the virtual time at which a run is given up, in seconds."""

    def __init__(self, random: Random, *, until: float = 10_000.0, steps: int = 1_000_000) -> None:
        super().__init__()
        self.outside: Final = Process("outside")
        self.failures: list[str] = []
        self.on_failure: Callable[[dict[str, Any]], None] = self._note_failure
        self._random = random.random
        self._now = 0.0
        self._until = until
        self._steps_left = steps
        self._lively: list[Process] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()
        self._begun: list[_Task] = []
        self._prune_at = 256
        _Task._numbers = itertools.count(1)

    # --- what asyncio asks of a loop

    def time(self) -> float:
        return self._now

    def get_debug(self) -> bool:
        return False

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._put(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        task = _Task(coro, loop=self, name=name, context=context)
        task.process = (PROCESS.get() if context is None else context.get(PROCESS)) or self.outside
        begun = self._begun
        begun.append(task)
        if len(begun) > self._prune_at:
            self._begun = [other for other in begun if not other.done()]
            self._prune_at = max(256, 2 * len(self._begun))
        return task

    def call_soon_threadsafe(self, *_: Any, **__: Any) -> asyncio.Handle:
        raise AssertionError("there are no threads in a simulation")

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run the function a little later, in no thread."""
        future: asyncio.Future[Any] = self.create_future()
        self.call_later(self._random() * 0.01, _run_into, future, func, args)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        process = PROCESS.get()
        if not self.is_closed() and (process is None or not process.dead):
            self.on_failure(context)

    def _note_failure(self, context: dict[str, Any]) -> None:
        self.failures.append(f"{context.get('message')}: {context.get('exception')!r}")

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are passed over when their time comes."""

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        if not self.is_closed():
            self.create_task(agen.aclose())

    # --- running

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main` to its end, then throw away all that is left, without running any of it."""
        hooks, sys.unraisablehook = sys.unraisablehook, _ignore
        try:
            return self.run_until_complete(main)
        finally:
            self._throw_away()
            sys.unraisablehook = hooks

    def _throw_away(self) -> None:
        self.close()
        left, self._begun = self._begun, []
        for task in left:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with suppress(BaseException):
                    task.get_coro().close()  # type: ignore[union-attr]
        self._timers.clear()
        self._lively.clear()

    def _put(self, handle: asyncio.Handle) -> None:
        process = handle._context.get(PROCESS) or self.outside  # type: ignore[attr-defined]
        if process.dead:
            return
        if not process.ready and not process.frozen:
            self._lively.append(process)
        process.ready.append(handle)

    def _run_once(self) -> None:
        lively = self._lively
        self._steps_left -= 1
        self._now += A_STEP
        timers = self._timers
        if not lively or self._steps_left < 0 or (timers and timers[0][0] <= self._now):
            self._advance()
            return
        process = lively[0] if len(lively) == 1 else lively[int(self._random() * len(lively))]
        handle = process.ready.popleft()
        if not process.ready:
            lively.remove(process)
        if handle._cancelled:  # type: ignore[attr-defined]
            return
        handle._run()  # type: ignore[attr-defined]
        if process.fuse is not None:
            process.steps -= 1
            if process.steps <= 0:
                fuse, process.fuse = process.fuse, None
                self.outside.context.copy().run(fuse)

    def _advance(self) -> None:
        timers = self._timers
        if not timers or timers[0][0] > self._until or self._steps_left < 0:
            endless = self._steps_left < 0 or timers
            why = f"it goes on for ever, at {self._now:.1f} s" if endless else "nothing is left that could happen"
            raise Stuck(f"{why}; these wait:\n{self.waiting()}")
        when = timers[0][0]
        self._now = max(self._now, when)
        while timers and timers[0][0] <= self._now:
            _, _, timer = heapq.heappop(timers)
            if not timer._cancelled:  # type: ignore[attr-defined]
                self._put(timer)

    def waiting(self) -> str:
        """Say where each task of a living process waits."""
        living = (task for task in self._begun if not task.done() and not task.process.dead)
        return "\n".join(f"  {task.process.name}: {_where(task)}" for task in living)

    # --- what befalls processes

    def freeze(self, process: Process) -> None:
        """Stop a process where it stands; what becomes due meanwhile waits."""
        if not process.frozen and not process.dead:
            process.frozen = True
            if process.ready:
                self._lively.remove(process)

    def thaw(self, process: Process) -> None:
        """Let a process go on."""
        if process.frozen and not process.dead:
            process.frozen = False
            process.thawed_at = self._now
            if process.ready:
                self._lively.append(process)

    def kill(self, process: Process) -> None:
        """End a process at once."""
        if process.ready and not process.frozen:
            self._lively.remove(process)
        process.dead = True
        process.fuse = None
        process.ready.clear()


def _where(task: asyncio.Task[Any]) -> str:
    """Return the innermost place at which a task waits, and what it is on the way to."""
    names = []
    coro: Any = task.get_coro()
    while coro is not None and hasattr(coro, "cr_frame") and coro.cr_frame is not None:
        names.append(f"{coro.cr_code.co_qualname}:{coro.cr_frame.f_lineno}")
        coro = coro.cr_await
    return " > ".join(names)


def _run_into(future: asyncio.Future[Any], func: Callable[..., Any], args: Any) -> None:
    if future.cancelled():
        return
    try:
        future.set_result(func(*args))
    except Exception as error:
        future.set_exception(error)


def _ignore(_: Any) -> None:
    """What a thrown away coroutine says of it is of no interest."""
