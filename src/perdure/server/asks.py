"""Operations on questions."""

from __future__ import annotations

from typing import Any, Final

from perdure.api import asks, requests
from perdure.errors import (
    AnswerInvalid,
    AskAlreadyResponded,
    AskCancelled,
    AskNotFound,
    InvalidCursor,
    InvalidKey,
    NotJson,
)
from perdure.server import wire
from perdure.server.cursors import make_cursor, read_cursor
from perdure.server.operations import IN_SESSION, Operation
from perdure.server.queries import AsksQuery
from perdure.server.replies import Reply, document
from perdure.server.request import Call


async def listing(call: Call) -> Reply:
    """List questions."""
    query: AsksQuery = call.query
    session_id = call.id("session_id")
    filters = {"of": f"asks {session_id}", "status": query.status}
    rows = await call.service.asks(
        call.scope,
        session_id,
        status=query.status,
        after=read_cursor(query.cursor, **filters) or "",
        limit=query.limit + 1,
    )
    page: dict[str, Any] = {"asks": [wire.ask(row, session_id) for row in rows[: query.limit]]}
    if len(rows) > query.limit:
        page["next_cursor"] = make_cursor(rows[query.limit - 1].id, **filters)
    return document(page)


async def get(call: Call) -> Reply:
    """Return one question."""
    session_id = call.id("session_id")
    return document(wire.ask(await call.service.ask(call.scope, session_id, call.id("ask_id")), session_id))


async def answer(call: Call) -> Reply:
    """Answer a question."""
    body, _ = await call.json(requests.AnswerAsk)
    session_id = call.id("session_id")
    row = await call.service.answer_ask(call.scope, session_id, call.id("ask_id"), body.answer, body.response_id)
    return document(wire.ask(row, session_id))


OPERATIONS: Final = (
    Operation(
        id="list_asks",
        method="GET",
        path="/v1/sessions/{session_id}/asks",
        tag="asks",
        summary="List the questions of a session",
        handler=listing,
        query=AsksQuery,
        answers={200: asks.AskPage},
        errors=(*IN_SESSION, InvalidCursor),
    ),
    Operation(
        id="get_ask",
        method="GET",
        path="/v1/sessions/{session_id}/asks/{ask_id}",
        tag="asks",
        summary="Return a question",
        handler=get,
        answers={200: asks.Ask},
        errors=(*IN_SESSION, AskNotFound),
    ),
    Operation(
        id="answer_ask",
        method="POST",
        path="/v1/sessions/{session_id}/asks/{ask_id}/answer",
        tag="asks",
        summary="Answer a question; the first valid answer stands",
        handler=answer,
        body=requests.AnswerAsk,
        answers={200: asks.Ask},
        errors=(*IN_SESSION, NotJson, InvalidKey, AskNotFound, AskAlreadyResponded, AskCancelled, AnswerInvalid),
    ),
)
