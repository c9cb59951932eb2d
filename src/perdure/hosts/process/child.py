"""What a process does between its fork and its work as a guest.

It is forked ahead of need, as a *spare*: it leaves the fork server behind, makes its event loop and rehearses, so that
the memory that a guest writes to has been copied before anybody waits for it. Then it waits to be told whose guest it
is. A spare whose server dies ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import gc
import io
import logging
import os
import random
import signal
import socket
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, Protocol

import msgspec

from perdure.computers.identity import ProcessIdentity, identify, own_identity
from perdure.computers.limits import limit_self
from perdure.computers.meta import GuestMeta, write_meta
from perdure.computers.tree import MARK
from perdure.crashpoints import reach
from perdure.hosts.logs import formatter
from perdure.hosts.process.guest import FAILED, Launch, run_guest
from perdure.hosts.process.rehearsal import rehearse
from perdure.hosts.runtime import Handlers

MARK_ROOM: Final = 64
"""How long the id of a Computer may be, in bytes, to be written over the fork server's empty mark."""

_PR_SET_NAME: Final = 15
_NAME: Final = b"perdure-guest"
_LAUNCH: Final = msgspec.msgpack.Decoder(Launch)

log = logging.getLogger("perdure.run")
_mark_at = 0


class Closable(Protocol):
    """A descriptor's owner."""

    def close(self) -> None:
        """Close it."""
        ...


class Spare(NamedTuple):
    """A forked process that waits for its task, as the fork server sees it."""

    process: ProcessIdentity
    channel: socket.socket

    def launch(self, launch: Launch) -> bool:
        """Give it its task; False when it is dead."""
        with self.channel:
            try:
                self.channel.sendall(msgspec.msgpack.encode(launch))
                self.channel.shutdown(socket.SHUT_WR)
            except OSError:
                return False
            return True


def fork_spare(handlers: Mapping[str, Handlers], server_ends: Iterable[Closable], *, in_hurry: bool) -> Spare:
    """Fork a spare. It closes `server_ends`, which are the server's alone, and rehearses unless a task waits for it.

    Raises OSError when the system refuses.
    """
    ours, its = socket.socketpair()
    try:
        pid = os.fork()
    except OSError:
        ours.close()
        its.close()
        raise
    if pid == 0:
        _leave_server([ours, *server_ends])
        _be_spare(its, handlers, in_hurry=in_hurry)
    its.close()
    process = identify(pid)
    if process is None:
        ours.close()
        raise ChildProcessError(0, "the new process ended at once")
    return Spare(process, ours)


def _be_spare(channel: socket.socket, handlers: Mapping[str, Handlers], *, in_hurry: bool) -> NoReturn:
    code = FAILED
    try:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        if not in_hurry:
            loop.run_until_complete(rehearse())
        task = _await_task(channel)
        if task is None:
            os._exit(0)
        launch = _LAUNCH.decode(task)
        _enter_computer(launch)
        code = run_guest(loop, launch, handlers[launch.spec.agent.id])
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else FAILED
        log.warning("the session's process ends: user code called sys.exit(%r)", ending.code)
    except BaseException:
        log.critical("the session's process ends", exc_info=True)
    finally:
        logging.shutdown()
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        # No interpreter's end: it would run what belongs to the server, and wait for threads of user code.
        os._exit(code)


def _await_task(channel: socket.socket) -> bytes | None:
    """Return the task, which is all that comes until the channel ends; None when the server has died."""
    with channel, channel.makefile("rb") as stream:
        return stream.read() or None


# --- before the task is known


def _leave_server(server_ends: Iterable[Closable]) -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    for end in server_ends:
        end.close()
    os.setsid()
    gc.enable()
    _reseed()
    _log_to_stderr()
    ctypes.CDLL(None).prctl(_PR_SET_NAME, _NAME, 0, 0, 0)
    sys.argv = [_NAME.decode()]


def _reseed() -> None:
    """Part with the server's random state, which all its children would share."""
    random.seed()
    if "uuid_utils" in sys.modules:
        sys.modules["uuid_utils"].reseed_rng()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


def _log_to_stderr() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(formatter())
        root.addHandler(handler)
        root.setLevel(logging.INFO)


# --- once it is


def _enter_computer(launch: Launch) -> None:
    reach("guest.enter.before")
    _open_log(launch.spec.log_path)
    os.chdir(launch.workspace)
    os.environ.update(launch.environment)
    _mark(launch.computer_id)
    limit_self(launch.rlimits, launch.cores)
    write_meta(Path(launch.run), GuestMeta(own_identity(), launch.spec.run_id, launch.spec.epoch))
    reach("guest.enter.after")


def _open_log(path: str) -> None:
    """Send stdout, stderr and logging to the run's file. A file, because a pipe would kill us with its reader."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    for fd in (1, 2):
        os.dup2(file, fd)
    os.close(file)
    faulthandler.enable()


def _mark(computer_id: str) -> None:
    """Write the Computer's id over the empty mark that the server was started with.

    `/proc/PID/environ` shows that very memory, and `fork` copies it: so this process and all that it forks are
    known for the Computer's by it, also those that never `exec` and outlive their parents.
    """
    value = computer_id.encode()
    if not _mark_at or len(value) > MARK_ROOM:
        raise RuntimeError(f"no room for the mark of Computer {computer_id}")
    ctypes.memmove(_mark_at, value.ljust(MARK_ROOM, b"\0"), MARK_ROOM)


def empty_mark() -> dict[str, str]:
    """Return the variable that a fork server must be started with."""
    return {MARK: "-" * MARK_ROOM}


def prepare_marks() -> None:
    """Find the empty mark in this process's memory, for its children. To be called once, in the fork server."""
    global _mark_at
    text = Path("/proc/self/stat").read_bytes()
    fields: list[Any] = text[text.rindex(b")") + 2 :].split()
    start, end = int(fields[47]), int(fields[48])
    name = f"{MARK}=".encode()
    at = ctypes.string_at(start, end - start).find(name + b"-" * MARK_ROOM)
    _mark_at = start + at + len(name) if at >= 0 else 0
