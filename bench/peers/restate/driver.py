"""Restate: its server and a service in Python, both on loopback, called through the server's HTTP ingress.

`python -m bench.peers.restate.driver FOLDER`

The service is served by hypercorn, as the SDK's documentation has it, but allowed to keep its connections: with
hypercorn's own default, a connection ends after 1,000 requests and Restate waits half a second before the next one.
Restate orders the turns of a conversation by itself. A turn is one request, which is answered with its result.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import load, wire
from bench.environments import HERE
from bench.httpline import HttpFailed, Line, Lines

HOME = HERE / ".venvs" / "restate"
SERVER = HOME / "node_modules" / "@restatedev" / "restate-server" / "package.json"
PATIENCE = 60.0
_PR_SET_PDEATHSIG = 1
SETTINGS = """
cluster-name = "bench"
roles = ["http-ingress", "admin", "worker", "log-server", "metadata-server"]
auto-provision = true
default-num-partitions = 4
log-filter = "warn"
base-dir = "{folder}"
bind-ip = "127.0.0.1"
listen-mode = "tcp"
bind-port = {node}
disable-telemetry = true
[ingress]
bind-port = {ingress}
[admin]
bind-port = {admin}
"""
HYPERCORN = """
keep_alive_max_requests = 1000000000
h2_max_concurrent_streams = 2000
worker_class = "uvloop"
workers = 0
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def binary() -> Path:
    """The server's program for this machine, which npm installs as a package of its own."""
    (found,) = HOME.glob("node_modules/@restatedev/restate-server-*/bin/restate-server")
    return found


class Restate:
    """The server and the service, which end when this process does, however that ends."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self.ingress, self.admin, self.service = free_port(), free_port(), free_port()
        self._lines = Lines(self.ingress)
        self._waiting, self._gate = folder / "waiting", folder / "gate"
        settings = folder / "restate.toml"
        ports = {"node": free_port(), "ingress": self.ingress, "admin": self.admin}
        settings.write_text(SETTINGS.format(folder=folder / "data", **ports))
        self.processes = [self._start([binary(), "--no-logo", "-c", settings], folder), self._serve()]

    def _serve(self) -> subprocess.Popen[bytes]:
        settings = self._folder / "hypercorn.toml"
        settings.write_text(HYPERCORN)
        hypercorn = [HOME / "bin" / "hypercorn", "-c", settings, "--bind", f"127.0.0.1:{self.service}"]
        return self._start([*hypercorn, "--log-level", "error", "service:app"], Path(__file__).parent)

    def _start(self, command: list[object], where: Path) -> subprocess.Popen[bytes]:
        with (self._folder / "log").open("a") as log:
            return subprocess.Popen(
                [str(word) for word in command],
                cwd=where,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "BENCH_WAITING": str(self._waiting), "BENCH_GATE": str(self._gate)},
                preexec_fn=_die_with_the_parent,
            )

    async def open(self) -> None:
        """Wait for the server, and make the service known to it."""
        stop = time.monotonic() + PATIENCE
        while True:
            try:
                return await asyncio.to_thread(self._register)
            except OSError as why:
                if time.monotonic() > stop or any(process.poll() is not None for process in self.processes):
                    said = (self._folder / "log").read_text()[-1500:]
                    raise RuntimeError(f"restate-server or its service did not get ready: {why}\n{said}") from why
            await asyncio.sleep(0.1)

    def _register(self) -> None:
        body = json.dumps({"uri": f"http://127.0.0.1:{self.service}", "force": True}).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.admin}/deployments", body, headers)
        with urllib.request.urlopen(request, timeout=10) as answer:
            answer.read()

    async def turn(self, conversation: str, index: int) -> None:
        line = await self._lines.take()
        answer = await line.request("POST", f"/Conversation/{conversation}/turn", load.INPUT)
        assert answer == load.RESPONSE, answer
        self._lines.give_back(line)

    async def warm(self) -> None:
        """The first turns come back once the server has heard of the service everywhere."""
        stop = time.monotonic() + PATIENCE
        while True:
            try:
                return await self.turn("warm", 0)
            except HttpFailed:
                if time.monotonic() > stop:
                    raise
            await asyncio.sleep(0.1)

    async def crash(self, count: int) -> float:
        """Kill the service with so many turns in flight and start it again; seconds until it has run all and the next.

        The server is not killed: it tries the interrupted turns again as soon as it reaches the service.
        """
        line = await Line.open(self.ingress)
        for number in range(count):
            await line.request("POST", f"/Conversation/stuck-{number}/stay/send", load.INPUT)
        while not self._waiting.exists() or self._waiting.read_text().count("one") < count:
            await asyncio.sleep(0.02)
        self.processes[1].kill()
        self.processes[1].wait()
        start = time.monotonic()
        self._gate.touch()
        self.processes[1] = self._serve()
        await asyncio.gather(*[self.turn(f"stuck-{number}", 1) for number in range(count)])
        return time.monotonic() - start

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()


def _die_with_the_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


async def hello(restate: Restate) -> dict[str, Any]:
    return {
        "system": "restate",
        "versions": {
            "restate-server": json.loads(SERVER.read_text())["version"],
            "restate-sdk": version("restate-sdk"),
        },
        "durability": "its own log and RocksDB, the server's defaults, 4 partitions; service in Python on hypercorn",
        "pids": [process.pid for process in restate.processes],
    }


async def main() -> None:
    answers, restate = wire.take_stdout(), Restate(Path(sys.argv[1]) / "restate")
    try:
        await restate.open()
        await restate.warm()
        operations: dict[str, wire.Operation] = {
            "hello": partial(hello, restate),
            "turns": partial(load.converse, restate.turn),
            "create": partial(load.open_many, restate.turn),
            "crash": restate.crash,
        }
        await wire.serve(operations, answers)
    finally:
        restate.stop()


if __name__ == "__main__":
    wire.run(main)
