"""Logs of user code that runs inside the worker: stdout, stderr and logging, each to the file of its run.

Which run prints is known by a context variable, so that sessions that share the process do not mix. Warnings that are
logged outside of any run, as the server's own are, go to stderr.
"""

from __future__ import annotations

import contextvars
import logging
import os
import sys
from collections.abc import Iterable
from typing import Any, Final, TextIO

from perdure.records import instants

run_log: Final[contextvars.ContextVar[RunLog | None]] = contextvars.ContextVar("perdure_run_log", default=None)


class RunLog:
    """A run's log file; opened for each write, since most runs write little and thousands may live at once."""

    __slots__ = ("_path",)

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, text: str) -> None:
        """Append text to the file."""
        self.write_bytes(text.encode("utf-8", "backslashreplace"))

    def write_bytes(self, data: bytes) -> None:
        """Append bytes to the file, in one piece."""
        with open(self._path, "ab", buffering=0) as file:
            file.write(data)


class _Stream:
    """Stands in for stdout or stderr: what a run prints goes to its log, all else where it went before."""

    def __init__(self, original: TextIO) -> None:
        self._original = original

    def write(self, text: str) -> int:
        log = run_log.get()
        if log is None:
            return self._original.write(text)
        log.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    @property
    def buffer(self) -> Any:
        log = run_log.get()
        return self._original.buffer if log is None else _Bytes(log)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


class _Bytes:
    """The `buffer` of a stream, as a run sees it."""

    def __init__(self, log: RunLog) -> None:
        self._log = log

    def write(self, data: bytes) -> int:
        self._log.write_bytes(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""


class _Handler(logging.Handler):
    """Writes to the run's log at the level of the root logger, and outside of runs to stderr from warnings on."""

    def __init__(self, stderr: TextIO) -> None:
        super().__init__()
        self._stderr = stderr

    def emit(self, record: logging.LogRecord) -> None:
        log = run_log.get()
        if log is None and record.levelno < logging.WARNING:
            return
        try:
            line = self.format(record) + os.linesep
            if log is None:
                self._stderr.write(line)
                self._stderr.flush()
            else:
                log.write(line)
        except Exception:
            self.handleError(record)


class _Formatter(logging.Formatter):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002
        return instants.format_instant(int(record.created * instants.SECOND))


def formatter() -> logging.Formatter:
    """Return the format of lines that logging writes to a run's log."""
    return _Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")


def capture() -> None:
    """Route this process's stdout, stderr and logging by run; doing so twice changes nothing."""
    if isinstance(sys.stdout, _Stream):
        return
    handler = _Handler(sys.stderr)
    handler.setFormatter(formatter())
    sys.stdout, sys.stderr = _Stream(sys.stdout), _Stream(sys.stderr)
    root = logging.getLogger()
    root.addHandler(handler)
    # As in a session's own process: what user code tells of its work is worth keeping.
    root.setLevel(min(root.level, logging.INFO) or logging.INFO)
