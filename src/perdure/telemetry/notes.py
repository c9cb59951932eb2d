"""What is said in passing: commits, what was done again, claims and leases, processes."""

from __future__ import annotations

from time import perf_counter

from perdure.records import instants
from perdure.telemetry import metrics
from perdure.telemetry.instruments import is_recording
from perdure.telemetry.traces import Span, tracer


def committed(commands: int, began: float) -> None:
    """Note that a transaction of so many commands is flushed; `began` is a reading of `time.perf_counter`."""
    if is_recording():
        metrics.COMMITS.add()
        metrics.COMMIT_COMMANDS.observe(commands)
        metrics.COMMIT_SECONDS.observe(perf_counter() - began)
    if tracer() is not None:
        _trace("commit", began, {"perdure.commands": commands})


def retried(code: str | None) -> None:
    """Note that something is done again; `code` is the database's, None when the connection was lost."""
    metrics.STORE_RETRIES.add(code or "connection")


def heard(sessions: int) -> None:
    """Note that others have said which sessions they have changed."""
    metrics.HINTS_HEARD.add(by=sessions)


def claimed(sessions: int, began: float) -> None:
    """Note an attempt to claim sessions."""
    if sessions:
        metrics.CLAIMS.add(by=sessions)
        _trace("claim", began, {"perdure.sessions": sessions})


def renewed(granted: bool) -> None:
    """Note an attempt to renew a lease, and whether it was granted."""
    metrics.LEASE_RENEWALS.add("granted" if granted else "refused")


def lost_lease() -> None:
    """Note that a lease has run out while its worker was at work."""
    metrics.LEASES_LOST.add()


def process_started(began: float) -> None:
    """Note that a session's process has said its first word."""
    metrics.PROCESS_STARTS.add("started")
    metrics.PROCESS_START_SECONDS.observe(perf_counter() - began)


def process_failed() -> None:
    """Note that a session's process could not be started."""
    metrics.PROCESS_STARTS.add("failed")


def _trace(name: str, began: float, attributes: dict[str, str | int | float | bool]) -> None:
    if (made := tracer()) is not None:
        now = instants.now()
        made.make(Span(name, now - int((perf_counter() - began) * 1e6), now, attributes))
