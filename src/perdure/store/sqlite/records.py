"""Stored rows as records."""

from __future__ import annotations

from typing import Final

import msgspec

from perdure.records.sessions import Ask, Hold, Issuer, LoggedEvent, Message, QueuedTurn, Run, Turn
from perdure.store.sqlite.codec import TURN_STATUSES, number_of, unpack_id, unpack_known, unpack_type
from perdure.store.sqlite.database import Row

_ABSENT: Final = msgspec.Raw(b"")


class _Payload(msgspec.Struct):
    """The parts of a turn's events that are shown with the turn."""

    input: msgspec.Raw = _ABSENT
    result: msgspec.Raw = _ABSENT
    response: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT


_PAYLOAD: Final = msgspec.json.Decoder(_Payload)


def _bytes(raw: msgspec.Raw) -> bytes | None:
    return bytes(raw) or None


def to_turn(session_id: str, row: Row) -> Turn:
    """Return a turn from a row of `turns`."""
    pos, turn_id, status, queued, created_at, outcome, reason, run_id, started_at, ended_at = row
    ended = _PAYLOAD.decode(outcome) if outcome is not None else _Payload()
    return Turn(
        id=unpack_id(turn_id),
        session_id=session_id,
        number=number_of(pos),
        status=TURN_STATUSES[status],
        input_json=_input(queued),
        created_at=created_at,
        result_json=_bytes(ended.result),
        response_json=_bytes(ended.response),
        error_json=_bytes(ended.error),
        reason=reason,
        run_id=unpack_known(run_id),
        started_at=started_at,
        ended_at=ended_at,
    )


def to_queued(row: Row) -> QueuedTurn:
    """Return what a host needs from a row of `turns`."""
    return QueuedTurn(number_of(row[0]), unpack_id(row[1]), _input(row[3]), row[4])


def _input(queued: bytes) -> bytes:
    return bytes(_PAYLOAD.decode(queued).input)


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
    hold_id, reason, kind, issuer, created_at, message, released_at = row
    return Hold(unpack_id(hold_id), reason, Issuer(kind, issuer), created_at, message, released_at)


def to_ask(row: Row) -> Ask:
    """Return a question from a row of `asks`."""
    ask_id, turn, turn_id, status, prompt, control, created_at, answer, response_id, kind, responder, ended_at = row
    return Ask(
        id=unpack_id(ask_id),
        turn=turn,
        turn_id=unpack_id(turn_id),
        status=status,
        prompt_json=prompt,
        control_json=control,
        created_at=created_at,
        answer_json=answer,
        response_id=response_id,
        responder=None if kind is None else Issuer(kind, responder),
        ended_at=ended_at,
    )


def to_message(row: Row) -> Message:
    """Return a steering message from a row of `message`."""
    message_id, turn, turn_id, status, content, created_at, reason = row
    return Message(unpack_id(message_id), turn, unpack_id(turn_id), status, content, created_at, reason)
