"""Takes away what a run has made (processes, mounts, namespaces), also when the run itself is killed.

`python -m tests.chaos.cleaner MARK` reads shell commands, one a line, until its input ends: when the run closes it or
dies. Then it kills every process that has MARK in its command line or environment, and runs the commands, last first.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_PATIENCE = 30.0


class Cleaner:
    """What cleans up behind this process. `mark` is a word that all processes of the run have about them."""

    def __init__(self, mark: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.cleaner", mark],
            stdin=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            start_new_session=True,
        )

    def later(self, *words: str) -> None:
        """Have a command run at the end."""
        assert self._process.stdin is not None
        self._process.stdin.write(("\x1f".join(words) + "\n").encode())
        self._process.stdin.flush()

    def clean(self) -> None:
        """Clean up now, and return when it is done."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(2 * _PATIENCE)


def marked(mark: str) -> list[int]:
    """Return the living processes, but this one, that have a mark about them."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with suppress(OSError):
                seen = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
                if mark.encode() in seen:
                    found.append(int(folder.name))
    return found


def _kill(mark: str) -> None:
    until = time.monotonic() + _PATIENCE
    while (found := marked(mark)) and time.monotonic() < until:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def main() -> None:
    """Wait for the end of the run, then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    commands = sys.stdin.read().splitlines()
    _kill(sys.argv[1])
    for command in reversed(commands):
        done = subprocess.run(command.split("\x1f"), capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"cleaning up: {command.split(chr(31))} failed: {done.stderr.strip()}", file=sys.stderr)


if __name__ == "__main__":
    main()
