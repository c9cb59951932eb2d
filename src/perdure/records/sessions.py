"""A session's head, and the rows of what happened in it, as plain data.

Numbers (`turn`, `run`) count within their session from 1; ids are for the outside. Instants are microseconds. Values
named `…_json` are canonical JSON bytes.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

Status: TypeAlias = Literal["open", "closing", "closed", "cancelled"]
TurnStatus: TypeAlias = Literal["queued", "running", "completed", "failed", "interrupted", "cancelled"]
HostKind: TypeAlias = Literal["inline", "process"]
RunPhase: TypeAlias = Literal["starting", "ready", "stopping"]
Recovery: TypeAlias = Literal["initial", "reconstructed"]
Residency: TypeAlias = Literal["cold", "running", "hibernating", "hibernated", "resuming", "unavailable"]
AskStatus: TypeAlias = Literal["pending", "responded", "cancelled"]
MessageStatus: TypeAlias = Literal["admitted", "started", "delivered", "rejected"]

TERMINAL: Final = frozenset({"closed", "cancelled"})
ENDED: Final = frozenset({"completed", "failed", "interrupted", "cancelled"})


class Issuer(msgspec.Struct, frozen=True):
    """Who placed a hold or gave an answer: a user, an API key or the system."""

    kind: str
    id: str


SYSTEM: Final = Issuer("system", "perdure")


class Hold(msgspec.Struct, frozen=True, omit_defaults=True):
    """A named stop on a session. `reason` is a code, `message` is for people."""

    id: str
    reason: str
    issuer: Issuer
    created_at: int
    message: str | None = None
    released_at: int | None = None


class ActiveTurn(msgspec.Struct, frozen=True, omit_defaults=True):
    """The one turn that a handler works on now.

    `op` is the number of the newest write that was committed for it, so that a write sent again is known; `size` counts
    the bytes of its output and questions. `steps` and `memos` count what a resumable turn has journaled, `at_work`
    names the steps that have not ended.
    """

    number: int
    id: str
    started_at: int
    started_seq: int
    deadline_at: int | None = None
    op: int = 0
    size: int = 0
    takes_messages: bool = False
    asks: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    steps: int = 0
    at_work: tuple[str, ...] = ()
    memos: int = 0


class Winding(msgspec.Struct, frozen=True):
    """A turn has ended and its handler has not let go yet; after `until` its process is ended."""

    turn: int
    until: int


class RunState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The session's present period of execution."""

    number: int
    id: str
    phase: RunPhase
    recovery: Recovery
    started_at: int
    reason: str | None = None


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
    """The times that an agent's definition sets, in microseconds."""

    close_after_idle: int | None = None
    hibernate_after_idle: int | None = None
    max_turn_duration: int | None = None


class ComputerState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The session's Computer as the head knows it. `home` is the machine that its disk is on, once it has one."""

    id: str
    template: str
    residency: Residency = "cold"
    home: str | None = None


class SessionHead(msgspec.Struct, omit_defaults=True):
    """All that rules need to decide about a session; its size does not grow with the session's length.

    Queued turns are the `queued` newest numbers: turns leave the queue only from its front or all at once. `resumes`
    tells that a turn whose process is lost is gone on with in the next one, by its journal.
    """

    id: str
    environment: str
    agent: str
    deployment: str
    host: HostKind
    created_at: int
    status: Status = "open"
    key: str | None = None
    last_seq: int = 0
    last_turn: int = 0
    queued: int = 0
    fence: int = 0
    worker: str | None = None
    active: ActiveTurn | None = None
    winding: Winding | None = None
    run: RunState | None = None
    runs: int = 0
    losses: int = 0
    holds: tuple[Hold, ...] = ()
    limits: Limits = Limits()
    computer: ComputerState | None = None
    idle_since: int | None = None
    ended_at: int | None = None
    run_end: str | None = None
    retained_after: int = 0
    resumes: bool = False

    @property
    def first_queued(self) -> int:
        """The number of the turn that runs next, when `queued` is not zero."""
        return self.last_turn - self.queued + 1

    @property
    def is_terminal(self) -> bool:
        """Whether nothing can happen in the session any more."""
        return self.status in TERMINAL


class Event(msgspec.Struct, frozen=True):
    """One record of a session's log, as rules write it."""

    seq: int
    type: str
    data: bytes
    at: int
    turn: int | None = None
    run: int | None = None
    op: int | None = None


class LoggedEvent(msgspec.Struct, frozen=True):
    """One record of a session's log, as readers get it: with ids in place of numbers."""

    session_id: str
    seq: int
    type: str
    data: msgspec.Raw
    turn_id: str | None
    run_id: str | None
    at: int


class Turn(msgspec.Struct, frozen=True):
    """One accepted input and what became of it, as readers get it."""

    id: str
    session_id: str
    number: int
    status: TurnStatus
    input_json: bytes
    created_at: int
    result_json: bytes | None = None
    response_json: bytes | None = None
    error_json: bytes | None = None
    reason: str | None = None
    run_id: str | None = None
    started_at: int | None = None
    ended_at: int | None = None


class QueuedTurn(msgspec.Struct, frozen=True):
    """What a host needs to start a turn."""

    number: int
    id: str
    input_json: bytes
    created_at: int


class Run(msgspec.Struct, frozen=True):
    """One period of execution of a session on one process."""

    number: int
    id: str
    session_id: str
    recovery: Recovery
    deployment: str
    started_at: int
    ended_at: int | None = None
    end_reason: str | None = None


class Ask(msgspec.Struct, frozen=True):
    """Something asked of a person by a running turn."""

    id: str
    turn: int
    turn_id: str
    status: AskStatus
    prompt_json: bytes
    control_json: bytes
    created_at: int
    answer_json: bytes | None = None
    response_id: str | None = None
    responder: Issuer | None = None
    ended_at: int | None = None


class Message(msgspec.Struct, frozen=True):
    """A steering message to a running turn."""

    id: str
    turn: int
    turn_id: str
    status: MessageStatus
    content_json: bytes
    created_at: int
    reason: str | None = None
