"""Stored rows as records."""

from __future__ import annotations

import msgspec

from perdure.records.sessions import Ask, Hold, LoggedEvent, Message, QueuedTurn, Run, Turn
from perdure.store import records
from perdure.store.sqlite.codec import TURN_STATUSES, number_of, unpack_id, unpack_known, unpack_type
from perdure.store.sqlite.database import Row


def to_turn(session_id: str, row: Row) -> Turn:
    """Return a turn from a row of `turns`."""
    pos, turn_id, status, queued, created_at, outcome, reason, run_id, started_at, ended_at = row
    return records.to_turn(
        session_id,
        number_of(pos),
        unpack_id(turn_id),
        TURN_STATUSES[status],
        queued,
        created_at,
        outcome,
        reason,
        unpack_known(run_id),
        started_at,
        ended_at,
    )


def to_queued(row: Row) -> QueuedTurn:
    """Return what a host needs from a row of `turns`."""
    return QueuedTurn(number_of(row[0]), unpack_id(row[1]), records.turn_input(row[3]), row[4])


def to_event(session_id: str, row: Row) -> LoggedEvent:
    """Return an event from a row of `events`."""
    pos, kind, at, data, turn_id, run_id = row
    return LoggedEvent(
        session_id,
        number_of(pos),
        unpack_type(kind),
        msgspec.Raw(data),
        unpack_known(turn_id),
        unpack_known(run_id),
        at,
    )


def to_run(session_id: str, row: Row) -> Run:
    """Return a run from a row of `runs`."""
    pos, run_id, recovery, deployment, started_at, ended_at, end_reason = row
    return Run(
        number_of(pos),
        unpack_id(run_id),
        session_id,
        recovery,
        unpack_id(deployment),
        started_at,
        ended_at,
        end_reason,
    )


def to_hold(row: Row) -> Hold:
    """Return a hold from a row of `hold`."""
    return records.to_hold(unpack_id(row[0]), *row[1:])


def to_ask(row: Row) -> Ask:
    """Return a question from a row of `asks`."""
    return records.to_ask(unpack_id(row[0]), row[1], unpack_id(row[2]), *row[3:])


def to_message(row: Row) -> Message:
    """Return a steering message from a row of `message`."""
    return records.to_message(unpack_id(row[0]), row[1], unpack_id(row[2]), *row[3:])
