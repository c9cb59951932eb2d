"""Runs a document: writes its files, runs its commands on a real server, and holds what it shows against what comes.

In a document, code blocks named `python PATH` are files, and `console` blocks are commands (`$ …`) with what they show.
In shown output `…` stands for anything, on a line of its own for any lines, and words in capitals that end in ID
(`SESSION_ID`) for ids: they are remembered when they are seen, and filled in where a later command has them. A comment
`<!-- until: EVENT -->` lets the runner wait, as a person would, for that event of the newest turn or of the session;
`<!-- not run -->` passes over a block.

`perdure dev`, `serve` and `worker` are left running. A document that sets `PERDURE_STORE` to a PostgreSQL gets a new
database of the tests' own in its place, and free ports in place of those that it names.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from perdure.cli import main
from perdure.client.sync import Client

_FENCE = re.compile(r"^(?:<!-- (?P<note>[^>]*) -->\n)?```(?P<info>[^\n]*)\n(?P<body>.*?)^```$", re.M | re.S)
_NAMES = re.compile(r"\b(?:[A-Z]+_)*(?:ID|PID|KEY_SECRET)\b")
_PORT = re.compile(r"\b737[0-9]\b")
_ID = r"[0-9a-f-]{36}"
# Commands that set up a machine and not Perdure.
SERVERS = ("dev", "serve", "worker")
SKIPPED = ("pip install", "make ", "git clone", "sudo ", "apt-get ", "systemctl ", "cd perdure")


class Block(NamedTuple):
    """One code block: what it is, what a comment above it says, what is in it, and the line on which that begins."""

    info: str
    note: str
    body: str
    line: int


class Step(NamedTuple):
    """One command and the lines that the document shows under it."""

    command: str
    shown: list[str]


def blocks(document: Path) -> list[Block]:
    """Return the code blocks of a document."""
    text = document.read_text("utf-8")
    return [
        Block(match["info"].strip(), match["note"] or "", match["body"], text.count("\n", 0, match.start("body")) + 1)
        for match in _FENCE.finditer(text)
    ]


def steps(block: Block) -> list[Step]:
    """Return the commands of a console block."""
    found: list[Step] = []
    for line in block.body.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            found.append(Step(line[2:], []))
        else:
            found[-1].shown.append(line)
    return found


class DocRunner:
    """One document at work in one folder. `replaced` are texts in its files that would take too long.

    `database` returns the address of a new database.
    """

    def __init__(
        self,
        document: Path,
        folder: Path,
        replaced: dict[str, str] | None = None,
        database: Callable[[], str] | None = None,
    ) -> None:
        self._document = document
        self._folder = folder
        self._replaced = replaced or {}
        self._database = database
        self._known: dict[str, str] = {}
        self._servers: list[subprocess.Popen[str]] = []
        self._ports: dict[str, str] = {}
        self._url = ""
        self._seen = 0

    def run(self) -> int:
        """Run the document and return how many commands it had; raises AssertionError where it is wrong."""
        with contextlib.chdir(self._folder):
            return sum(self._run_block(block) for block in blocks(self._document))

    def _run_block(self, block: Block) -> int:
        language, _, path = block.info.partition(" ")
        if block.note == "not run":
            return 0
        if block.note.startswith("until: "):
            self._await_event(block.note.removeprefix("until: "))
        if path:
            self._write(Path(path), block.body)
        if language != "console":
            return 0
        commands = steps(block)
        for step in commands:
            self._run_step(step, block)
        return len(commands)

    def _write(self, path: Path, text: str) -> None:
        for old, new in self._replaced.items():
            text = text.replace(old, new)
        (self._folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self._folder / path).write_text(text, "utf-8")

    def _run_step(self, step: Step, block: Block) -> None:
        if step.command.startswith(SKIPPED):
            return
        command = _NAMES.sub(lambda match: self._known.get(match[0], match[0]), step.command)
        printed = self._execute(shlex.split(command))
        problem = self._compare(step.shown, printed.splitlines())
        where = f"{self._document.name}, the block of line {block.line}: $ {step.command}"
        assert problem is None, f"{where}\n{problem}\nIt printed:\n{printed}"

    def _execute(self, words: list[str]) -> str:
        words = [os.path.expandvars(_PORT.sub(lambda match: self._port(match[0]), word)) for word in words]
        if words[0] == "perdure" and words[1] in SERVERS:
            return self._start(words[1:])
        if words[0] == "kill":
            return self._kill(int(words[-1]), signal.SIGKILL if words[1] == "-9" else signal.SIGTERM)
        if words[0] == "export" and words[1].startswith("PERDURE_STORE="):
            assert self._database is not None
            os.environ["PERDURE_STORE"] = self._database()
            return ""
        if words[0] == "perdure":
            return self._perdure(words[1:])
        if words[0] in ("python", "pytest"):
            module = ["-m", "pytest", "-p", "no:cacheprovider", "-q"] if words[0] == "pytest" else []
            return self._python([*module, *words[1:]])
        if words[0] in ("cat", "cp", "mkdir"):
            return subprocess.run(words, check=True, capture_output=True, text=True, timeout=30).stdout
        raise AssertionError(f"the runner does not know the command {words[0]}")

    def _perdure(self, words: list[str]) -> str:
        """Run a command in this process, as its program does; what it says on stderr counts as printed."""
        printed, said = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
            main.run(words)
        return printed.getvalue() + said.getvalue()

    def _python(self, words: list[str]) -> str:
        done = subprocess.run(
            [sys.executable, *words], capture_output=True, text=True, timeout=100, check=False, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    # --- servers and workers

    def _port(self, shown: str) -> str:
        """Return the port that stands for the one in the document."""
        if shown not in self._ports:
            with socket.socket() as found:
                found.bind(("127.0.0.1", 0))
                self._ports[shown] = str(found.getsockname()[1])
        return self._ports[shown]

    def _start(self, words: list[str]) -> str:
        where = [] if "--port" in words or words[0] == "worker" else ["--port", self._port("7373")]
        server = subprocess.Popen(
            [sys.executable, "-u", "-m", "perdure.cli.main", *words, *where],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        self._servers.append(server)
        assert server.stdout is not None
        printed = ""
        for line in server.stdout:
            printed += line
            if match := re.search(r"ready at (http://\S+:\d+)", line):
                if not self._url:
                    self._url = os.environ["PERDURE_API_URL"] = match[1]
                break
            if line == "Perdure works\n":
                break
        else:
            raise AssertionError(f"it did not start:\n{printed}")
        for shown, port in self._ports.items():
            printed = printed.replace(port, shown)
        return printed

    def _kill(self, pid: int, number: signal.Signals) -> str:
        os.kill(pid, number)
        for server in [each for each in self._servers if each.pid == pid]:
            server.wait(timeout=60)
            self._servers.remove(server)
            assert server.stdout is not None
            server.stdout.close()
        return ""

    def stop(self) -> None:
        """End all servers and workers, and before them the sessions with their processes."""
        running = [server for server in self._servers if server.poll() is None]
        if running and self._url:
            with Client(self._url) as client:
                for session in client.sessions.iter(status=["open", "closing"]):
                    client.session(session.id).cancel()
                    _until_ended(client, session.id)
        for server in running:
            server.terminate()
        for server in self._servers:
            server.wait(timeout=60)
            assert server.stdout is not None
            server.stdout.close()

    def _await_event(self, kind: str) -> None:
        turn = self._known["TURN_ID"] if kind.startswith("turn.") else None
        with Client(self._url) as client:
            for event in client.session(self._known["SESSION_ID"]).iter_events(after=self._seen, follow=True):
                if event.type == kind and turn in (None, event.turn_id):
                    self._seen = event.seq
                    return
        raise AssertionError(f"{self._document.name}: the session ended without {kind}")

    # --- comparing

    def _compare(self, shown: list[str], printed: list[str]) -> str | None:
        """Return what is wrong, or nothing, and remember the ids that were seen."""
        at = 0
        anything = False
        for line in shown:
            if line.strip() == "…":
                anything = True
                continue
            places = range(at, len(printed)) if anything else range(at, min(at + 1, len(printed)))
            found = next((place for place in places if self._fits(line, printed[place])), None)
            if found is None:
                return f"It shows: {line}"
            at, anything = found + 1, False
        return None if anything or at == len(printed) or not shown else f"It does not show: {printed[at]}"

    def _fits(self, shown: str, printed: str) -> bool:
        pattern = ""
        names = []
        for piece in re.split(r"(…|\b(?:[A-Z]+_)*(?:ID|PID)\b)", shown):
            if piece == "…":
                pattern += ".*"
            elif _NAMES.fullmatch(piece):
                names.append(piece)
                pattern += r"(\d+)" if piece.endswith("PID") else f"({_ID})"
            else:
                pattern += re.escape(piece)
        match = re.fullmatch(pattern, printed)
        if match is None:
            return False
        self._known.update(zip(names, match.groups(), strict=True))
        return True


def _until_ended(client: Client, session_id: str) -> None:
    for _ in client.session(session_id).iter_events(follow=True):
        pass


def python_blocks(document: Path) -> Iterator[Block]:
    """Yield the Python of a document."""
    yield from (block for block in blocks(document) if block.info.split(" ")[0] == "python")


def json_blocks(document: Path) -> Iterator[object]:
    """Yield the JSON of a document."""
    yield from (json.loads(block.body) for block in blocks(document) if block.info == "json")
