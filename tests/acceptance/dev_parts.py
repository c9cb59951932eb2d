"""A `perdure dev` of the test's own: started, killed and started again on the same data; and how to wait for it."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from perdure.api.events import Event
from perdure.api.sessions import Receipt, Session
from perdure.api.turns import Turn
from perdure.client.aio import AsyncClient, AsyncSessionHandle
from perdure.client.retry import Retry
from perdure.computers.identity import identify, send_signal
from perdure.computers.meta import read_meta
from perdure.computers.tree import process_table

PATIENCE = 30.0
PROJECT = Path(__file__).with_name("dev_project")
QUICK = Retry(attempts=400, first=0.02, longest=0.1)
"""Outlasts a server's restart, and notices soon that it is back."""

_started = 0


class Dev:
    """A server as a process of its own. Its port stays the same over restarts, as a user's does."""

    def __init__(self, project: Path, data: Path, *options: str) -> None:
        self.project = project
        self.data = data
        self.options = options
        self.port = free_port()
        self.process: subprocess.Popen[str] | None = None
        self.said: list[dict[str, Any]] = []
        self.noise: list[str] = []
        self._news: queue.Queue[dict[str, Any] | None] = queue.Queue()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    # --- life

    def start(self, **environment: str) -> dict[str, Any]:
        """Start it and wait until it serves."""
        self.launch(**environment)
        return self.hear("ready")

    def launch(self, **environment: str) -> None:
        assert self.process is None
        self._news = queue.Queue()
        self.errors = self.data.with_name(f"{self.data.name}.stderr")
        with self.errors.open("a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "perdure.cli.main", *self.command(), "--json", *self.options],
                stdout=subprocess.PIPE,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                text=True,
                env={**_environment(), **environment},
            )
        threading.Thread(target=self._listen, args=(self.process, self._news), daemon=True).start()

    def command(self) -> list[str]:
        """Return the command, without what all have in common."""
        return ["dev", str(self.project), "--port", str(self.port), "--data", str(self.data)]

    def _listen(self, process: subprocess.Popen[str], news: queue.Queue[dict[str, Any] | None]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                try:
                    said = json.loads(line)
                except ValueError:
                    self.noise.append(line)
                    continue
                self.said.append(said)
                news.put(said)
        news.put(None)

    def hear(self, event: str, patience: float = PATIENCE) -> dict[str, Any]:
        """Return what it says next of that kind; what it says before is passed over."""
        while True:
            said = self._news.get(timeout=patience)
            assert said is not None, f"it ended before it said {event!r}:\n{self.errors.read_text()}"
            if said["event"] == event:
                return said

    def kill(self) -> None:
        """End it as `kill -9` does."""
        assert self.process is not None
        self.process.kill()
        self.ended()

    def terminate(self) -> None:
        """Ask it to stop, without waiting."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)

    def ended(self, patience: float = PATIENCE) -> int:
        """Wait for its end and return its exit code."""
        assert self.process is not None
        code = self.process.wait(patience)
        self.process = None
        return code

    def restart(self) -> None:
        """Kill it with -9 and start it on the same data."""
        self.kill()
        self.start()

    def end(self) -> None:
        """End it and every process that belongs to its data folder."""
        if self.process is not None:
            self.kill()
        end_processes(self.data)

    # --- what it is asked

    @asynccontextmanager
    async def client(self, environment: str = "development") -> AsyncIterator[AsyncClient]:
        async with AsyncClient(self.url, environment=environment, retry=QUICK) as client:
            yield client

    def cli(self, *arguments: str, code: int = 0) -> str:
        """Run a command of the command line against it and return its output, of stderr if it is to fail."""
        ended = subprocess.run(
            [sys.executable, "-m", "perdure.cli.main", *arguments, "--api-url", self.url],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env=_environment(),
            check=False,
        )
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stderr if code else ended.stdout

    def fork_servers(self) -> list[int]:
        """Return the pids of the fork servers of its data folder."""
        return [pid for pid in belonging(self.data) if _is_fork_server(pid)]

    async def guest(self, session: AsyncSessionHandle) -> int:
        """Return the pid of a session's process."""
        computer = (await session.get()).computer
        assert computer is not None
        meta = read_meta(self.data / "computers" / computer.id / "run")
        assert meta is not None
        return meta.process.pid


def _environment() -> dict[str, str]:
    """Return the test's environment without what would lead a server or a command elsewhere."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}


def free_port() -> int:
    """Return a port that nothing else takes by itself while its server is away: one below the ephemeral ones."""
    global _started
    while True:
        _started += 1
        port = 10_000 + (os.getpid() * 37 + _started) % 20_000
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


def copy_project(target: Path) -> Path:
    """Return a copy of the stage project that may be edited."""
    shutil.copytree(PROJECT, target, ignore=shutil.ignore_patterns("__pycache__"))
    return target


# --- processes


def belonging(folder: Path) -> Iterator[int]:
    """Yield the pids of processes whose command line or environment names a folder."""
    for pid in process_table():
        if pid != os.getpid() and str(folder) in _seen(pid):
            yield pid


def end_processes(folder: Path) -> None:
    """Kill what still runs out of a folder; tests that fail must leave nothing behind."""
    for pid in belonging(folder):
        if identity := identify(pid):
            send_signal(identity, signal.SIGKILL)


def _is_fork_server(pid: int) -> bool:
    return "forkserver" in _read(pid, "cmdline") and _comm(pid) != "perdure-guest"


def _comm(pid: int) -> str:
    return _read(pid, "comm").strip()


def _seen(pid: int) -> str:
    return _read(pid, "cmdline") + _read(pid, "environ")


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""


@contextmanager
def prepared(project: Path, folder: Path, *options: str) -> Iterator[Dev]:
    """A server that the block may start, and whose processes are ended after it; its data are below `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    dev = Dev(project, folder / "data", *options)
    try:
        yield dev
    finally:
        dev.end()


@contextmanager
def running(project: Path, folder: Path, *options: str) -> Iterator[Dev]:
    """Serve a project with its data below `folder`, until the block is left."""
    with prepared(project, folder, *options) as dev:
        dev.start()
        yield dev


# --- waiting


async def ended(session: AsyncSessionHandle, receipt: Receipt | str) -> Turn:
    """Wait for a turn's end and return it."""
    turn_id = receipt if isinstance(receipt, str) else receipt.turn_id
    assert turn_id is not None
    result = await session.turn(turn_id).wait(PATIENCE)
    assert result.status == "settled", result
    return result.turn


async def until(session: AsyncSessionHandle, *types: str, count: int = 1, after: int = 0, **data: Any) -> Event:
    """Wait for an event of one of those types, with those data, and return it; `count` says the how manieth."""
    async with asyncio.timeout(PATIENCE), aclosing(session.watch(after=after)) as items:
        async for item in items:
            if isinstance(item, Event) and item.type in types and data.items() <= item.data.items():
                count -= 1
                if not count:
                    return item
    raise AssertionError(f"the session ended without {types}")


async def log_of(session: AsyncSessionHandle) -> list[Event]:
    """Return all events of a session, having checked that their numbers have no gap."""
    events = [event async for event in session.iter_events()]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    return events


async def types_of(session: AsyncSessionHandle, prefix: str = "") -> list[str]:
    """Return the types of a session's events, of those that begin so."""
    return [event.type for event in await log_of(session) if event.type.startswith(prefix)]


def texts(events: list[Event], turn_id: str | None) -> list[str]:
    """Return what a turn wrote."""
    outputs = [event for event in events if event.type == "turn.output" and event.turn_id == turn_id]
    return ["".join(part.get("text", "") for part in event.data["content"]) for event in outputs]


async def is_so(session: AsyncSessionHandle, so: Any) -> Session:
    """Wait until the session is as `so` says, looking after each of its events, and return it."""
    async with asyncio.timeout(PATIENCE), aclosing(session.watch(after=0)) as items:
        async for _ in items:
            if so(found := await session.get()):
                return found
    raise AssertionError("the session ended and is not so")


async def new_file(path: Path) -> None:
    """Wait for a file that a handler makes outside of the log."""
    async with asyncio.timeout(PATIENCE):
        while not path.exists():
            await asyncio.sleep(0.005)


async def gone(pid: int) -> None:
    """Wait for a process's end."""
    async with asyncio.timeout(PATIENCE):
        while identify(pid) is not None:
            await asyncio.sleep(0.005)


def answer_text(turn: Turn) -> str | None:
    """Return the text of a turn's response."""
    return None if turn.response is None else "".join(getattr(part, "text", "") for part in turn.response)
