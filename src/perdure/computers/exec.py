"""Running one program to its end, with bounded time and bounded output."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from perdure.computers.base import ExecResult
from perdure.computers.exits import wait_child
from perdure.computers.identity import identify
from perdure.computers.tree import ProcessTree

_CHUNK: Final = 1 << 16


class _Collector:
    """Takes what a program prints; keeps the first bytes, lets the rest go by so that the program is never stuck."""

    def __init__(self, pipe: IO[bytes], limit: int) -> None:
        self._pipe, self._limit = pipe, limit
        self.kept = bytearray()
        self.truncated = False
        os.set_blocking(pipe.fileno(), False)
        asyncio.get_running_loop().add_reader(pipe.fileno(), self._take)
        self._open = True

    def _take(self) -> bool:
        try:
            data = os.read(self._pipe.fileno(), _CHUNK)
        except BlockingIOError:
            return False
        room = self._limit - len(self.kept)
        self.kept += data[:room]
        self.truncated = self.truncated or len(data) > room
        if not data:
            self._forget()
        return bool(data)

    def _forget(self) -> None:
        if self._open:
            asyncio.get_running_loop().remove_reader(self._pipe.fileno())
            self._open = False

    def finish(self) -> bytes:
        """Take what is in the pipe by now, not waiting for those who hold it open in the background."""
        while self._open and self._take():
            pass
        self._forget()
        self._pipe.close()
        return bytes(self.kept)


async def run_program(
    argv: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    stdin: bytes,
    timeout: float,
    output_limit: int,
    started: Callable[[int], Awaitable[None]],
) -> ExecResult:
    """Run `argv` to its end and return what it printed; after `timeout` seconds, or cancelled, it is killed whole.

    `started` is awaited with the pid while the program runs.
    """
    process = _start(argv, cwd, environment, stdin)
    assert process.stdout is not None
    assert process.stderr is not None
    collectors = [_Collector(process.stdout, output_limit), _Collector(process.stderr, output_limit)]
    in_time = False
    try:
        await started(process.pid)
        in_time = await _ended(process.pid, timeout)
    finally:
        if not in_time:
            await _kill(process)
        code = process.wait()
        stdout, stderr = (collector.finish() for collector in collectors)
    return ExecResult(
        exit_code=code if in_time else None,
        stdout=stdout,
        stderr=stderr,
        truncated=any(collector.truncated for collector in collectors),
        timed_out=not in_time,
    )


def _start(argv: Sequence[str], cwd: Path, environment: Mapping[str, str], stdin: bytes) -> subprocess.Popen[bytes]:
    # A file and not a pipe: a program that does not read its input cannot block us.
    with tempfile.TemporaryFile() as source:
        source.write(stdin)
        source.seek(0)
        return subprocess.Popen(
            argv,
            cwd=cwd,
            env=dict(environment),
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )


async def _ended(pid: int, timeout: float) -> bool:
    try:
        async with asyncio.timeout(timeout):
            await wait_child(pid)
    except TimeoutError:
        return False
    return True


async def _kill(process: subprocess.Popen[bytes]) -> None:
    root = identify(process.pid)
    if root is not None:
        tree = ProcessTree("")
        tree.add_root(root)
        await tree.end(grace=0)
