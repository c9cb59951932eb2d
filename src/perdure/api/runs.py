"""Runs: a session's periods of execution, and what user code printed in them."""

from __future__ import annotations

from perdure.api.base import Id, Instant, Omitted, Wire
from perdure.records.sessions import Recovery


class Run(Wire):
    """One period of execution of a session on one process."""

    id: Id
    session_id: Id
    number: int
    recovery: Recovery
    deployment_id: Id
    started_at: Instant
    ended_at: Omitted[Instant] = None
    end_reason: Omitted[str] = None


class RunPage(Wire):
    """Runs in order of number. No `next_after` means that there are no more now."""

    runs: list[Run]
    next_after: Omitted[int] = None


class LogPage(Wire):
    """A piece of a run's log: its stdout, stderr and logging. Offsets count bytes.

    Bytes that are not UTF-8 are replaced by U+FFFD. `eof` tells that the run has ended and all has been read.
    """

    data: str
    next_offset: int
    eof: bool
