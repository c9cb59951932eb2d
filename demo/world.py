"""What the demo acts on: a server that it starts, kills and starts again, and the command line that speaks to it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

from demo.stage import Stage
from perdure.api.events import Event
from perdure.cli import main
from perdure.client.aio import AsyncClient
from perdure.computers.exits import wait_exit
from perdure.computers.identity import identify, send_signal

START_SECONDS: Final = 30
COMMAND_SECONDS: Final = 60
EVENT_SECONDS: Final = 30
STOP_SECONDS: Final = 15

Document = dict[str, Any]


class WorldError(Exception):
    """Raised when something that the demo runs does not do its part."""


class World:
    """One project, one server and its clients."""

    def __init__(self, project: Path, stage: Stage) -> None:
        self.project = project
        self.data = project / ".perdure"
        self.url = ""
        self._stage = stage
        self._port = 0
        self._server: asyncio.subprocess.Process | None = None

    # --- the server

    async def start(self) -> float:
        """Start `perdure dev`, the first time on a free port and then on that one; return the seconds it took."""
        words = ["dev", "demo-project", *(["--port", str(self._port)] if self._port else [])]
        self._stage.command(f"perdure {' '.join(words)}")
        begun = time.monotonic()
        self._server = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "perdure.cli.main", "dev", str(self.project), "--port", str(self._port), "--json"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(START_SECONDS):
            self.url = await self._until_ready(self._server)
        self._port = int(self.url.rpartition(":")[2])
        seconds = time.monotonic() - begun
        self._stage.answer(f"Perdure is ready at {self.url}")
        return seconds

    async def _until_ready(self, server: asyncio.subprocess.Process) -> str:
        assert server.stdout is not None
        async for line in server.stdout:
            said = json.loads(line)
            if said["event"] == "ready":
                return str(said["url"])
        assert server.stderr is not None
        raise WorldError(f"The server did not start: {(await server.stderr.read()).decode().strip()}")

    async def kill(self) -> None:
        """End the server as `kill -9` does."""
        assert self._server is not None
        self._stage.happens(f"kill -9 {self._server.pid}   (the server)")
        self._server.kill()
        await self._server.wait()

    async def stop(self) -> int:
        """Ask the server to end, wait for it and return its exit code."""
        assert self._server is not None
        if self._server.returncode is None:
            self._server.terminate()
        async with asyncio.timeout(STOP_SECONDS):
            return await self._server.wait()

    # --- the command line

    async def run(self, *words: str) -> Document:
        """Show a command, run it, and return the document that it prints."""
        code, printed, said = await self._command([*words, "--json"])
        if code != 0:
            raise WorldError(f"perdure {shlex.join(words)} failed: {said}")
        document: Document = json.loads(printed)
        return document

    async def run_refused(self, *words: str) -> tuple[int, str]:
        """Show a command that is to be refused; return its exit code and what it says."""
        code, _, said = await self._command(list(words))
        return code, said

    async def _command(self, words: list[str]) -> tuple[int, str, str]:
        """Run the command line as `perdure` does, but in this process: starting an interpreter takes longer."""
        self._stage.command(f"perdure {shlex.join(word for word in words if word != '--json')}")
        printed, said = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
            async with asyncio.timeout(COMMAND_SECONDS):
                code = await asyncio.to_thread(main.run, [*words, "--api-url", self.url])
        return code, printed.getvalue(), said.getvalue().strip()

    # --- what a program sees

    async def event(self, session: str, kind: str, turn: str | None = None, after: int = 0) -> Event:
        """Wait for an event of a kind, of a turn if one is given, after a sequence number."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EVENT_SECONDS), AsyncClient(self.url) as client:
                async for event in client.session(session).iter_events(after=after, follow=True):
                    if event.type == kind and turn in (None, event.turn_id):
                        return event
        raise WorldError(f"The session has no {kind} after {EVENT_SECONDS} s or at its end.")

    async def clear_away(self) -> list[int]:
        """End whatever is left of all that was started; return the ids of processes that outlive even this."""
        if self._server is not None and self._server.returncode is None:
            self._server.kill()
            await self._server.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                while processes := [found for pid in self._processes() if (found := identify(pid))]:
                    for process in processes:
                        send_signal(process, signal.SIGKILL)
                        await wait_exit(process)
        return self._processes()

    def _processes(self) -> list[int]:
        """Return the processes that run in our folder: its name is nobody else's."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._is_ours(pid)]

    def _is_ours(self, pid: int) -> bool:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False
        return str(self.project).encode() in command


def state_of(pid: int) -> str:
    """Return what the kernel says a process does: `S` sleeps, `R` runs, `T` is stopped; empty when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    state = stat.rpartition(")")[2].split()[0]
    return "" if state in "XZ" else state
