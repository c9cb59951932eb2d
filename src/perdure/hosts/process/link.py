"""The guest's end of the link to its worker.

It dials the socket in the Computer's run folder and dials again, for ever, whenever the link is gone: the worker may
have been restarted, or the Computer may have been asleep. Requests without an answer are sent again on the next link,
under their old ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from perdure.crashpoints import areach, reach
from perdure.errors import PerdureError, StaleFence
from perdure.hosts.process.wire import (
    FROM_WORKER,
    SOCKET,
    VERSION,
    Ask,
    Connection,
    Fenced,
    FromWorker,
    Hello,
    Quiesce,
    Refused,
    Reply,
    Tell,
    Told,
    Welcome,
    connect,
    encode,
    rebuild_failure,
)
from perdure.hosts.protocol import Directive, Ready, Request

log = logging.getLogger("perdure.run")

FIRST_WAIT: Final = 0.02
LONGEST_WAIT: Final = 0.25
WELCOME_WAIT: Final = 10.0
SOCKET_CHECK: Final = 5.0


class WorkerLink:
    """A `Link` for a runtime in a process of its own."""

    def __init__(self, run: Path, run_id: str, epoch: int, *, patience: float) -> None:
        """Take the run folder, the Run, the epoch it was started under, and the seconds to bear without a worker."""
        self._folder = os.open(run, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._path = f"/proc/self/fd/{self._folder}/{SOCKET}"
        self._run_id, self._epoch, self._patience = run_id, epoch, patience
        self._current: Connection | None = None
        self._dialled: Connection | None = None
        self._trial: asyncio.Future[bool] | None = None
        self._socket: tuple[int, int] | None = None
        self._attachment = ""
        self._told = 0
        self._last_id = 0
        self._pending: dict[int, tuple[bytes, asyncio.Future[Any]]] = {}
        self._ready = False
        self._report: asyncio.Task[None] | None = None
        self._verdict: str | None = None
        self._stir = asyncio.Event()
        self.tell: Callable[[Directive], None] = lambda _: None
        self.welcomed = asyncio.Event()

    # --- what the runtime calls

    async def call(self, request: Request) -> Any:
        """See `Link.call`. Raises `ContentTooLarge` for a request over 9 MiB."""
        label = type(request).__name__
        await areach("guest.request.before", label)
        self._last_id += 1
        number = self._last_id
        frame = encode(Ask(number, min(self._pending, default=number), request))
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[number] = frame, answer
        self._send(frame)
        try:
            await areach("guest.request.after", label)
            value = await answer
            await areach("guest.reply.after", label)
        finally:
            self._pending.pop(number, None)
        self._ready = self._ready or isinstance(request, Ready)
        return value

    def _send(self, frame: bytes) -> None:
        if self._current is not None:
            self._current.send(frame)

    # --- dialling

    def look_up(self) -> None:
        """Look for a worker, or for a newer one, at once: something has happened that may have brought it."""
        self._stir.set()

    async def keep(self) -> str:
        """Keep a link as long as a worker wants this guest; return why it should end."""
        wait, absent = FIRST_WAIT, 0.0
        while absent <= self._patience:
            if await self._dial():
                wait, absent = FIRST_WAIT, 0.0
                await self._until_down()
            if self._verdict is not None:
                return self._verdict
            if os.fstat(self._folder).st_nlink == 0:
                return "its Computer's folder is gone, and with it the way of any worker to it"
            # The waits are counted and not the clock: a process that was stopped for a week has not waited a week.
            absent += wait
            wait = FIRST_WAIT if await self._stirred(wait) else min(2 * wait, LONGEST_WAIT)
        return f"no worker came for it in {self._patience:g} s"

    async def _stirred(self, timeout: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._stir.wait()
        stirred = self._stir.is_set()
        self._stir.clear()
        return stirred

    async def _until_down(self) -> None:
        """Return when the link is gone; meanwhile go over to a worker that has put up a new socket."""
        while self._current is not None and self._verdict is None:
            await self._stirred(SOCKET_CHECK)
            if self._current is not None and self._seen_socket() not in (None, self._socket):
                await self._dial()

    def _seen_socket(self) -> tuple[int, int] | None:
        try:
            seen = os.stat(self._path)
        except FileNotFoundError:
            return None
        return seen.st_ino, seen.st_ctime_ns

    async def _dial(self) -> bool:
        """Dial once and return whether a worker took us."""
        self._socket = self._seen_socket()
        if self._socket is None:
            return False
        await areach("guest.dial.before")
        trial: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._trial = trial
        link = Connection(FROM_WORKER, self._take, self._lost)
        self._dialled = link
        try:
            async with asyncio.timeout(WELCOME_WAIT):
                await connect(link, self._path)
                link.send(encode(Hello(VERSION, self._run_id, self._epoch)))
                await areach("guest.hello.after")
                return await trial
        except OSError:
            return False
        except TimeoutError:
            link.close("it did not welcome us")
            return False
        except Exception:
            log.exception("dialling the worker failed; dialling again")
            link.close("dialling failed")
            return False

    # --- what comes in

    def _take(self, link: Connection, message: FromWorker) -> None:
        if isinstance(message, Welcome):
            self._welcome(link, message)
        elif isinstance(message, Refused):
            self._verdict = f"its worker refused it: {message.reason}"
            link.close("we were refused")
        elif link is not self._current:
            # An older worker's last words.
            return
        elif isinstance(message, Reply):
            self._reply(message)
        elif isinstance(message, Tell):
            self._directive(link, message)
        elif isinstance(message, Quiesce):
            reach("guest.quiesce")
            link.close("we were asked to be quiet")

    def _welcome(self, link: Connection, message: Welcome) -> None:
        if message.epoch < self._epoch:
            log.warning("a worker of epoch %s was told that %s is obeyed", message.epoch, self._epoch)
            link.send(encode(Fenced(self._epoch)))
            link.close("its epoch is over")
            return
        reach("guest.welcome.before")
        older, self._current = self._current, link
        if older is not None:
            older.send(encode(Fenced(message.epoch)))
            older.close("a newer worker has taken over")
        self._epoch = message.epoch
        for frame, _ in list(self._pending.values()):
            link.send(frame)
        if message.attachment != self._attachment:
            self._attachment, self._told = message.attachment, 0
            self._report_ready()
        self.welcomed.set()
        self._end_trial(True)
        reach("guest.welcome.after")

    def _report_ready(self) -> None:
        """Tell a new worker what the one before it knew: that `init` is done."""
        if self._ready:
            self._report = asyncio.get_running_loop().create_task(self._repeat_ready())

    async def _repeat_ready(self) -> None:
        try:
            await self.call(Ready(self._run_id))
        except PerdureError as error:
            log.warning("the worker did not take that the session is ready: %s", error)

    def _reply(self, reply: Reply) -> None:
        reach("guest.reply.before")
        _, answer = self._pending.get(reply.id, (b"", None))
        if answer is None or answer.done():
            return
        if reply.error is None:
            answer.set_result(reply.value)
            return
        error = rebuild_failure(reply.error)
        if isinstance(error, StaleFence) and self._current is not None:
            # Not what was asked is refused, but who was asked: the session's owner is told, once there is one.
            self._current.close("it does not own the session any more")
        else:
            answer.set_exception(error)

    def _directive(self, link: Connection, message: Tell) -> None:
        label = type(message.directive).__name__
        reach("guest.directive.before", label)
        if message.number == self._told + 1:
            self.tell(message.directive)
            self._told = message.number
        link.send(encode(Told(self._told)))
        reach("guest.directive.after", label)

    def _lost(self, link: Connection, why: str) -> None:
        if link is self._current:
            log.debug("the link to the worker is gone: %s", why)
            self._current = None
            self._stir.set()
        elif link is self._dialled:
            self._end_trial(False)

    def _end_trial(self, taken: bool) -> None:
        if self._trial is not None and not self._trial.done():
            self._trial.set_result(taken)
