"""Sessions and the receipts of what is asked of them."""

from __future__ import annotations

from typing import Literal

from perdure.api.base import Id, Instant, Omitted, Wire
from perdure.records.sessions import HostKind, Recovery, Residency, RunPhase, Status


class Issuer(Wire):
    """Who placed a hold or gave an answer: `user`, `api_key` or `system`, and which."""

    kind: str
    id: str


class Hold(Wire):
    """A named stop on a session: queued turns wait until exactly this hold is released."""

    id: Id
    reason: str
    message: Omitted[str] = None
    issuer: Issuer
    created_at: Instant


class Computer(Wire):
    """A session's Computer: what its backend isolates and what a hibernation keeps, in words."""

    id: Id
    template: str
    backend: str
    residency: Residency
    isolation: str
    keeps: str


class SessionRun(Wire):
    """The session's present period of execution on one process."""

    id: Id
    number: int
    recovery: Recovery
    state: RunPhase


class Session(Wire):
    """One durable conversation of one agent. `queued` counts waiting turns, `losses` the processes lost in a row."""

    id: Id
    agent: str
    key: Omitted[str] = None
    status: Status
    deployment_id: Id
    host: HostKind
    computer: Computer | None
    active_turn_id: Id | None
    queued: int
    holds: list[Hold]
    run: SessionRun | None
    losses: int
    last_event_seq: int
    created_at: Instant
    idle_since: Omitted[Instant] = None
    closed_at: Omitted[Instant] = None


class SessionPage(Wire):
    """Sessions, newest first. No `next_cursor` means that there are no more."""

    sessions: list[Session]
    next_cursor: Omitted[str] = None


class Receipt(Wire):
    """The receipt of an admission. `turn_id` and `sequence` are null for a session created without an input."""

    session_id: Id
    turn_id: Id | None
    sequence: int | None
    created: bool


class SendReceipt(Wire):
    """What became of a `send`: `messaged` the running turn, or `enqueued` as a new one."""

    kind: Literal["messaged", "enqueued"]
    session_id: Id
    turn_id: Id
    sequence: Omitted[int] = None
    message_id: Omitted[Id] = None


class MessageReceipt(Wire):
    """The receipt of a message to one running turn."""

    session_id: Id
    turn_id: Id
    message_id: Id
    status: Literal["admitted"]


class ControlReceipt(Wire):
    """The receipt of interrupt, resume, close and cancel. An interrupt's `hold_id` is what `resume` takes."""

    id: Id
    session_id: Id
    hold_id: Omitted[Id] = None
    status: Literal["accepted"]
