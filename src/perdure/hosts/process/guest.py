"""A session's process: its runtime, the link to its worker, and how the process ends."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path
from typing import Any, Final

import msgspec

from perdure.computers.tree import ProcessTree
from perdure.crashpoints import areach
from perdure.hosts.process.link import WorkerLink
from perdure.hosts.protocol import RunSpec
from perdure.hosts.runtime import Handlers, SessionRuntime

log = logging.getLogger("perdure.run")

ASKED: Final = 0
FAILED: Final = 1
UNWANTED: Final = 75
"""The exit code of a guest that ended because no worker wanted it or came for it (EX_TEMPFAIL)."""

HANDLER_GRACE: Final = 10.0
CHILDREN_GRACE: Final = 1.0
_LAST_MOMENT: Final = 1.0


class Launch(msgspec.Struct, frozen=True):
    """All that a new guest is told. `patience` is how many seconds it bears to be without a worker."""

    spec: RunSpec
    computer_id: str
    workspace: str
    run: str
    rlimits: dict[int, int]
    cores: list[int] | None
    environment: dict[str, str]
    patience: float


async def serve(launch: Launch, handlers: Handlers) -> int:
    """Be the guest until it is asked to end, unwanted or broken; return the exit code."""
    spec = launch.spec
    link = WorkerLink(Path(launch.run), spec.run_id, spec.epoch, patience=launch.patience)
    runtime = SessionRuntime(handlers, spec, link)
    link.tell = runtime.tell
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, asked.set)
    loop.add_signal_handler(signal.SIGCONT, link.look_up)
    os.register_at_fork(after_in_child=_be_ordinary)
    keeping = loop.create_task(link.keep())
    initialising = loop.create_task(_initialise(link, runtime))
    asking = loop.create_task(asked.wait())
    broken: asyncio.Future[str] = loop.create_future()
    runtime.broken = broken.set_result
    await _first_of(initialising, keeping, asking, broken)
    await areach("guest.leave")
    if asking.done():
        await runtime.close(HANDLER_GRACE)
        return ASKED
    if keeping.done():
        return await _leave(launch, runtime, keeping)
    if broken.done():
        log.critical("the session's process ends: %s", broken.result())
    else:
        log.critical("the session's process ends: its init could not be reported", exc_info=initialising.exception())
    await runtime.close(HANDLER_GRACE)
    return FAILED


def _be_ordinary() -> None:
    """Make signals to a forked child of this process its own.

    It would ignore SIGTERM otherwise, and, through the shared descriptor that wakes the event loop, end its parent.
    """
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCONT):
        signal.signal(number, signal.SIG_DFL)


async def _initialise(link: WorkerLink, runtime: SessionRuntime) -> None:
    # No user code before a worker has said that this process is the session's.
    await link.welcomed.wait()
    await runtime.start()


async def _first_of(initialising: asyncio.Task[None], *others: asyncio.Future[Any]) -> None:
    """Return when one of the others says that it is over, or `init` has failed to be reported."""
    await asyncio.wait([initialising, *others], return_when=asyncio.FIRST_COMPLETED)
    if initialising.done() and initialising.exception() is None:
        await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)


async def _leave(launch: Launch, runtime: SessionRuntime, keeping: asyncio.Task[str]) -> int:
    """End an unwanted guest: nobody else would end its children."""
    failure = keeping.exception()
    if failure is not None:
        log.critical("the session's process ends: its link is broken", exc_info=failure)
    else:
        log.warning("the session's process ends: %s", keeping.result())
    await runtime.close(HANDLER_GRACE)
    await ProcessTree(launch.computer_id).end(CHILDREN_GRACE)
    return FAILED if failure is not None else UNWANTED


def run_guest(loop: asyncio.AbstractEventLoop, launch: Launch, handlers: Handlers) -> int:
    """Run `serve` in an event loop. Unlike `asyncio.run` it waits for no thread that user code may have left."""
    code = loop.run_until_complete(serve(launch, handlers))
    loop.run_until_complete(_wind_down())
    return code


async def _wind_down() -> None:
    """Give tasks that user code has left running a moment to clean up."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=_LAST_MOMENT)
