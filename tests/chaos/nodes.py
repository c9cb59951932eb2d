"""Workers and servers as processes that are started, broken and started again, as by a supervisor."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

READY_SECONDS: Final = 60.0
STOP_SECONDS: Final = 60.0
_PAUSE: Final = 0.3
_FAKETIME: Final = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)


@dataclass(frozen=True)
class Ended:
    """A process of a node has ended: how, after how many seconds, and whether somebody here wanted that."""

    node: str
    code: int
    lived: float
    wanted: bool
    was_ready: bool


class Node:
    """One worker or server. `command` makes its arguments anew for each start."""

    def __init__(
        self,
        name: str,
        folder: Path,
        command: Callable[[], Sequence[str]],
        *,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        url: str = "",
    ) -> None:
        self.name = name
        self.url = url
        self.folder = folder / name
        self.folder.mkdir()
        self.log = self.folder / "log"
        self.ledger = self.folder / "ledger"
        self.ready = asyncio.Event()
        self.ends: list[Ended] = []
        self.lock = asyncio.Lock()
        """Held while somebody breaks it, so that two do not at once."""
        self._command = command
        self._prefix = list(prefix)
        self._own = {"CHAOS_LEDGER": str(self.ledger), "CHAOS_NODE": name, **(environment or {})}
        self.sleeps = False
        """Whether its clocks can be made to stand still while it is stopped."""
        self._clock = self.folder / "clock"
        self._offset = 0.0
        self._process: asyncio.subprocess.Process | None = None
        self._up = asyncio.Event()
        self._wanted_end = False
        self._keeping: asyncio.Task[None] | None = None

    # --- life

    def start(self) -> None:
        """Have it run from now on; it is started again whenever it ends."""
        self._up.set()
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        while True:
            await self._up.wait()
            await self._live()
            await asyncio.sleep(_PAUSE)

    async def _live(self) -> None:
        self._wanted_end = False
        begun = time.monotonic()
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._prefix,
                *self._command(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, **self._own},
                cwd=self.folder,
                start_new_session=True,
            )
        was_ready = await self._listen(self._process)
        code = await self._process.wait()
        self.ends.append(Ended(self.name, code, time.monotonic() - begun, self._wanted_end, was_ready))
        self.ready.clear()
        self._process = None

    async def _listen(self, process: asyncio.subprocess.Process) -> bool:
        assert process.stdout is not None
        with self.log.with_name("said").open("ab") as said:
            async for line in process.stdout:
                said.write(line)
                said.flush()
                if line.startswith(b"{") and json.loads(line).get("event") == "ready":
                    self.ready.set()
        return self.ready.is_set()

    @property
    def pid(self) -> int | None:
        """The process's number, while there is one."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def until_ready(self) -> None:
        """Wait until it serves or works."""
        async with asyncio.timeout(READY_SECONDS):
            await self.ready.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send its process a signal, if it has one."""
        pid = self.pid
        if pid is not None:
            self._wanted_end = self._wanted_end or number in (signal.SIGKILL, signal.SIGTERM)
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    async def stop(self, number: signal.Signals) -> None:
        """End it and leave it so, and wait until it is gone."""
        self._up.clear()
        self.signal(number)
        async with asyncio.timeout(STOP_SECONDS):
            while self._process is not None:
                await asyncio.sleep(0.02)

    async def close(self) -> None:
        """End it for good."""
        self.signal(signal.SIGCONT)
        await self.stop(signal.SIGKILL)
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])

    # --- its clock

    def fake_clock(self, *, sleeps: bool) -> bool:
        """Give it, from its next start on, a clock that can be moved; tells whether this machine can do that.

        One that `sleeps` is as that of a virtual machine that is suspended: it does not notice the time that passes
        meanwhile, on no clock. That of others jumps as when people set it, which monotonic clocks do not follow.
        """
        if _FAKETIME is None:
            return False
        self.sleeps = sleeps
        self.set_clock(0)
        self._own |= {
            "LD_PRELOAD": str(_FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self._clock),
            "FAKETIME_CACHE_DURATION": "1",
        }
        if not sleeps:
            self._own |= {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1"}
        return True

    @property
    def jumps(self) -> bool:
        """Whether its wall clock can be set."""
        return "LD_PRELOAD" in self._own and not self.sleeps

    def set_clock(self, offset: float) -> None:
        """Move its clock to so many seconds from the true time."""
        self._offset = offset
        draft = self._clock.with_name("clock.draft")
        draft.write_text(f"{offset:+.3f}\n")
        draft.rename(self._clock)

    def sleep_through(self, seconds: float) -> None:
        """Let it not know of the seconds that it was stopped for."""
        self.set_clock(self._offset - seconds)


def perdure(*words: str) -> list[str]:
    """Return the command line of the program."""
    return [sys.executable, "-m", "perdure.cli.main", *words]
