"""`perdure dev` as users start it, and the command line against it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure.cli.main import run

PATIENCE = "60s"

INLINE = """
import asyncio
import perdure

echo = perdure.Agent("echo")

@echo.turn
async def turn(turn, ctx):
    verb, _, rest = turn.text.partition(" ")
    if verb == "fail":
        raise ValueError(rest)
    if verb == "count":
        for number in range(int(rest)):
            await turn.output.write(f"{number}")
    if verb == "sleep":
        await asyncio.sleep(float(rest))
    if verb == "ask":
        answer = await turn.ask(rest, answer={"type": "choice", "options": [
            {"id": "y", "label": "Yes", "value": {"go": True}}, {"id": "n", "label": "No", "value": None}]})
        return answer.value
    print("printed", verb)
    await turn.respond(f"heard {turn.text}")
    return {"verb": verb}
"""


def write_project(folder: Path, source: str = INLINE) -> Path:
    """Write a project of one file of agents."""
    (folder / "agents").mkdir(parents=True)
    (folder / "agents" / "echo.py").write_text(source)
    return folder


class Dev:
    """A `perdure dev` in a process of its own."""

    def __init__(self, project: Path, port: int = 0, *flags: str) -> None:
        self.project = project
        command = [sys.executable, "-m", "perdure.cli.main", "dev", str(project), "--port", str(port), "--json", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.url = self.wait_for("ready")["url"]

    def wait_for(self, event: str) -> dict[str, Any]:
        """Read what it says until it says that."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said: dict[str, Any] = json.loads(line)
            if said["event"] == event:
                return said
        raise AssertionError(f"perdure dev ended with {self.process.wait()}: {self.process.communicate()[1]}")

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        """End it as a power cut would."""
        self.process.kill()
        self._reap()

    def stop(self) -> int:
        """End it as Ctrl-C would, and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        self._reap()
        return self.process.returncode

    def _reap(self) -> None:
        self.process.communicate(timeout=60)


@contextmanager
def running(project: Path, *flags: str) -> Iterator[Dev]:
    """Run a project for the length of a block."""
    dev = Dev(project, 0, *flags)
    try:
        yield dev
    finally:
        dev.stop()


class Cli:
    """The command line in this process, and what it prints."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.url = url
        self._capsys = capsys

    def _run(self, arguments: tuple[str, ...]) -> int:
        self._capsys.readouterr()
        here = arguments[0] in ("init", "dev", "api-key", "login", "logout")
        return run([*arguments, *([] if here else ["-a", self.url])])

    def text(self, *arguments: str) -> str:
        """Return what a command that succeeds prints."""
        code = self._run(arguments)
        printed = self._capsys.readouterr()
        assert (code, printed.err) == (0, ""), printed
        return printed.out

    def json(self, *arguments: str) -> Any:
        """Return the document that a command that succeeds prints."""
        return json.loads(self.text(*arguments, "--json"))

    def lines(self, *arguments: str) -> list[Any]:
        """Return the documents that a command that succeeds prints, one a line."""
        return [json.loads(line) for line in self.text(*arguments, "--jsonl").splitlines()]

    def fails(self, *arguments: str) -> str:
        """Return the one line that a command that fails says."""
        code = self._run(arguments)
        printed = self._capsys.readouterr()
        assert (code, printed.out) == (1, ""), printed
        assert printed.err.count("\n") == 1
        return printed.err

    def create(self, *arguments: str) -> tuple[str, str]:
        """Create a session and return its id and that of its turn."""
        receipt = self.json("session", "create", *arguments)
        return receipt["session_id"], receipt["turn_id"]

    def settled(self, session_id: str, turn_id: str) -> Any:
        """Wait for a turn and return it."""
        result = self.json("session", "turn", "wait", turn_id, "--session", session_id, "--timeout", PATIENCE)
        assert result["status"] == "settled", result
        return result["turn"]


def field(text: str, name: str) -> str:
    """Return the value of a `key: value` line."""
    return next(line.partition(": ")[2] for line in text.splitlines() if line.startswith(f"{name}: "))


def clean_environment(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make sure that nothing of the machine's own user leaks in."""
    for name in [name for name in os.environ if name.startswith("PERDURE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PERDURE_CONFIG_DIR", str(folder / "config"))
