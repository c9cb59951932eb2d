"""Arming crash points in running processes, and hearing that they were reached."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from perdure.crashpoints import REACHED, VARIABLE, Action, check

_GLANCE: Final = 0.002


class CrashNote(msgspec.Struct, frozen=True):
    """Where the plug was pulled: the point, its label ("" without one), what was done and by which process."""

    point: str
    label: str
    action: str
    pid: int


class CrashFile:
    """A file that arms one crash point in all processes that look at it; the first of them to act disarms it.

    A server looks at it when `environment` is in its environment. Processes of sessions do when their project calls
    `perdure.crashpoints.arm(spec)`, with `spec` from a variable that their template passes on.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Take the file; its folder must exist."""
        self.path: Final = Path(path)

    @property
    def environment(self) -> Mapping[str, str]:
        """The variable that has a server look at the file."""
        return {VARIABLE: self.spec}

    @property
    def spec(self) -> str:
        """What `perdure.crashpoints.arm` takes to look at the file."""
        return f"@{self.path}"

    def arm(self, point: str, action: Action, *, label: str = "", nth: int = 1) -> None:
        """Arm a point, with a label one purpose of it only. Raises ValueError for what is no point or action."""
        spec = f"{point}={label}:{action}:{nth}"
        check(spec)
        self.disarm()
        draft = self.path.with_name(f"{self.path.name}.draft")
        draft.write_text(spec, encoding="utf-8")
        draft.rename(self.path)

    def disarm(self) -> None:
        """Take the arming back, and forget what was reached before."""
        self.path.unlink(missing_ok=True)
        self._reached.unlink(missing_ok=True)

    @property
    def _reached(self) -> Path:
        return self.path.with_name(self.path.name + REACHED)

    def note(self) -> CrashNote | None:
        """Return where the plug was pulled, or None when that has not happened yet."""
        try:
            where, _, pid = self._reached.read_text(encoding="utf-8").partition(" ")
        except FileNotFoundError:
            return None
        place, _, action = where.rpartition(":")
        point, _, label = place.partition("=")
        return CrashNote(point, label, action, int(pid))

    async def wait(self, timeout: float) -> CrashNote:
        """Return the note once there is one; raises TimeoutError after `timeout` seconds."""
        async with asyncio.timeout(timeout):
            while True:
                if note := self.note():
                    return note
                await asyncio.sleep(_GLANCE)

    def wait_blocking(self, timeout: float) -> CrashNote:
        """See `wait`, for tests without an event loop."""
        until = time.monotonic() + timeout
        while (note := self.note()) is None:
            if time.monotonic() > until:
                raise TimeoutError(f"the crash point was not reached in {timeout:g} s")
            time.sleep(_GLANCE)
        return note
