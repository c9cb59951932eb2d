"""Starting, asking and stopping the processes that are measured."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from bench.environments import ROOT, python_for

MODULES = {
    "ours": "bench.ours.driver",
    "ref": "bench.peers.ref.driver",
    "langgraph": "bench.peers.langgraph.driver",
    "dbos": "bench.peers.dbos.driver",
    "restate": "bench.peers.restate.driver",
    "pgref": "bench.peers.pgref.driver",
    "http": "bench.ours.caller",
}
PATIENCE = 150.0
"""Seconds for one operation; a driver that takes longer is killed and the workload fails."""


class DriverFailed(Exception):
    """A driver died, hung or reported an error; the message has its own words."""


class Driver:
    """One system under test in its own process, spoken to in JSON lines (see wire.py)."""

    def __init__(self, system: str, folder: Path, *extra: str) -> None:
        """Start it with its data in `folder`.

        Raises:
            PeerUnavailable: its packages could not be installed.
        """
        self.system = system
        self._complaints = (folder / f"{system}.stderr").open("w+")
        self._process = subprocess.Popen(
            [python_for(system), "-m", MODULES[system], str(folder), *extra],
            cwd=ROOT,
            env=_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, operation: str, **arguments: Any) -> Any:
        """Run one operation in the driver and return its result.

        Raises:
            DriverFailed: it did not answer, or answered with an error.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the missing answer tells it, with what the driver last said
            self._process.stdin.write(json.dumps({"op": operation, **arguments}) + "\n")
            self._process.stdin.flush()
        answer = self._read()
        if "error" in answer:
            raise DriverFailed(f"{self.system} {operation}: {answer['error']}")
        return answer["ok"]

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        watchdog = threading.Timer(PATIENCE, self._process.kill)
        watchdog.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            raise DriverFailed(f"{self.system} ended: {self._last_words()}")
        return dict(json.loads(line))

    def _last_words(self) -> str:
        self._process.wait()
        self._complaints.seek(0)
        return self._complaints.read()[-2000:] or f"exit status {self._process.returncode}"

    def kill(self) -> None:
        """As `kill -9` does it."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it: first by closing its stdin, then by force."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._complaints.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _environment() -> dict[str, str]:
    """Ours, less what would make a peer report home or slow it down by tracing."""
    quiet = {"LANGSMITH_TRACING": "false", "LANGCHAIN_TRACING_V2": "false", "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **quiet}


@contextlib.contextmanager
def data_folder() -> Iterator[Path]:
    """A folder on a real disk (never tmpfs, where a flush costs nothing), removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-bench-", dir=os.environ.get("PERDURE_BENCH_DIR", "/var/tmp")))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
