"""A real `perdure dev` in a process of its own, and what the workloads ask of it over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.httpline import Line
from bench.load import INPUT

PROJECT = Path(__file__).parent.parent / "project"
START_LIMIT = 30.0
DURABILITY = "SQLite WAL, synchronous=FULL, group commit; server in a process of its own, HTTP on loopback"


class ServerFailed(Exception):
    """The server did not come up; the message has what it printed."""


def content(text: str) -> list[dict[str, str]]:
    """Text as the API takes it."""
    return [{"type": "text", "text": text}]


class Server:
    """`perdure dev` on a free port with its data in a folder, which outlives it."""

    def __init__(self, folder: Path) -> None:
        """Start it and wait until it is ready.

        Raises:
            ServerFailed: it ended, or was not ready within 30 s.
        """
        project, self._log = folder / "project", folder / "server.log"
        shutil.copytree(PROJECT, project, dirs_exist_ok=True)
        self.port = free_port()
        command = [str(Path(sys.executable).with_name("perdure")), "dev", str(project), "--data", str(folder / "data")]
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port)], stdout=log, stderr=log, start_new_session=True
            )
        self.started_at = time.time()
        self.ready_at = self._wait()

    def _wait(self) -> float:
        """The wall-clock time of the first answer that says ready."""
        stop = time.monotonic() + START_LIMIT
        while time.monotonic() < stop and self.process.poll() is None:
            if _is_ready(self.port):
                return time.time()
            time.sleep(0.005)
        self.kill()
        raise ServerFailed(f"perdure dev did not get ready:\n{self._log.read_text()[-3000:]}")

    def rss(self) -> int:
        """Resident bytes of the server's own process."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def kill(self) -> None:
        """As `kill -9` does it: nothing is flushed, nobody is told."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """As Ctrl-C does it."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.kill()


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    try:
        yield server
    finally:
        server.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


async def create(line: Line, agent: str, text: str = INPUT) -> dict[str, Any]:
    """A new session with its first input: the receipt."""
    receipt = await line.request("POST", f"/v1/agents/{agent}/sessions", {"input": content(text)})
    return dict(receipt)


async def enqueue(line: Line, session: str, text: str = INPUT) -> dict[str, Any]:
    """One more input: the receipt."""
    return dict(await line.request("POST", f"/v1/sessions/{session}/enqueue", {"input": content(text)}))


async def output_of(line: Line, session: str, turn: str | None = None) -> None:
    """Return once a turn of the session, or this one, has committed an output."""
    for _ in range(1500):
        page = await line.request("GET", f"/v1/sessions/{session}/events?after=0&limit=100")
        outputs = [event for event in page["events"] if event["type"] == "turn.output"]
        if any(turn in (None, event["turn_id"]) for event in outputs):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"session {session} had no output within 30 s")


async def settled(line: Line, receipt: dict[str, Any]) -> dict[str, Any]:
    """The receipt's turn, once it has ended."""
    session, turn = receipt["session_id"], receipt["turn_id"]
    while True:
        answer = await line.request("GET", f"/v1/sessions/{session}/turns/{turn}/wait?timeout=30s")
        if answer["status"] == "settled":
            return dict(answer["turn"])


async def on_lines(port: int, count: int, work: Any) -> list[Any]:
    """Run `work(line)` on `count` kept connections at once; their results."""
    lines = [await Line.open(port) for _ in range(count)]
    try:
        return list(await asyncio.gather(*[work(line) for line in lines]))
    finally:
        for line in lines:
            await line.close()
