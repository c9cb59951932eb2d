"""The fork server: a process that has imported a project once and forks a guest from itself for each session.

It is one a deployment and template, since all that it forks share its memory, environment and secrets. It belongs to
no worker: workers connect to its socket, come and go. It starts no threads, as a fork would lose them. It ends by
itself when it has no children and nobody has needed it for a while.

Run as `python -m perdure.hosts.process.forkserver SOURCE FD` with a listening unix socket as descriptor FD.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

from perdure.authoring.project import load_project
from perdure.computers.identity import boot_id
from perdure.crashpoints import reach
from perdure.errors import PerdureError
from perdure.hosts.logs import formatter
from perdure.hosts.process.child import Closable, Spare, fork_spare, prepare_marks
from perdure.hosts.process.exitnotes import ExitNote, write_exit
from perdure.hosts.process.guest import Launch
from perdure.hosts.process.serverwire import FROM_CLIENT, Exited, Spawn, Spawned, SpawnFailed
from perdure.hosts.process.wire import FrameError, Frames, describe_failure, encode
from perdure.hosts.runtime import Handlers

log = logging.getLogger("perdure.forkserver")

IDLE_WITH_CLIENTS: Final = 600.0
IDLE_ALONE: Final = 5.0
REFILL_AFTER: Final = 0.01
MOST_SPARES: Final = 4
DEMAND_MEMORY: Final = 10.0
_PR_SET_CHILD_SUBREAPER: Final = 36


class ForkServer:
    """Forks guests on request and tells its clients how they ended."""

    def __init__(self, listener: socket.socket, handlers: dict[str, Handlers]) -> None:
        """Take the listening socket and the handlers of the project's agents by id."""
        self._listener, self._handlers = listener, handlers
        self._clients: dict[socket.socket, Frames] = {}
        self._children: dict[int, Launch] = {}
        self._spares: list[Spare] = []
        self._demand: deque[float] = deque(maxlen=MOST_SPARES)
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        self._last_use = time.monotonic()
        for end in (listener, self._wake_in, self._wake_out):
            end.setblocking(False)

    def run(self) -> None:
        """Serve until nobody needs this server any more."""
        signal.set_wakeup_fd(self._wake_out.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        while not self._is_over():
            for key, _ in self._selector.select(REFILL_AFTER if self._wants_spares() else IDLE_ALONE):
                self._serve(key.fileobj)
            self._refill()
        self._listener.close()

    def _is_over(self) -> bool:
        allowed = IDLE_WITH_CLIENTS if self._clients else IDLE_ALONE
        return not self._children and time.monotonic() - self._last_use >= allowed

    def _serve(self, ready: Any) -> None:
        if ready is self._listener:
            self._accept()
        elif ready is self._wake_in:
            self._wake_in.recv(4096)
            self._reap()
        elif ready in self._clients:
            self._read(ready)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            client, _ = self._listener.accept()
            client.setblocking(True)
            self._clients[client] = Frames(FROM_CLIENT)
            self._selector.register(client, selectors.EVENT_READ)
            self._last_use = time.monotonic()

    def _read(self, client: socket.socket) -> None:
        try:
            data = client.recv(1 << 16)
            requests = list(self._clients[client].feed(data))
        except (OSError, FrameError) as error:
            log.warning("a client was let go: %s", error)
            data, requests = b"", []
        for request in requests:
            reach("forkserver.spawn.before")
            answer = encode(self._spawn(request))
            reach("forkserver.spawn.after")
            self._send(client, answer)
        if not data:
            self._drop(client)

    def _send(self, client: socket.socket, frame: bytes) -> None:
        try:
            client.sendall(frame)
        except OSError as error:
            log.warning("a client is gone: %s", error)
            self._drop(client)

    def _drop(self, client: socket.socket) -> None:
        if self._clients.pop(client, None) is not None:
            self._selector.unregister(client)
            client.close()
            self._last_use = time.monotonic()

    def _spawn(self, request: Spawn) -> Spawned | SpawnFailed:
        self._last_use = time.monotonic()
        self._demand.append(self._last_use)
        if request.launch.spec.agent.id not in self._handlers:
            return SpawnFailed(request.id, f"the project defines no agent {request.launch.spec.agent.id!r}")
        while True:
            try:
                spare = self._spares.pop(0) if self._spares else self._fork(in_hurry=True)
            except OSError as error:
                return SpawnFailed(request.id, f"the system cannot start another process: {error.strerror}")
            if spare.launch(request.launch):
                self._children[spare.process.pid] = request.launch
                return Spawned(request.id, spare.process)

    def _fork(self, *, in_hurry: bool) -> Spare:
        ends: list[Closable] = [self._listener, self._wake_in, self._wake_out, self._selector, *self._clients]
        ends += [spare.channel for spare in self._spares]
        return fork_spare(self._handlers, ends, in_hurry=in_hurry)

    def _wants_spares(self) -> bool:
        """Tell whether there are fewer spares than were needed in the last seconds."""
        now = time.monotonic()
        recent = sum(now - then < DEMAND_MEMORY for then in self._demand)
        return len(self._spares) < max(1, recent)

    def _refill(self) -> None:
        """Have spares at hand again, once there has been time for what the last ones were taken for."""
        if self._wants_spares() and time.monotonic() - self._last_use >= REFILL_AFTER:
            with contextlib.suppress(OSError):
                self._spares.append(self._fork(in_hurry=False))

    def _reap(self) -> None:
        """Note how children ended; orphans that came to us, as to their subreaper, just go."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._spares = [spare for spare in self._spares if spare.process.pid != pid]
            launch = self._children.pop(pid, None)
            if launch is not None:
                self._last_use = time.monotonic()
                self._tell_exit(launch, pid, os.waitstatus_to_exitcode(status))

    def _tell_exit(self, launch: Launch, pid: int, code: int) -> None:
        reach("forkserver.exit.before")
        with contextlib.suppress(FileNotFoundError):
            # The run folder is gone when its Computer was deleted meanwhile.
            write_exit(Path(launch.run), ExitNote(launch.spec.run_id, pid, code))
        for client in list(self._clients):
            self._send(client, encode(Exited(launch.spec.run_id, pid, code)))
        reach("forkserver.exit.after")


def load_handlers(source: str) -> dict[str, Handlers]:
    """Import the project below `source` and return its agents' handlers by id."""
    project = load_project(source, exclusive=True)
    return {
        name: Handlers(agent.turn_handler, agent.init_handler)
        for name, agent in project.agents.items()
        if agent.turn_handler is not None
    }


def refuse(listener: socket.socket, error: PerdureError) -> None:
    """Tell the first client that the project cannot be imported, whatever it asks for."""
    client, _ = listener.accept()
    # Closed before the answer: whoever tries again after it must find nobody here and start another server.
    listener.close()
    with client:
        frames = Frames(FROM_CLIENT)
        while data := client.recv(1 << 16):
            for request in frames.feed(data):
                client.sendall(encode(SpawnFailed(request.id, error.message, describe_failure(error))))
                return


def main(source: str, descriptor: str) -> None:
    """Import the project, then fork guests until nobody needs any."""
    _log_to_stderr()
    listener = socket.socket(fileno=int(descriptor))
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        handlers = load_handlers(source)
    except PerdureError as error:
        refuse(listener, error)
        return
    if threading.active_count() > 1:
        log.warning("importing the project started threads; sessions will not have them: start them in init")
    _settle()
    ForkServer(listener, handlers).run()


def _log_to_stderr() -> None:
    # Not on the root logger: that one is the project's to configure, and the guests'.
    handler = logging.StreamHandler()
    handler.setFormatter(formatter())
    log.addHandler(handler)
    log.propagate = False


def _settle() -> None:
    """Leave as little as possible for each guest to do, to copy and to write out again."""
    boot_id()
    prepare_marks()
    sys.stdout.flush()
    sys.stderr.flush()
    gc.collect()
    gc.disable()
    gc.freeze()


if __name__ == "__main__":
    main(*sys.argv[1:])
