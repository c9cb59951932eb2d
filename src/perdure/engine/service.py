"""What the outside may ask of the engine, in the scope of one environment. The server is a thin layer over this.

Receipts are the stored canonical JSON bytes, so that a replay is byte for byte the first answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol, TypeAlias

import msgspec

from perdure.records.content import ContentLike
from perdure.records.definitions import AgentDefinition
from perdure.records.sessions import Ask, Issuer, LoggedEvent, Run, SessionHead, Turn
from perdure.store.port import Deployment, EventPage, FeedPage, LiveSlot, Snapshot


class Scope(msgspec.Struct, frozen=True):
    """Where a request acts and who makes it."""

    project: str
    environment: str
    issuer: Issuer

    @property
    def id(self) -> str:
        """The environment's id in the store."""
        return f"{self.project}/{self.environment}"


class ComputerView(msgspec.Struct, frozen=True):
    """A session's Computer as readers see it: what the backend isolates and what a hibernation keeps, in words."""

    id: str
    template: str
    backend: str
    residency: str
    isolation: str
    keeps: str


class SessionView(msgspec.Struct, frozen=True):
    """A session as readers see it."""

    head: SessionHead
    computer: ComputerView | None


class LogChunk(msgspec.Struct, frozen=True):
    """A piece of a run's log file. Offsets count bytes; `eof` tells that the run has ended and all was read."""

    data: bytes
    next_offset: int
    eof: bool


# --- what a watch yields, in this order: Snapshot or events, LiveUpdate of each slot, CaughtUp, then what is new


class SnapshotItem(msgspec.Struct, frozen=True):
    """The session as it is now; sent first without a cursor, and again to a reader that fell too far behind."""

    view: SessionView
    snapshot: Snapshot


class EventItem(msgspec.Struct, frozen=True):
    """One durable event."""

    event: LoggedEvent


class LiveItem(msgspec.Struct, frozen=True):
    """The newest content of a live slot; None when the slots were cleared."""

    slot: str
    content: LiveSlot | None


class CaughtUp(msgspec.Struct, frozen=True):
    """All that was committed when the watch began has been sent."""

    cursor: int


class WatchEnd(msgspec.Struct, frozen=True):
    """The session is closed or cancelled, and all of it has been sent."""

    cursor: int


WatchItem: TypeAlias = SnapshotItem | EventItem | LiveItem | CaughtUp | WatchEnd


class Service(Protocol):
    """The operations. All raise `PerdureError` subclasses; see `spec` of each error for what is safe."""

    # --- admission
    async def create_session(
        self,
        scope: Scope,
        agent: str,
        *,
        input: ContentLike | None = None,
        key: str | None = None,
        idempotency_key: str | None = None,
    ) -> bytes:
        """Create a session, with its first turn if there is input."""
        ...

    async def get_or_create(
        self,
        scope: Scope,
        agent: str,
        *,
        key: str,
        input: ContentLike | None = None,
        idempotency_key: str | None = None,
    ) -> bytes:
        """Find the session of a key or create it, and enqueue the input if there is one."""
        ...

    async def enqueue(
        self, scope: Scope, session_id: str, input: ContentLike, *, idempotency_key: str | None = None
    ) -> bytes: ...

    async def send(
        self, scope: Scope, session_id: str, input: ContentLike, *, idempotency_key: str | None = None
    ) -> bytes: ...

    async def send_to_turn(
        self, scope: Scope, session_id: str, turn_id: str, input: ContentLike, *, idempotency_key: str | None = None
    ) -> bytes: ...

    # --- controls
    async def interrupt(
        self, scope: Scope, session_id: str, *, reason: str | None = None, idempotency_key: str | None = None
    ) -> bytes: ...

    async def resume(
        self, scope: Scope, session_id: str, hold_id: str, *, idempotency_key: str | None = None
    ) -> bytes: ...

    async def close(self, scope: Scope, session_id: str, *, idempotency_key: str | None = None) -> bytes: ...

    async def cancel(self, scope: Scope, session_id: str, *, idempotency_key: str | None = None) -> bytes: ...

    async def answer_ask(self, scope: Scope, session_id: str, ask_id: str, answer: Any, response_id: str) -> Ask: ...

    # --- reading
    async def session(self, scope: Scope, session_id: str) -> SessionView: ...

    async def sessions(
        self,
        scope: Scope,
        *,
        agent: str | None = None,
        key: str | None = None,
        statuses: tuple[str, ...] = (),
        before: str | None = None,
        limit: int = 50,
    ) -> list[SessionView]: ...

    async def turn(self, scope: Scope, session_id: str, turn_id: str) -> Turn: ...

    async def turns(self, scope: Scope, session_id: str, *, after: int = 0, limit: int = 50) -> list[Turn]: ...

    async def wait_turn(self, scope: Scope, session_id: str, turn_id: str, timeout: int) -> Turn:
        """Return the turn once it has ended, or as it is after `timeout` microseconds. Waiting cancels nothing."""
        ...

    async def asks(
        self, scope: Scope, session_id: str, *, status: str | None = None, after: str = "", limit: int = 50
    ) -> list[Ask]: ...

    async def ask(self, scope: Scope, session_id: str, ask_id: str) -> Ask: ...

    async def events(self, scope: Scope, session_id: str, *, after: int = 0, limit: int = 100) -> EventPage: ...

    def watch(self, scope: Scope, session_id: str, after: int | None = None) -> AsyncIterator[WatchItem]:
        """Follow a session. Errors (unknown session, bad cursor) are raised at the first step of the iteration."""
        ...

    async def feed(self, scope: Scope, *, after: str = "", limit: int = 100) -> FeedPage:
        """Return events of all sessions of the environment in commit order, after a cursor; "now" is the present end.

        Raises `InvalidCursor`, and `CursorExpired` below the retention floor.
        """
        ...

    def follow(self, scope: Scope, after: str = "") -> AsyncIterator[FeedPage]:
        """Yield pages of the feed as they come, the first at once. Errors are raised at the first step."""
        ...

    async def runs(self, scope: Scope, session_id: str, *, after: int = 0, limit: int = 50) -> list[Run]: ...

    async def run_log(
        self, scope: Scope, session_id: str, run_id: str, *, offset: int = 0, limit: int = 65536
    ) -> LogChunk: ...

    # --- agents and deployments
    async def agents(self, scope: Scope) -> list[AgentDefinition]: ...

    async def agent(self, scope: Scope, agent: str) -> AgentDefinition: ...

    async def deploy(self, scope: Scope, archive: bytes, *, promote: bool = True) -> Deployment: ...

    async def promote(self, scope: Scope, deployment_id: str) -> Deployment: ...

    async def deployments(self, scope: Scope, *, before: str | None = None, limit: int = 50) -> list[Deployment]: ...

    async def deployment(self, scope: Scope, deployment_id: str) -> Deployment: ...

    # --- health
    async def check_ready(self) -> None:
        """Raise `Unavailable` or `StoreError` when work cannot be accepted now."""
        ...
