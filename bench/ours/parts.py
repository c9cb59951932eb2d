"""An installation in parts on one PostgreSQL: `perdure serve` and `perdure worker` in processes of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

from bench.ours.server import PROJECT, ServerFailed, free_port

START_LIMIT = 60.0
DURABILITY = "PostgreSQL, group commit; inline host, HTTP on loopback"


class Part:
    """One process of ours, with a data folder of its own: a machine by itself, as far as it can tell."""

    def __init__(self, folder: Path, name: str, *command: str) -> None:
        """Start it and wait until it says that it is ready.

        Raises:
            ServerFailed: it ended, or was not ready within a minute.
        """
        self.name = name
        self._log = folder / f"{name}.log"
        perdure = str(Path(sys.executable).with_name("perdure"))
        data = ["--data", str(folder / name), "--json"]
        with self._log.open("a") as log:
            self.process = subprocess.Popen(
                [perdure, *command, *data], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        stop = time.monotonic() + START_LIMIT
        while not self._said("ready"):
            if time.monotonic() > stop or self.process.poll() is not None:
                self.kill()
                raise ServerFailed(f"perdure {command[0]} did not get ready:\n{self._log.read_text()[-3000:]}")
            time.sleep(0.01)

    def _said(self, event: str) -> bool:
        lines = [line for line in self._log.read_text().splitlines() if line.startswith("{")]
        return any(_event(line) == event for line in lines)

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """As `kill -9` does it."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> None:
        """Ask it to stop, without waiting."""
        self.process.send_signal(signal.SIGTERM)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.terminate()
        try:
            self.process.wait(timeout=40)
        except subprocess.TimeoutExpired:
            self.kill()


def _event(line: str) -> Any:
    try:
        return json.loads(line).get("event")
    except ValueError:
        # It is being written.
        return None


class Server(Part):
    """`perdure serve`; it runs sessions itself if it `works`."""

    def __init__(self, folder: Path, name: str, store: str, *, works: bool = False, lease: str = "15s") -> None:
        self.port = free_port()
        works_too = ["--lease", lease] if works else ["--no-worker"]
        super().__init__(folder, name, "serve", "--store", store, "--port", str(self.port), *works_too)

    def deploy(self) -> None:
        """Deploy the agents that are measured."""
        perdure = str(Path(sys.executable).with_name("perdure"))
        done = subprocess.run(
            [perdure, "deploy", str(PROJECT), "--api-url", f"http://127.0.0.1:{self.port}"],
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise ServerFailed(f"perdure deploy failed: {done.stdout}{done.stderr}")


class Worker(Part):
    """`perdure worker`."""

    def __init__(self, folder: Path, name: str, store: str, *, lease: str = "15s") -> None:
        super().__init__(folder, name, "worker", "--store", store, "--lease", lease)
