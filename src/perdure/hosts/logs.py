"""Logs of user code that runs inside the worker: stdout, stderr and logging, each to the file of its run.

Which run prints is known by a context variable, so that sessions that share the process do not mix.
"""

from __future__ import annotations

import contextvars
import logging
import os
import sys
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
        with open(self._path, "ab", buffering=0) as file:
            file.write(text.encode("utf-8", "replace"))


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

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        log = run_log.get()
        if log is None:
            return
        try:
            log.write(self.format(record) + os.linesep)
        except OSError:
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
    sys.stdout, sys.stderr = _Stream(sys.stdout), _Stream(sys.stderr)
    handler = _Handler()
    handler.setFormatter(formatter())
    logging.getLogger().addHandler(handler)
