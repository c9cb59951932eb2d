"""Operations on turns: reading, waiting, steering."""

from __future__ import annotations

from typing import Any, Final

from perdure.api import requests, sessions, turns
from perdure.errors import (
    BadRequest,
    InvalidDuration,
    MessageClosed,
    SessionHeld,
    TooManyPending,
    TurnNotFound,
)
from perdure.records.durations import parse_duration
from perdure.records.instants import SECOND
from perdure.records.sessions import ENDED
from perdure.server import wire
from perdure.server.operations import IN_SESSION, INPUT, KEYED, Operation
from perdure.server.queries import NumberedQuery, WaitQuery
from perdure.server.replies import Reply, document
from perdure.server.request import Call

LONGEST_WAIT: Final = 60 * SECOND


async def listing(call: Call) -> Reply:
    """List turns."""
    query: NumberedQuery = call.query
    rows = await call.service.turns(call.scope, call.id("session_id"), after=query.after, limit=query.limit + 1)
    page: dict[str, Any] = {"turns": wire.turns(rows[: query.limit])}
    if len(rows) > query.limit:
        page["next_after"] = rows[query.limit - 1].number
    return document(page)


async def get(call: Call) -> Reply:
    """Return one turn."""
    return document(wire.turn(await call.service.turn(call.scope, call.id("session_id"), call.id("turn_id"))))


async def wait(call: Call) -> Reply:
    """Answer once the turn has ended, or after the timeout."""
    query: WaitQuery = call.query
    timeout = parse_duration(query.timeout)
    if timeout > LONGEST_WAIT:
        raise BadRequest(f"A request waits 60s at most, not {query.timeout}. Ask again to wait longer.")
    waiting = call.service.wait_turn(call.scope, call.id("session_id"), call.id("turn_id"), timeout)
    row = await call.unless_gone(waiting)
    return document({"status": "settled" if row.status in ENDED else "timeout", "turn": wire.turn(row)})


async def send(call: Call) -> Reply:
    """Say something to exactly one turn."""
    body, plain = await call.json(requests.SendToTurn)
    return Reply(
        await call.service.send_to_turn(
            call.scope,
            call.id("session_id"),
            call.id("turn_id"),
            plain["input"],
            idempotency_key=body.idempotency_key,
        )
    )


OPERATIONS: Final = (
    Operation(
        id="wait_turn",
        method="GET",
        path="/v1/sessions/{session_id}/turns/{turn_id}/wait",
        tag="turns",
        summary="Wait until the turn has ended; a timeout cancels nothing",
        handler=wait,
        query=WaitQuery,
        answers={200: turns.WaitResult},
        errors=(*IN_SESSION, TurnNotFound, InvalidDuration),
    ),
    Operation(
        id="list_turns",
        method="GET",
        path="/v1/sessions/{session_id}/turns",
        tag="turns",
        summary="List turns in order of sequence",
        handler=listing,
        query=NumberedQuery,
        answers={200: turns.TurnPage},
        errors=IN_SESSION,
    ),
    Operation(
        id="get_turn",
        method="GET",
        path="/v1/sessions/{session_id}/turns/{turn_id}",
        tag="turns",
        summary="Return a turn",
        handler=get,
        answers={200: turns.Turn},
        errors=(*IN_SESSION, TurnNotFound),
    ),
    Operation(
        id="send_to_turn",
        method="POST",
        path="/v1/sessions/{session_id}/turns/{turn_id}/messages",
        tag="turns",
        summary="Say something to exactly this running turn",
        handler=send,
        body=requests.SendToTurn,
        answers={200: sessions.MessageReceipt},
        errors=(*IN_SESSION, *INPUT, *KEYED, TurnNotFound, MessageClosed, SessionHeld, TooManyPending),
    ),
)
