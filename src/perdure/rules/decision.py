"""What a rule returns, and the draft in which it is made."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from perdure.records import canonical
from perdure.records.sessions import ActiveTurn, Ask, Event, Hold, Message, QueuedTurn, Run, SessionHead
from perdure.records.steps import Step

JsonBytes: TypeAlias = bytes
EMPTY: Final = b"{}"


class InsertTurn(msgspec.Struct, frozen=True):
    """A new queued turn, whose input is in the event `queued_seq`."""

    number: int
    id: str
    queued_seq: int
    created_at: int


class TurnStarted(msgspec.Struct, frozen=True):
    number: int
    run: int
    at: int


class TurnEnded(msgspec.Struct, frozen=True):
    """A turn reached its end; what came of it is in the event `ended_seq`."""

    number: int
    status: str
    ended_seq: int
    at: int
    reason: str | None = None


class PutHold(msgspec.Struct, frozen=True):
    hold: Hold


class PutRun(msgspec.Struct, frozen=True):
    run: Run


class EndRun(msgspec.Struct, frozen=True):
    number: int
    at: int
    reason: str


class PutAsk(msgspec.Struct, frozen=True):
    ask: Ask


class EndAsk(msgspec.Struct, frozen=True):
    """A pending question is cancelled."""

    id: str
    at: int


class PutMessage(msgspec.Struct, frozen=True):
    message: Message


class EndMessage(msgspec.Struct, frozen=True):
    """A message that was not delivered is rejected."""

    id: str
    reason: str


class PutLive(msgspec.Struct, frozen=True):
    """Overwrite one live slot of the running turn."""

    turn: int
    slot: str
    content_json: bytes


class ClearLive(msgspec.Struct, frozen=True):
    """Remove all live slots of the session."""


class PutStep(msgspec.Struct, frozen=True):
    """A step, begun or ended; its outcome is in the event `ended_seq`."""

    step: Step


class PutMemo(msgspec.Struct, frozen=True):
    turn: int
    name: str
    value_json: bytes


Change: TypeAlias = (
    InsertTurn
    | TurnStarted
    | TurnEnded
    | PutHold
    | PutRun
    | EndRun
    | PutAsk
    | EndAsk
    | PutMessage
    | EndMessage
    | PutLive
    | ClearLive
    | PutStep
    | PutMemo
)


class Needs(Exception):
    """Raised by a rule for a row that it has to see; the store looks it up and asks the rule again.

    Kinds and their keys: `turn` number, `turn_id` id, `queued` number, `queued_seq` number, `ask` id, `message` id,
    `hold` id, `key` (environment, agent, key), `output_seq` (turn, op).
    """

    def __init__(self, kind: str, key: Any) -> None:
        super().__init__(kind, key)
        self.kind = kind
        self.key = key


Found: TypeAlias = dict[tuple[str, Any], Any]


def need(found: Found, kind: str, key: Any) -> Any:
    """Return the row, or None when the store has none; raises `Needs` when the store has not looked yet."""
    try:
        return found[kind, key]
    except KeyError:
        raise Needs(kind, key) from None


class Decision(msgspec.Struct, frozen=True):
    """What a command does to a session: the new head, the events and the rows, all committed together.

    `receipt` answers the caller; receipts of commands that can carry an idempotency key are JSON bytes. `started` is
    the turn that the commit starts; its handler may run once the commit is durable. `writes` is false when the
    command changes nothing (a control repeated, a write sent again).
    """

    head: SessionHead
    events: list[Event]
    changes: list[Change]
    receipt: Any = None
    started: QueuedTurn | None = None
    writes: bool = True


class Draft:
    """A decision in the making, on a copy of the head."""

    __slots__ = ("changes", "events", "head", "now", "started", "touched")

    def __init__(self, head: SessionHead, now: int) -> None:
        self.head = copy.copy(head)
        self.now = now
        self.events: list[Event] = []
        self.changes: list[Change] = []
        self.started: QueuedTurn | None = None
        self.touched = False

    def event(
        self, kind: str, data: JsonBytes = EMPTY, *, turn: int | None = None, in_run: bool = True, op: int | None = None
    ) -> int:
        """Append an event and return its sequence number."""
        head = self.head
        head.last_seq += 1
        run = head.run.number if in_run and head.run else None
        self.events.append(Event(head.last_seq, kind, data, self.now, turn, run, op))
        return head.last_seq

    def change(self, change: Change) -> None:
        """Add a row to write."""
        self.changes.append(change)

    def update_active(self, **fields: Any) -> ActiveTurn:
        """Replace fields of the running turn."""
        assert self.head.active is not None
        self.head.active = msgspec.structs.replace(self.head.active, **fields)
        self.touched = True
        return self.head.active

    def done(self, receipt: Any = None) -> Decision:
        """Close the draft."""
        writes = bool(self.events or self.changes or self.touched)
        return Decision(self.head, self.events, self.changes, receipt, self.started, writes)


Rule: TypeAlias = Callable[[SessionHead, Any, int, Found], Decision]


def data(**fields: Any) -> JsonBytes:
    """Return an event's data from plain fields; None fields are left out."""
    return canonical.encode({key: value for key, value in fields.items() if value is not None}, "event")


def receipt(**fields: Any) -> JsonBytes:
    """Return a receipt as canonical JSON bytes; None fields are kept as null."""
    return canonical.encode(fields, "receipt")


def with_raw(fields: Mapping[str, JsonBytes | None]) -> JsonBytes:
    """Return a JSON object of members that are canonical JSON already; None members are left out."""
    inside = b",".join(
        b'"' + key.encode() + b'":' + value for key, value in sorted(fields.items()) if value is not None
    )
    return b"{" + inside + b"}"
