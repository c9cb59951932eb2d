"""The bare limit of a process host: fork a warm interpreter, and have the child dial a unix socket and say one byte."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any


def measure(count: int) -> dict[str, Any]:
    """Latencies in microseconds of `count` forks, each from before `fork` to the child's byte being here."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        address = str(Path(folder) / "dial")
        listener.bind(address)
        listener.listen()
        return {"latencies_us": [round(_once(address, listener) * 1e6) for _ in range(count)]}


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
