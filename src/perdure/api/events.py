"""Events of a session's log, their pages, and the data of what a watch (SSE) sends.

A watch is, in this order: `snapshot` (only when the client gave no cursor) or the durable events after the cursor; the
newest `live` slots; `caught_up`; then whatever is new. A reader that falls too far behind gets a new `snapshot`, which
replaces all that it had. `end` closes the stream of a session that is closed or cancelled once everything was sent.
Only durable events carry an `id:` line; comments are heartbeats. A stream that stops without `end` is to be continued
with `Last-Event-ID`.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from perdure.api.base import Id, Instant, Wire
from perdure.api.content import Content
from perdure.api.sessions import Session
from perdure.api.turns import Turn

SNAPSHOT: Final = "snapshot"
LIVE: Final = "live"
CAUGHT_UP: Final = "caught_up"
END: Final = "end"
MARKERS: Final = frozenset({SNAPSHOT, LIVE, CAUGHT_UP, END})
PAGE: Final = "page"

EVENT_TYPES: Final = (
    "session.created",
    "session.closing",
    "session.closed",
    "session.cancelled",
    "session.held",
    "session.resumed",
    "session.deadline",
    "session.process_started",
    "session.process_stopped",
    "session.process_lost",
    "session.init_failed",
    "session.hibernated",
    "session.awakened",
    "turn.queued",
    "turn.running",
    "turn.output",
    "turn.completed",
    "turn.failed",
    "turn.interrupted",
    "turn.cancelled",
    "message.admitted",
    "message.started",
    "message.delivered",
    "message.rejected",
    "ask.created",
    "ask.responded",
    "ask.cancelled",
    "turn.resumed",
    "step.started",
    "step.completed",
    "step.failed",
    "step.interrupted",
)


class Event(Wire):
    """One record of a session's log. Within a session `seq` counts 1, 2, 3 … without gaps."""

    session_id: Id
    seq: int = Field(ge=1)
    type: str = Field(examples=list(EVENT_TYPES))
    data: dict[str, Any]
    turn_id: Id | None
    run_id: Id | None
    at: Instant


class EventPage(Wire):
    """Events after a sequence number, in order. `next_after` is what to ask for next; `has_more` is not completion."""

    events: list[Event]
    next_after: int
    has_more: bool
    retained_after: int


class FeedPage(Wire):
    """Events of all sessions of an environment, in the order in which they were committed.

    `cursor` is what to ask for next, now or in a year: there is always one. `has_more` tells that more was there.
    """

    events: list[Event]
    cursor: str
    has_more: bool


class SnapshotData(Wire):
    """Data of `event: snapshot`: the session now. `turns` are the newest 100, in order; events go on after `cursor`."""

    cursor: int
    session: Session
    turns: list[Turn]
    live: dict[str, Content]
    has_earlier: bool


class LiveData(Wire):
    """Data of `event: live`: the newest content of a live slot. Null content says that all slots were cleared."""

    turn_id: Id | None
    slot: str
    content: Content | None


class CursorData(Wire):
    """Data of `event: caught_up` and `event: end`: the sequence number up to which everything has been sent."""

    cursor: int
