"""Named places in the path of a turn where a test can pull the plug.

A point is reached by name and, where one place serves many purposes, by a label (the command, message or operation at
hand). Unarmed, reaching one costs a comparison. `PERDURE_CRASH_POINT="name[=label]:action[:nth]"` arms one in a
process: at the nth time that it is reached (default 1) the action happens once:

* `kill` ends the process as `kill -9` would,
* `raise` raises `CrashPointReached`,
* `hang` stops that thread or coroutine for good.

`PERDURE_CRASH_POINT=@FILE` arms all processes that see the variable with what FILE says, which is looked at whenever a
point is reached: so a running process can be armed. The one process that acts first takes FILE away and puts in its
place `FILE.reached`, which holds `name=label:action pid`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from dataclasses import dataclass
from typing import Final, Literal

Action = Literal["kill", "raise", "hang"]
VARIABLE: Final = "PERDURE_CRASH_POINT"
REACHED: Final = ".reached"

POINTS: Final[tuple[str, ...]] = (
    # The store, for every command; labels are names of commands.
    "store.decide.before",
    "store.decide.after",
    "store.commit.before",
    "store.commit.after",
    "store.publish.before",
    "store.publish.after",
    # The server, for every request; labels are ids of operations.
    "server.request.before",
    "server.reply.before",
    "server.reply.after",
    # What is asked from outside; labels are names of commands.
    "engine.admit.before",
    "engine.admit.after",
    # What a session's driver does; labels are its actions.
    "engine.act.before",
    "engine.act.after",
    "engine.spawn.before",
    "engine.spawn.after",
    "engine.begin.before",
    "engine.begin.after",
    "engine.stop.marked",
    "engine.stop.ended",
    "engine.hibernate.stopped",
    "engine.resume.continued",
    "engine.recover.claimed",
    "engine.recover.found",
    "engine.sleep.before",
    "engine.sleep.after",
    "engine.tick.before",
    "engine.tick.after",
    # What a runtime asks of the driver; labels are names of requests.
    "engine.request.before",
    "engine.request.after",
    # The runtime, in the worker for inline sessions and in the guest for others; labels are names of requests.
    "runtime.init.before",
    "runtime.init.after",
    "runtime.ready.before",
    "runtime.ready.after",
    "runtime.begin",
    "runtime.handler.before",
    "runtime.handler.after",
    "runtime.output.before",
    "runtime.output.after",
    "runtime.live.before",
    "runtime.live.after",
    "runtime.ask.before",
    "runtime.ask.asked",
    "runtime.ask.after",
    "runtime.withdraw.before",
    "runtime.withdraw.after",
    "runtime.open_messages.before",
    "runtime.open_messages.after",
    "runtime.message.before",
    "runtime.message.started",
    "runtime.message.after",
    "runtime.message.settled",
    "runtime.step.begun",
    "runtime.step.done",
    "runtime.step.ended",
    "runtime.memo.kept",
    "runtime.settle.before",
    "runtime.settle.after",
    "runtime.stop",
    "runtime.release.before",
    "runtime.release.after",
    # The worker's end of a session's process; labels are names of requests and directives.
    "host.launch.before",
    "host.launch.after",
    "host.hello",
    "host.welcome",
    "host.request",
    "host.reply.before",
    "host.reply.after",
    "host.tell.before",
    "host.tell.after",
    "host.told",
    "host.quiesce.before",
    "host.quiesce.after",
    "host.resume.before",
    "host.resume.after",
    "host.adopt.before",
    "host.adopt.after",
    "host.stop.before",
    "host.stop.after",
    "host.ended.before",
    "host.ended.after",
    # The session's process; labels as for its worker.
    "guest.enter.before",
    "guest.enter.after",
    "guest.dial.before",
    "guest.hello.after",
    "guest.welcome.before",
    "guest.welcome.after",
    "guest.request.before",
    "guest.request.after",
    "guest.reply.before",
    "guest.reply.after",
    "guest.directive.before",
    "guest.directive.after",
    "guest.quiesce",
    "guest.leave",
    # The fork server.
    "forkserver.spawn.before",
    "forkserver.spawn.after",
    "forkserver.exit.before",
    "forkserver.exit.after",
)

SHARED_POINTS: Final[tuple[str, ...]] = (
    # Where several workers share a store.
    "engine.claim.after",
    "engine.lease.lost",
)

TOOL_POINTS: Final[tuple[str, ...]] = (
    # Retention; labels are kinds of rows.
    "store.prune.floor",
    "store.prune.trimmed",
    "store.prune.removed",
    "store.prune.dropped",
    "store.prune.forgotten",
    # Moving an installation from one store to another; labels are kinds of rows.
    "store.copy.begun",
    "store.copy.page",
    "store.copy.done",
)


class CrashPointReached(RuntimeError):
    """Raised at an armed crash point whose action is `raise`."""


@dataclass
class _Armed:
    name: str
    label: str | None
    action: Action
    nth: int
    seen: int = 0

    def due(self, name: str, label: str) -> Action | None:
        """Count one more time, and return the action when its time has come."""
        if self.name != name or self.label not in (None, label):
            return None
        self.seen += 1
        return self.action if self.seen == self.nth else None


class _File:
    """What a file arms, for all the processes that look at it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._identity: tuple[int, int] | None = None
        self._armed: _Armed | None = None

    def due(self, name: str, label: str) -> Action | None:
        """Look at the file, and return the action if it is due and no other process was first."""
        self._look()
        action = self._armed.due(name, label) if self._armed else None
        return action if action and self._claim(f"{name}={label}:{action} {os.getpid()}") else None

    def _look(self) -> None:
        try:
            seen = os.stat(self._path)
            identity = seen.st_ino, seen.st_mtime_ns
            if identity != self._identity:
                with open(self._path, encoding="utf-8") as file:
                    self._armed = _parse(file.read())
                self._identity = identity
        except FileNotFoundError:
            self._armed = self._identity = None

    def _claim(self, note: str) -> bool:
        mine = f"{self._path}.{os.getpid()}"
        try:
            os.rename(self._path, mine)
        except FileNotFoundError:
            return False
        with open(mine, "w", encoding="utf-8") as file:
            file.write(note)
        os.rename(mine, self._path + REACHED)
        return True


_armed: _Armed | _File | None = None


def arm(spec: str | None) -> None:
    """Arm what `spec` says, or disarm with None. Raises ValueError for a spec that names no point or action."""
    global _armed
    _armed = _armed_by(spec) if spec else None


def check(spec: str) -> None:
    """Raise ValueError unless `spec` names a point and an action."""
    _parse(spec)


def _armed_by(spec: str) -> _Armed | _File:
    return _File(spec[1:]) if spec.startswith("@") else _parse(spec)


def _parse(spec: str) -> _Armed:
    where, _, rest = spec.partition(":")
    action, _, nth = rest.partition(":")
    name, _, label = where.partition("=")
    known = (*POINTS, *SHARED_POINTS, *TOOL_POINTS)
    if name not in known:
        raise ValueError(f"unknown crash point {name!r}; known: {', '.join(known)}")
    if action not in ("kill", "raise", "hang"):
        raise ValueError(f"unknown crash action {action!r}; use kill, raise or hang")
    return _Armed(name, label or None, action, int(nth or 1))  # type: ignore[arg-type]


def reach(name: str, label: str = "") -> None:
    """Reach a point from code that may block its thread."""
    if _armed is None:
        return
    action = _armed.due(name, label)
    if action == "hang":
        _tell(name, label, action)
        threading.Event().wait()
    elif action:
        _act(action, name, label)


async def areach(name: str, label: str = "") -> None:
    """Reach a point from a coroutine; `hang` stops only that coroutine."""
    if _armed is None:
        return
    action = _armed.due(name, label)
    if action == "hang":
        _tell(name, label, action)
        await asyncio.Event().wait()
    elif action:
        _act(action, name, label)


def _act(action: Action, name: str, label: str) -> None:
    _tell(name, label, action)
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise CrashPointReached(f"crash point {name} {label}".rstrip())


def _tell(name: str, label: str, action: Action) -> None:
    line = f"crash point {name}{'=' if label else ''}{label} reached in process {os.getpid()}: {action}\n"
    os.write(2, line.encode())


arm(os.environ.get(VARIABLE))
