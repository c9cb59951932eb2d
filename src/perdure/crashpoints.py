"""Named places in the turn path where a test can pull the plug.

A crash point is reached by name and an optional label (the command or message at hand). Unarmed, reaching one costs a
comparison. `PERDURE_CRASH_POINT="name[=label]:action[:nth]"` arms one in a process: at the nth time it is reached
(default 1) the action happens once: `kill` ends the process as `kill -9` would, `raise` raises `CrashPointReached`,
`hang` blocks that thread or coroutine for good.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from dataclasses import dataclass
from typing import Literal

Action = Literal["kill", "raise", "hang"]
VARIABLE = "PERDURE_CRASH_POINT"

POINTS: tuple[str, ...] = (
    "store.decide.before",
    "store.decide.after",
    "store.commit.before",
    "store.commit.after",
    "store.publish.before",
    "engine.admitted",
    "engine.spawn.before",
    "engine.spawn.after",
    "engine.init.before",
    "engine.init.after",
    "engine.start_turn.before",
    "engine.start_turn.sent",
    "engine.request.received",
    "engine.request.answered",
    "runtime.handler.before",
    "runtime.handler.after",
    "runtime.output.before",
    "runtime.output.after",
    "runtime.settle.before",
    "runtime.settle.after",
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


_armed: _Armed | None = None


def arm(spec: str | None) -> None:
    """Arm the point that `spec` names, or disarm with None. Raises ValueError for a spec that names nothing."""
    global _armed
    _armed = None if not spec else _parse(spec)


def _parse(spec: str) -> _Armed:
    where, _, rest = spec.partition(":")
    action, _, nth = rest.partition(":")
    name, _, label = where.partition("=")
    if name not in POINTS:
        raise ValueError(f"unknown crash point {name!r}; known: {', '.join(POINTS)}")
    if action not in ("kill", "raise", "hang"):
        raise ValueError(f"unknown crash action {action!r}; use kill, raise or hang")
    return _Armed(name, label or None, action, int(nth or 1))  # type: ignore[arg-type]


def _due(name: str, label: str) -> Action | None:
    armed = _armed
    if armed is None or armed.name != name or armed.label not in (None, label):
        return None
    armed.seen += 1
    return armed.action if armed.seen == armed.nth else None


def reach(name: str, label: str = "") -> None:
    """Reach a point from code that may block its thread."""
    if _armed is None:
        return
    action = _due(name, label)
    if action == "hang":
        threading.Event().wait()
    elif action:
        _act(action, name, label)


async def areach(name: str, label: str = "") -> None:
    """Reach a point from a coroutine; `hang` stops only that coroutine."""
    if _armed is None:
        return
    action = _due(name, label)
    if action == "hang":
        await asyncio.Event().wait()
    elif action:
        _act(action, name, label)


def _act(action: Action, name: str, label: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise CrashPointReached(f"crash point {name} {label}".rstrip())


arm(os.environ.get(VARIABLE))
