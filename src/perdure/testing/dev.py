"""`perdure dev` as a process of its own, for tests that crash it and start it again on the same data."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec

from perdure.client.sync import Client
from perdure.crashpoints import VARIABLE, check

START_SECONDS: Final = 60.0
END_SECONDS: Final = 60.0


class ServerNotStarted(Exception):
    """Raised when the server ended, or said nothing, before it was ready; the message has what it printed."""


class DevServer:
    """A `perdure dev` that this test starts, kills and starts again. Its port and data stay the same meanwhile.

    A context manager: entering it starts the server, leaving it kills it, if it still runs.
    """

    def __init__(
        self,
        project: str | os.PathLike[str],
        data: str | os.PathLike[str],
        *,
        port: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Take the project and the data folder. `environment` is added to that of this process."""
        self.project: Final = Path(project)
        self.data: Final = Path(data)
        self.port: Final = free_port() if port is None else port
        self.environment: Final = dict(environment or {})
        self.log: Final = self.data.with_name(f"{self.data.name}.log")
        """What the server printed on stderr, over all its starts."""
        self._process: subprocess.Popen[bytes] | None = None
        self._said: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Its process's number; raises RuntimeError when it does not run."""
        return self._running().pid

    @property
    def runs(self) -> bool:
        """Whether its process is alive."""
        return self._process is not None and self._process.poll() is None

    def client(self) -> Client:
        """Return a client of it."""
        return Client(self.url)

    # --- life

    def start(self, *, crash_point: str | None = None, timeout: float = START_SECONDS) -> None:
        """Start it and return once it serves. `crash_point` arms one in it: `name[=label]:kill|raise|hang[:nth]`.

        Raises `ServerNotStarted`, and RuntimeError when it runs already.
        """
        if self.runs:
            raise RuntimeError("The server runs already; kill or stop it first.")
        self.data.parent.mkdir(parents=True, exist_ok=True)
        self._said = queue.SimpleQueue()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment(crash_point),
            )
        threading.Thread(target=self._listen, args=(self._process, self._said), daemon=True).start()
        self._until_ready(timeout)

    def _command(self) -> list[str]:
        where = ["--port", str(self.port), "--data", str(self.data)]
        return [sys.executable, "-m", "perdure.cli.main", "dev", str(self.project), *where, "--no-reload", "--json"]

    def _environment(self, crash_point: str | None) -> dict[str, str]:
        if crash_point is not None:
            check(crash_point)
        armed = {} if crash_point is None else {VARIABLE: crash_point}
        return {**os.environ, **self.environment, **armed}

    @staticmethod
    def _listen(process: subprocess.Popen[bytes], said: queue.SimpleQueue[dict[str, Any] | None]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                if line.startswith(b"{"):
                    said.put(msgspec.json.decode(line))
        said.put(None)

    def _until_ready(self, timeout: float) -> None:
        try:
            while (said := self._said.get(timeout=timeout)) is not None:
                if said["event"] == "ready":
                    return
            why = "The server ended before it was ready"
        except queue.Empty:
            why = f"The server was not ready in {timeout:g} s"
        self.kill()
        raise ServerNotStarted(f"{why}. It printed:\n{self.log.read_text(errors='replace')}")

    def kill(self) -> None:
        """End it as `kill -9` does and return when it is gone; nothing to do when it does not run."""
        if self._process is not None:
            self._process.kill()
            self.wait()

    def stop(self, timeout: float = END_SECONDS) -> int:
        """Ask it to stop gracefully, wait for its end and return its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(timeout)

    def signal(self, number: int) -> None:
        """Send it a signal; raises RuntimeError when it does not run."""
        self._running().send_signal(number)

    def wait(self, timeout: float = END_SECONDS) -> int:
        """Wait for its end and return its exit code, negative for a signal; raises `subprocess.TimeoutExpired`."""
        code = self._running().wait(timeout)
        self._process = None
        return code

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("The server does not run; start it first.")
        return self._process

    def __enter__(self) -> DevServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listened on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
