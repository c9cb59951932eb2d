"""A data folder, the server that works on it and the crash point that is armed in it; servers come and go."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from crash_warm import Warm

from perdure.computers.tree import process_table
from perdure.testing import CrashFile, Ledger
from perdure.testing.dev import free_port

PROJECT = Path(__file__).with_name("project")
START_SECONDS = 20.0
END_SECONDS = 20.0


class NotReady(Exception):
    """Raised when a server ended before it served."""


class Server:
    """One server process, from its start to its end."""

    def __init__(self, warm: Warm, arguments: list[str], environment: dict[str, str], log: Path) -> None:
        self._out, out = os.pipe()
        with log.open("ab") as errors:
            request = {"arguments": arguments, "environment": environment}
            self.pid, self.pidfd = warm.spawn(request, out, errors.fileno())
        os.close(out)

    def until_ready(self, timeout: float) -> None:
        """Wait until it serves; raises `NotReady`."""
        said, until = b"", time.monotonic() + timeout
        while b'"event":"ready"' not in said:
            readable, _, _ = select.select([self._out], [], [], max(0.0, until - time.monotonic()))
            piece = os.read(self._out, 4096) if readable else b""
            if not piece:
                raise NotReady(f"server {self.pid} said {said.decode()!r} and no more")
            said += piece

    @property
    def runs(self) -> bool:
        return not select.select([self.pidfd], [], [], 0)[0]

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    async def gone(self, timeout: float = END_SECONDS) -> None:
        """Return when it has ended."""
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        # A descriptor of its own, since several may wait.
        descriptor = os.dup(self.pidfd)
        loop.add_reader(descriptor, ended.set)
        try:
            async with asyncio.timeout(timeout):
                await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)

    def close(self) -> None:
        self.signal(signal.SIGKILL)
        select.select([self.pidfd], [], [], END_SECONDS)
        os.close(self.pidfd)
        os.close(self._out)


class World:
    """A project, its data, and whichever server works on it now."""

    def __init__(self, root: Path, warm: Warm) -> None:
        self.root = root
        self.crash = CrashFile(root / "crash")
        self.ledger = Ledger(root / "ledger")
        self.log = root / "server.log"
        self.url = f"http://127.0.0.1:{free_port()}"
        self.broken = False
        self.starts = 0
        self._warm = warm
        self._server: Server | None = None
        self._starting = asyncio.Lock()
        self.restarted = asyncio.Event()

    def begin(self) -> None:
        """Take part in another test, which has a loop of its own."""
        self._starting = asyncio.Lock()
        self.restarted = asyncio.Event()

    @property
    def server(self) -> Server:
        assert self._server is not None
        return self._server

    async def up(self) -> None:
        """Have a server that serves; one that a crash point ends before that is started again."""
        async with self._starting:
            for _ in range(3):
                if self._server is not None and self._server.runs:
                    return
                with suppress(NotReady):
                    await self._start()
                    return
        raise AssertionError(f"no server came up:\n{self.tail()}")

    async def _start(self) -> None:
        if self._server is not None:
            self._server.close()
        self.starts += 1
        port = self.url.rpartition(":")[2]
        options = ["--port", port, "--data", str(self.root / "data"), "--no-reload", "--json"]
        environment = {**self.crash.environment, "CRASH_POINT": self.crash.spec, "CRASH_LEDGER": str(self.ledger.path)}
        self._server = Server(self._warm, ["dev", str(PROJECT), *options], environment, self.log)
        await asyncio.to_thread(self._server.until_ready, START_SECONDS)
        self.restarted.set()

    async def kill(self, pid: int) -> None:
        """End a process as `kill -9` does; if it was the server, another one is up after."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if pid == self.server.pid:
            await self.server.gone()
            await self.up()

    async def stop_server(self) -> None:
        """Ask the server to stop, as a deploy does, and wait for its end."""
        server = self.server
        server.signal(signal.SIGTERM)
        await server.gone()

    def tail(self) -> str:
        """Return the end of the server's log."""
        return self.log.read_text(errors="replace")[-6000:] if self.log.exists() else ""

    def close(self) -> None:
        """Kill what runs out of this folder."""
        if self._server is not None:
            self._server.close()
        for pid in process_table():
            if pid != os.getpid() and str(self.root) in _seen(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _seen(pid: int) -> str:
    parts = []
    for name in ("cmdline", "environ"):
        with suppress(OSError):
            parts.append(Path(f"/proc/{pid}/{name}").read_text(errors="replace"))
    return "".join(parts)


class Worlds:
    """The world that cases share one after the other, and a new one after a case that failed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._warm = Warm()
        self._current: World | None = None
        self._made = 0

    @contextmanager
    def use(self) -> Iterator[World]:
        """Yield the shared world."""
        if self._current is None:
            self._current = self.make()
        try:
            yield self._current
        except BaseException:
            self._current.close()
            self._current = None
            raise

    def make(self) -> World:
        """Return a new world of the caller's own, who has to close it."""
        self._made += 1
        root = self._root / f"world-{self._made}"
        root.mkdir()
        return World(root, self._warm)

    def close(self) -> None:
        if self._current is not None:
            self._current.close()
        self._warm.close()
