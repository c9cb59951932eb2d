"""All that is in a store, as rows that are the same for every engine: to move it to another one, and to check it.

A kind's rows come in the order of their key, which is the same order everywhere. Ids are text, payloads bytes. What
follows from a head (its indexed columns) is not a row of its own; leases and writers stay where they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final, TypeAlias

Row: TypeAlias = tuple[Any, ...]

KINDS: Final[dict[str, tuple[str, ...]]] = {
    "environments": ("id", "current_deployment", "created_at", "keep_events", "keep_sessions", "keep_receipts"),
    "deployments": ("id", "environment", "digest", "created_at", "source", "live", "agents"),
    "archives": ("digest", "data"),
    "api_keys": ("id", "name", "sha256", "created_at", "ended_at"),
    "receipts": ("scope", "request", "receipt", "environment", "at"),
    "sessions": ("id", "head"),
    "events": ("session", "seq", "type", "at", "turn", "run", "op", "data"),
    "turns": (
        "session",
        "number",
        "id",
        "status",
        "queued_seq",
        "created_at",
        "run",
        "started_at",
        "ended_seq",
        "ended_at",
        "reason",
    ),
    "runs": ("session", "number", "id", "recovery", "deployment", "started_at", "ended_at", "end_reason"),
    "holds": ("session", "id", "reason", "issuer_kind", "issuer_id", "message", "created_at", "released_at"),
    "asks": (
        "session",
        "id",
        "turn",
        "status",
        "created_at",
        "ended_at",
        "response_id",
        "responder_kind",
        "responder_id",
        "control",
        "prompt",
        "answer",
    ),
    "messages": ("session", "id", "turn", "status", "created_at", "reason", "content"),
    "steps": (
        "session",
        "turn",
        "name",
        "replay",
        "status",
        "request",
        "run",
        "attempts",
        "started_at",
        "ended_seq",
    ),
    "memos": ("session", "turn", "name", "value"),
    "live": ("session", "slot", "turn", "at", "content"),
    "logs": ("run", "start", "data"),
    "commits": ("environment", "at", "ranges"),
}
"""Columns by kind, in the order in which kinds are moved: what others point at comes first.

A commit's ranges are `(session, first, last)` of sessions that are still there; its place in the feed is its own.
"""

COUNTS: Final = {
    "environments": "count_environments",
    "deployments": "count_deployments",
    "archives": "count_archives",
    "api_keys": "count_api_keys",
    "receipts": "count_receipts",
    "sessions": "count_sessions",
    "events": "count_events",
    "turns": "count_turns",
    "runs": "count_runs",
    "holds": "count_holds",
    "asks": "count_asks",
    "messages": "count_messages",
    "steps": "count_steps",
    "memos": "count_memos",
    "live": "count_live",
    "logs": "count_logs",
}
"""The statements that count the rows of a kind."""

PAGE: Final[dict[str, int]] = {"archives": 1, "events": 200, "logs": 50}
"""How many rows are in memory at once, where they may be large."""
_PAGE: Final = 500


def page_of(kind: str) -> int:
    """Return how many rows of a kind make a page."""
    return PAGE.get(kind, _PAGE)


class Side(ABC):
    """One store that is read from, or written to, in one transaction."""

    where: str
    """What to call it, without passwords."""

    @abstractmethod
    async def open(self) -> None:
        """Open it, and see to it that nobody else writes; raises `StoreInUse` when somebody may."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of it; what was not committed is undone."""

    @abstractmethod
    def pages(self, kind: str) -> AsyncIterator[list[Row]]:
        """Yield all rows of a kind, a page at a time."""

    @abstractmethod
    async def count(self, kind: str) -> int:
        """Return how many rows of a kind there are, those that `pages` cannot find included."""


class Source(Side):
    """A store that is read from."""

    @abstractmethod
    async def columns(self) -> AsyncIterator[list[Row]]:
        """Yield the indexed columns of all sessions: id, environment, agent, key, status, wake time, owned, end."""
        yield []


class Target(Side):
    """A store that is written to, all or nothing."""

    @abstractmethod
    async def put(self, kind: str, rows: Sequence[Row]) -> None:
        """Write rows of a kind."""

    @abstractmethod
    async def commit(self) -> None:
        """Make all that was written durable, at once."""
