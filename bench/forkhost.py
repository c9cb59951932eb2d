"""The bare limit of a process host: fork a warm interpreter, and have the child dial a unix socket and say one byte.

`python -m bench.forkhost COUNT` prints the latencies as JSON. A process of its own, as a fork copies the page tables
and must not copy threads; asyncio is imported, because no session's process can do without it.
"""

from __future__ import annotations

import asyncio  # noqa: F401
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.environments import ROOT
from bench.stats import Sample


def sample(count: int) -> Sample:
    """`count` forks, one after the other, in a process of their own."""
    command = [sys.executable, "-m", "bench.forkhost", str(count)]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return Sample.of({"latencies_us": json.loads(done.stdout)})


def measure(count: int) -> list[int]:
    """Latencies in microseconds, each from before `fork` to the child's byte being here."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        address = str(Path(folder) / "dial")
        listener.bind(address)
        listener.listen()
        return [round(_once(address, listener) * 1e6) for _ in range(count)]


def _once(address: str, listener: socket.socket) -> float:
    start = time.perf_counter()
    child = os.fork()
    if child == 0:
        _dial(address)
    connection, _ = listener.accept()
    with connection:
        connection.recv(1)
    taken = time.perf_counter() - start
    os.waitpid(child, 0)
    return taken


def _dial(address: str) -> None:
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(address)
            line.sendall(b"!")
    finally:
        os._exit(0)


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
