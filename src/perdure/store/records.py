"""Stored values as records."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from perdure.errors import CursorExpired, IdempotencyConflict, InvalidCursor
from perdure.records.canonical import digest
from perdure.records.definitions import AgentDefinition
from perdure.records.sessions import Ask, Hold, Issuer, Message, SessionHead, Turn, TurnStatus
from perdure.records.steps import Step
from perdure.rules.commands import Idempotency
from perdure.store.port import Deployment

_ABSENT: Final = msgspec.Raw(b"")
_AGENTS: Final = msgspec.json.Decoder(tuple[AgentDefinition, ...])


class _Payload(msgspec.Struct):
    """The parts of a turn's events that are shown with the turn."""

    input: msgspec.Raw = _ABSENT
    result: msgspec.Raw = _ABSENT
    response: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT


_PAYLOAD: Final = msgspec.json.Decoder(_Payload)


def _bytes(raw: msgspec.Raw) -> bytes | None:
    return bytes(raw) or None


def turn_input(queued: bytes) -> bytes:
    """Return the input from the data of the event that queued a turn."""
    return bytes(_PAYLOAD.decode(queued).input)


def to_turn(
    session_id: str,
    number: int,
    turn_id: str,
    status: TurnStatus,
    queued: bytes,
    created_at: int,
    outcome: bytes | None,
    reason: str | None,
    run_id: str | None,
    started_at: int | None,
    ended_at: int | None,
) -> Turn:
    """Return a turn; `queued` and `outcome` are the data of the events that hold its input and its end."""
    ended = _PAYLOAD.decode(outcome) if outcome is not None else _Payload()
    return Turn(
        id=turn_id,
        session_id=session_id,
        number=number,
        status=status,
        input_json=turn_input(queued),
        created_at=created_at,
        result_json=_bytes(ended.result),
        response_json=_bytes(ended.response),
        error_json=_bytes(ended.error),
        reason=reason,
        run_id=run_id,
        started_at=started_at,
        ended_at=ended_at,
    )


class _Outcome(msgspec.Struct):
    """The part of a step's last event that says what came of it."""

    result: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT


_OUTCOME: Final = msgspec.json.Decoder(_Outcome)


def to_step(turn: int, name: str, *rest: Any) -> Step:
    """Return a step from the columns of the statement `step`."""
    replay, status, request, run, attempts, started_at, ended_seq, ended = rest
    told = _Outcome() if ended is None else _OUTCOME.decode(ended)
    outcome = _bytes(told.result) or _bytes(told.error)
    return Step(turn, name, replay, status, bytes(request), run, attempts, started_at, ended_seq, outcome)


def to_hold(hold_id: str, *rest: Any) -> Hold:
    """Return a hold from the columns of the statement `hold`."""
    reason, kind, issuer, created_at, message, released_at = rest
    return Hold(hold_id, reason, Issuer(kind, issuer), created_at, message, released_at)


def to_ask(ask_id: str, turn: int, turn_id: str, *rest: Any) -> Ask:
    """Return a question from the columns of the statement `ask`."""
    status, prompt, control, created_at, answer, response_id, kind, responder, ended_at = rest
    return Ask(
        id=ask_id,
        turn=turn,
        turn_id=turn_id,
        status=status,
        prompt_json=prompt,
        control_json=control,
        created_at=created_at,
        answer_json=answer,
        response_id=response_id,
        responder=None if kind is None else Issuer(kind, responder),
        ended_at=ended_at,
    )


def to_message(message_id: str, turn: int, turn_id: str, *rest: Any) -> Message:
    """Return a steering message from the columns of the statement `message`."""
    return Message(message_id, turn, turn_id, *rest)


def to_deployment(deployment_id: str, *rest: Any) -> Deployment:
    """Return a deployment from the columns of the statement `deployment`."""
    environment, digest, created_at, source, agents, live = rest
    return Deployment(deployment_id, environment, digest, created_at, source, _AGENTS.decode(agents), bool(live))


def check_cursor(head: SessionHead, after: int) -> None:
    """Raise `InvalidCursor` beyond a log's end, `CursorExpired` below its retention floor."""
    if after < 0 or after > head.last_seq:
        raise InvalidCursor(
            f"There is no event {after} in session {head.id}; its newest is {head.last_seq}. Read from 0 or from the "
            "last number that you saw.",
            {"last_event_seq": head.last_seq},
        )
    if after < head.retained_after:
        raise CursorExpired(head.retained_after)


def check_receipt(row: tuple[bytes, bytes] | None, identity: Idempotency) -> bytes | None:
    """Return the receipt of a row `(request, receipt)`; raises `IdempotencyConflict` for another request."""
    if row is None:
        return None
    if row[0] != digest(identity.request):
        raise IdempotencyConflict(identity.key)
    return bytes(row[1])
