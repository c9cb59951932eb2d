"""The worker's end of one guest: its socket, its link, what it asked and what it was told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from perdure.computers.base import Computer
from perdure.computers.exits import wait_exit
from perdure.computers.identity import ProcessIdentity, send_signal
from perdure.computers.memory import Released
from perdure.computers.tree import TreeNotStopped
from perdure.crashpoints import areach, reach
from perdure.errors import NotSupported, PerdureError, Unavailable
from perdure.hosts.process import sockets
from perdure.hosts.process.wire import (
    FROM_GUEST,
    SOCKET,
    VERSION,
    Ask,
    Connection,
    Fenced,
    FromGuest,
    Hello,
    Quiesce,
    Refused,
    Reply,
    Tell,
    Told,
    Welcome,
    describe_failure,
    encode,
)
from perdure.hosts.protocol import Directive, Driver, Guest, Request, RunSpec

log = logging.getLogger("perdure.hosts")

QUIET_TIMEOUT: Final = 5.0
RESUME_TIMEOUT: Final = 30.0
LAST_WORDS: Final = 1.0
LAST_ANSWERS: Final = 10.0
ACCEPT_PAUSE: Final = 1.0


class RemoteGuest(Guest):
    """A runtime in a process of its own, as its driver sees it."""

    def __init__(
        self,
        spec: RunSpec,
        driver: Driver,
        computer: Computer,
        how_ended: Callable[[], Awaitable[str]],
        let_go: Callable[[RemoteGuest], None],
    ) -> None:
        """Take the Run, its driver and its Computer.

        `how_ended` tells, after the process's end, what is known of it; `let_go` hears when this object is done with.
        """
        self.spec: Final = spec
        self.computer: Final = computer
        self.connected: Final = asyncio.Event()
        self._driver, self._how_ended, self._let_go = driver, how_ended, let_go
        self._attachment = secrets.token_hex(8)
        self._listener: socket.socket | None = None
        self._socket: tuple[int, int] | None = None
        self._process: ProcessIdentity | None = None
        self._connections: set[Connection] = set()
        self._early: list[tuple[Connection, Hello]] = []
        self._link: Connection | None = None
        self._down = asyncio.Event()
        self._told = 0
        self._directives: dict[int, bytes] = {}
        self._answers: dict[int, bytes | None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None
        self._in_service = False
        self._done = asyncio.Event()

    # --- the socket

    def listen(self) -> None:
        """Put up the socket that the guest dials."""
        if self._listener is None:
            listener = sockets.listen(self.computer.run, SOCKET)
            listener.setblocking(False)
            seen = os.stat(self.computer.run / SOCKET)
            self._socket = seen.st_dev, seen.st_ino
            self._listener = listener
            self._attend()

    def _attend(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept, self._listener)

    def _unlisten(self) -> None:
        if self._listener is None:
            return
        asyncio.get_running_loop().remove_reader(self._listener)
        self._listener.close()
        self._listener = None
        path = self.computer.run / SOCKET
        with contextlib.suppress(FileNotFoundError):
            seen = os.stat(path)
            # A newer worker may have put up its own.
            if (seen.st_dev, seen.st_ino) == self._socket:
                path.unlink()

    def _accept(self, listener: socket.socket) -> None:
        # Not by asyncio's own server: closed between an accept and its next step, it leaves the socket open (3.11).
        try:
            accepted, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            # Out of descriptors, most likely: the guest waits in the socket, and we do not run hot meanwhile.
            log.error("session %s cannot take its process's call yet: %s", self.spec.session_id, error)
            loop = asyncio.get_running_loop()
            loop.remove_reader(listener)
            loop.call_later(ACCEPT_PAUSE, self._attend)
            return
        connection = Connection(FROM_GUEST, self._take, self._lost_link)
        self._connections.add(connection)
        self._spawn(_make(connection, accepted))

    # --- the process

    def watch(self, process: ProcessIdentity) -> None:
        """Serve this process, and no other, and notice its end."""
        self._process = process
        self._watch = asyncio.get_running_loop().create_task(self._await_end(process))
        for link, hello in self._early:
            self._greet(link, hello)
        self._early.clear()

    def nudge(self) -> None:
        """Have the guest look for our socket at once."""
        if self._process is not None:
            send_signal(self._process, signal.SIGCONT)

    async def until_connected(self, timeout: float) -> bool:
        """Wait until the guest has dialled; False when it is gone or `timeout` seconds have passed.

        It will dial again when a link is lost as soon as it is made.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not self.connected.is_set() and not self._done.is_set():
                    await self._until_news()
        return self.connected.is_set()

    async def _until_news(self) -> None:
        outcomes = [asyncio.ensure_future(event.wait()) for event in (self.connected, self._done)]
        try:
            await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for outcome in outcomes:
                outcome.cancel()

    def enter_service(self) -> bool:
        """Begin to tell the driver of the process's end; False when that end has come already."""
        self._in_service = not self._done.is_set()
        return self._in_service

    async def _await_end(self, process: ProcessIdentity) -> None:
        await wait_exit(process)
        if self._done.is_set():
            return
        reason = "its process ended"
        try:
            await areach("host.ended.before")
            await self._hear_last_words()
            reason = await self._how_ended()
            await self.computer.stop(grace=0)
        except TreeNotStopped as error:
            log.error("%s", error)
        except Exception:
            # Whatever went wrong here, the driver must hear of the end.
            log.exception("the end of a process of session %s was not dealt with in full", self.spec.session_id)
        self._end(reason)
        await areach("host.ended.after")

    async def _hear_last_words(self) -> None:
        """Take what it sent before its end, which still counts: a turn that it settled is settled."""
        if self._link is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS):
                    await self._down.wait()
        await self._finish_answers()

    async def _finish_answers(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LAST_ANSWERS)

    def _end(self, reason: str | None) -> None:
        """Let go of everything; tell the driver, if there is a reason, that the runtime is gone."""
        if self._done.is_set():
            return
        self._done.set()
        self._unlisten()
        for connection in self._connections:
            connection.close("the worker lets go")
        self._let_go(self)
        if reason is not None and self._in_service:
            self._driver.lost(reason)

    # --- what comes in

    def _take(self, link: Connection, message: FromGuest) -> None:
        if isinstance(message, Hello):
            self._greet(link, message)
        elif link is not self._link:
            link.close("it has not said hello, or was succeeded")
        elif isinstance(message, Ask):
            self._ask(message)
        elif isinstance(message, Told):
            reach("host.told")
            self._directives = {n: frame for n, frame in self._directives.items() if n > message.number}
        elif isinstance(message, Fenced):
            self._fenced(message.epoch)

    def _greet(self, link: Connection, hello: Hello) -> None:
        reach("host.hello")
        if self._process is None:
            # The guest dialled before the fork server told us which process it is.
            self._early.append((link, hello))
        elif self._done.is_set():
            link.close("the worker lets go")
        elif not self._is_ours(link, self._process):
            link.send(encode(Refused("another process has its place")))
            link.close("it is not the session's process")
        elif hello.version != VERSION or hello.run_id != self.spec.run_id:
            log.warning("a process of run %s was told to end: run %s is served", hello.run_id, self.spec.run_id)
            link.send(encode(Refused(f"run {self.spec.run_id} in protocol {VERSION} is served now")))
            link.close("it was refused")
        elif hello.epoch > self.spec.epoch:
            self._fenced(hello.epoch)
        else:
            self._welcome(link)

    def _is_ours(self, link: Connection, process: ProcessIdentity) -> bool:
        assert link.transport is not None
        pid, uid = sockets.peer(link.transport.get_extra_info("socket"))
        if pid == process.pid and uid == os.getuid():
            return True
        log.warning("process %s of user %s dialled for session %s; refused", pid, uid, self.spec.session_id)
        return False

    def _welcome(self, link: Connection) -> None:
        if self._link is not None:
            self._link.close("it has dialled anew")
        self._link = link
        self._down.clear()
        link.send(encode(Welcome(self.spec.epoch, self._attachment)))
        for frame in self._directives.values():
            link.send(frame)
        self.connected.set()
        reach("host.welcome")

    def _lost_link(self, link: Connection, why: str) -> None:
        self._connections.discard(link)
        if link is self._link:
            log.debug("the link of session %s is down: %s", self.spec.session_id, why)
            self._link = None
            self.connected.clear()
            self._down.set()

    def _fenced(self, epoch: int) -> None:
        self._end(f"another worker has taken the session over (epoch {epoch}, ours was {self.spec.epoch})")

    # --- requests

    def _ask(self, ask: Ask) -> None:
        """Answer each request once, however often it is sent: from memory if it was answered before."""
        reach("host.request", type(ask.request).__name__)
        self._answers = {n: frame for n, frame in self._answers.items() if n >= ask.floor}
        if ask.id not in self._answers:
            self._answers[ask.id] = None
            self._spawn(self._answer(ask.id, ask.request))
        elif (frame := self._answers[ask.id]) is not None:
            self._send(frame)

    async def _answer(self, number: int, request: Request) -> None:
        frame = await self._frame_of_answer(number, request)
        self._answers[number] = frame
        self._send(frame)
        await areach("host.reply.after", type(request).__name__)

    async def _frame_of_answer(self, number: int, request: Request) -> bytes:
        try:
            frame = encode(Reply(number, await self._driver.handle(request)))
            await areach("host.reply.before", type(request).__name__)
            return frame
        except PerdureError as error:
            return encode(Reply(number, error=describe_failure(error)))
        except Exception as error:
            log.exception("a request of session %s failed in the worker", self.spec.session_id)
            failure = PerdureError(f"The worker failed on this request: {error!r}. Its log has the details.")
            return encode(Reply(number, error=describe_failure(failure)))

    def _send(self, frame: bytes) -> None:
        if self._link is not None:
            self._link.send(frame)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- what the driver calls

    def tell(self, directive: Directive) -> None:
        """See `Guest.tell`. What the guest has not confirmed is told again when it dials anew."""
        reach("host.tell.before", type(directive).__name__)
        self._told += 1
        frame = self._directives[self._told] = encode(Tell(self._told, directive))
        self._send(frame)
        reach("host.tell.after", type(directive).__name__)

    async def stop(self, grace: float) -> None:
        """See `Guest.stop`. Raises `TreeNotStopped` when processes do not even obey SIGKILL."""
        await areach("host.stop.before")
        self._end_watch()
        await self.computer.stop(grace)
        await self._finish_answers()
        await self._leave()
        await areach("host.stop.after")

    async def hibernate(self) -> str:
        """See `Guest.hibernate`. Raises `NotSupported` when its processes do not stop; then they all run on."""
        # The socket goes before the link: no dialling guest may be left waiting in it, which some backends cannot save.
        self._unlisten()
        await areach("host.quiesce.before")
        for connection in self._connections - {self._link}:
            connection.close("its Computer hibernates")
        if self._link is not None:
            self._send(encode(Quiesce()))
            await self._quiet()
        await areach("host.quiesce.after")
        try:
            return _in_words(await self.computer.hibernate())
        except TreeNotStopped as error:
            self.listen()
            raise NotSupported(error.message, error.details) from error

    async def _quiet(self) -> None:
        try:
            async with asyncio.timeout(QUIET_TIMEOUT):
                await self._down.wait()
        except TimeoutError:
            if self._link is not None:
                self._link.close("it did not fall quiet")

    async def resume(self) -> str:
        """See `Guest.resume`. Raises `Unavailable` when the runtime does not answer in 30 s."""
        self.listen()
        await areach("host.resume.before")
        await self.computer.resume()
        await areach("host.resume.after")
        if not await self.until_connected(RESUME_TIMEOUT):
            raise Unavailable(
                f"The process of session {self.spec.session_id} was continued and did not answer in "
                f"{RESUME_TIMEOUT:g} s. It is still there; stop it, or wait for it."
            )
        return "its processes went on where they had been stopped"

    async def detach(self) -> None:
        """See `Guest.detach`."""
        self._end_watch()
        await self._leave()

    async def _leave(self) -> None:
        self._end(None)
        for connection in list(self._connections):
            await connection.until_gone(LAST_WORDS)

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()


async def _make(connection: Connection, accepted: socket.socket) -> None:
    await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, accepted)


def _in_words(released: Released) -> str:
    text = f"its processes are stopped; they hold {released.after / 1e6:.1f} of {released.before / 1e6:.1f} MB"
    return f"{text} ({released.note})" if released.note else text
