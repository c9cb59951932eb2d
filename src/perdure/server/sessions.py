"""Operations on sessions: creating, finding, and the controls."""

from __future__ import annotations

from typing import Any, Final

from perdure.api import requests, sessions
from perdure.errors import (
    AgentNotFound,
    EnvironmentNotFound,
    HoldNotFound,
    InvalidCursor,
    MessageClosed,
    NoCurrentDeployment,
    QueueFull,
    SessionHeld,
    SessionKeyConflict,
    SessionNotOpen,
    TooManyHolds,
    TooManyPending,
)
from perdure.server import wire
from perdure.server.cursors import make_cursor, read_cursor
from perdure.server.operations import IN_SESSION, INPUT, KEYED, Operation
from perdure.server.queries import SessionsQuery
from perdure.server.replies import Reply, document
from perdure.server.request import Call

_CREATED: Final = b'{"created":true,'
_ADMISSION: Final = (*IN_SESSION, *INPUT, *KEYED, SessionNotOpen, QueueFull)


def _admitted(receipt: bytes) -> Reply:
    # Receipts are canonical JSON, so that `created` is always their first member.
    return Reply(receipt, 201 if receipt.startswith(_CREATED) else 200)


async def create(call: Call) -> Reply:
    """Create a session."""
    body, plain = await call.json(requests.CreateSession)
    receipt = await call.service.create_session(
        call.scope,
        call.params["agent"],
        input=plain.get("input"),
        key=body.key,
        idempotency_key=body.idempotency_key,
    )
    return _admitted(receipt)


async def get_or_create(call: Call) -> Reply:
    """Find or create the session of a key."""
    body, plain = await call.json(requests.GetOrCreateSession)
    receipt = await call.service.get_or_create(
        call.scope,
        call.params["agent"],
        key=body.key,
        input=plain.get("input"),
        idempotency_key=body.idempotency_key,
    )
    return _admitted(receipt)


async def listing(call: Call) -> Reply:
    """List sessions."""
    query: SessionsQuery = call.query
    filters: dict[str, Any] = {
        "of": f"sessions {query.project}/{query.environment}",
        "agent": query.agent,
        "key": query.key,
        "status": sorted(set(query.status)),
    }
    views = await call.service.sessions(
        call.scope,
        agent=query.agent,
        key=query.key,
        statuses=tuple(filters["status"]),
        before=read_cursor(query.cursor, **filters),
        limit=query.limit + 1,
    )
    page: dict[str, Any] = {"sessions": [wire.session(view) for view in views[: query.limit]]}
    if len(views) > query.limit:
        page["next_cursor"] = make_cursor(views[query.limit - 1].head.id, **filters)
    return document(page)


async def get(call: Call) -> Reply:
    """Return one session."""
    return document(wire.session(await call.service.session(call.scope, call.id("session_id"))))


async def enqueue(call: Call) -> Reply:
    """Accept an input."""
    body, plain = await call.json(requests.Enqueue)
    return Reply(
        await call.service.enqueue(
            call.scope, call.id("session_id"), plain["input"], idempotency_key=body.idempotency_key
        )
    )


async def send(call: Call) -> Reply:
    """Steer or enqueue."""
    body, plain = await call.json(requests.Send)
    return Reply(
        await call.service.send(call.scope, call.id("session_id"), plain["input"], idempotency_key=body.idempotency_key)
    )


async def interrupt(call: Call) -> Reply:
    """Stop the running turn and hold the session."""
    body, _ = await call.json(requests.Interrupt)
    return Reply(
        await call.service.interrupt(
            call.scope, call.id("session_id"), reason=body.reason, idempotency_key=body.idempotency_key
        )
    )


async def resume(call: Call) -> Reply:
    """Release a hold."""
    body, _ = await call.json(requests.Resume)
    return Reply(
        await call.service.resume(call.scope, call.id("session_id"), body.hold_id, idempotency_key=body.idempotency_key)
    )


async def close(call: Call) -> Reply:
    """Drain and close."""
    body, _ = await call.json(requests.Close)
    return Reply(await call.service.close(call.scope, call.id("session_id"), idempotency_key=body.idempotency_key))


async def cancel(call: Call) -> Reply:
    """End at once."""
    body, _ = await call.json(requests.Cancel)
    return Reply(await call.service.cancel(call.scope, call.id("session_id"), idempotency_key=body.idempotency_key))


OPERATIONS: Final = (
    Operation(
        id="enqueue",
        method="POST",
        path="/v1/sessions/{session_id}/enqueue",
        tag="sessions",
        summary="Accept an input as a new turn",
        handler=enqueue,
        body=requests.Enqueue,
        answers={200: sessions.Receipt},
        errors=_ADMISSION,
    ),
    Operation(
        id="send",
        method="POST",
        path="/v1/sessions/{session_id}/send",
        tag="sessions",
        summary="Steer the running turn if it takes messages, else enqueue",
        handler=send,
        body=requests.Send,
        answers={200: sessions.SendReceipt},
        errors=(*_ADMISSION, SessionHeld, MessageClosed, TooManyPending),
    ),
    Operation(
        id="create_session",
        method="POST",
        path="/v1/agents/{agent}/sessions",
        tag="sessions",
        summary="Create a session, with its first turn if there is an input",
        handler=create,
        body=requests.CreateSession,
        answers={201: sessions.Receipt, 200: sessions.Receipt},
        errors=(*INPUT, *KEYED, AgentNotFound, EnvironmentNotFound, NoCurrentDeployment, SessionKeyConflict),
    ),
    Operation(
        id="get_or_create_session",
        method="POST",
        path="/v1/agents/{agent}/sessions/get-or-create",
        tag="sessions",
        summary="Find the session of a key or create it, and enqueue the input if there is one",
        handler=get_or_create,
        body=requests.GetOrCreateSession,
        answers={201: sessions.Receipt, 200: sessions.Receipt},
        errors=(*INPUT, *KEYED, AgentNotFound, EnvironmentNotFound, NoCurrentDeployment, SessionNotOpen, QueueFull),
    ),
    Operation(
        id="list_sessions",
        method="GET",
        path="/v1/sessions",
        tag="sessions",
        summary="List sessions, newest first",
        handler=listing,
        query=SessionsQuery,
        answers={200: sessions.SessionPage},
        errors=(InvalidCursor,),
    ),
    Operation(
        id="get_session",
        method="GET",
        path="/v1/sessions/{session_id}",
        tag="sessions",
        summary="Return a session",
        handler=get,
        answers={200: sessions.Session},
        errors=IN_SESSION,
    ),
    Operation(
        id="interrupt",
        method="POST",
        path="/v1/sessions/{session_id}/interrupt",
        tag="controls",
        summary="Stop the running turn and hold the session",
        handler=interrupt,
        body=requests.Interrupt,
        answers={200: sessions.ControlReceipt},
        errors=(*IN_SESSION, *KEYED, SessionNotOpen, TooManyHolds),
    ),
    Operation(
        id="resume",
        method="POST",
        path="/v1/sessions/{session_id}/resume",
        tag="controls",
        summary="Release one hold",
        handler=resume,
        body=requests.Resume,
        answers={200: sessions.ControlReceipt},
        errors=(*IN_SESSION, *KEYED, HoldNotFound),
    ),
    Operation(
        id="close",
        method="POST",
        path="/v1/sessions/{session_id}/close",
        tag="controls",
        summary="Refuse new input, finish what was accepted, then end",
        handler=close,
        body=requests.Close,
        answers={200: sessions.ControlReceipt},
        errors=(*IN_SESSION, *KEYED),
    ),
    Operation(
        id="cancel",
        method="POST",
        path="/v1/sessions/{session_id}/cancel",
        tag="controls",
        summary="End the session at once",
        handler=cancel,
        body=requests.Cancel,
        answers={200: sessions.ControlReceipt},
        errors=(*IN_SESSION, *KEYED),
    ),
)
