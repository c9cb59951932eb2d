"""Rows of this engine as records."""

from __future__ import annotations

import msgspec

from perdure.records.sessions import Hold, LoggedEvent, QueuedTurn, Run, Turn
from perdure.store import records
from perdure.store.port import LiveSlot
from perdure.store.postgres.database import Row


def to_turn(session_id: str, row: Row) -> Turn:
    """Return a turn from the columns of the statement `turn`."""
    return records.to_turn(session_id, *row)


def to_queued(row: Row) -> QueuedTurn:
    """Return what a host needs, from the columns of the statement `turn`."""
    return QueuedTurn(row[0], row[1], records.turn_input(row[3]), row[4])


def to_event(session_id: str, row: Row) -> LoggedEvent:
    """Return an event from the columns of the statement `events`."""
    seq, kind, at, data, turn_id, run_id = row
    return LoggedEvent(session_id, seq, kind, msgspec.Raw(data), turn_id, run_id, at)


def to_run(session_id: str, row: Row) -> Run:
    """Return a run from the columns of the statement `run`."""
    number, run_id, *rest = row
    return Run(number, run_id, session_id, *rest)


def to_hold(row: Row) -> Hold:
    """Return a hold from the columns of the statement `hold`."""
    *first, message, released_at = row
    return records.to_hold(*first, None if message is None else message.decode(), released_at)


def to_live(rows: list[Row]) -> dict[str, LiveSlot]:
    """Return live slots from the columns of the statement `live`."""
    return {slot: LiveSlot(turn_id, content, at) for slot, turn_id, content, at in rows}
