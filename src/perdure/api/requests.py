"""Bodies of requests, one class an operation."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import AfterValidator, WithJsonSchema

from perdure.api.base import Given, HoldId, IdempotencyKey, RequestBody, ResponseId, SessionKey
from perdure.api.content import Content

REASON_LIMIT: Final = 1000
REQUEST_BYTES: Final = 1024 * 1024
ARCHIVE_BYTES: Final = 64 * 1024 * 1024


def _check_reason(text: str) -> str:
    if not 1 <= len(text) <= REASON_LIMIT:
        raise ValueError(f"a reason has 1 to {REASON_LIMIT} characters")
    return text


Reason = Annotated[
    str,
    AfterValidator(_check_reason),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": REASON_LIMIT}),
]


class CreateSession(RequestBody):
    """Create a session; with an input, its first turn is accepted in the same commit."""

    input: Given[Content] = None
    key: Given[SessionKey] = None
    idempotency_key: Given[IdempotencyKey] = None


class GetOrCreateSession(RequestBody):
    """Find the agent's session of that key or create it; an input is enqueued there."""

    key: SessionKey
    input: Given[Content] = None
    idempotency_key: Given[IdempotencyKey] = None


class Enqueue(RequestBody):
    """Accept an input as a new turn, behind those that wait already."""

    input: Content
    idempotency_key: Given[IdempotencyKey] = None


class Send(RequestBody):
    """Steer the running turn if its handler takes messages, else enqueue."""

    input: Content
    idempotency_key: Given[IdempotencyKey] = None


class SendToTurn(RequestBody):
    """Say something to exactly this running turn."""

    input: Content
    idempotency_key: Given[IdempotencyKey] = None


class Interrupt(RequestBody):
    """Stop the running turn and hold the session. `reason` is for people and is kept with the hold."""

    reason: Given[Reason] = None
    idempotency_key: Given[IdempotencyKey] = None


class Resume(RequestBody):
    """Release exactly one hold; releasing it again changes nothing."""

    hold_id: HoldId
    idempotency_key: Given[IdempotencyKey] = None


class Close(RequestBody):
    """Refuse new input, finish what was accepted, then end."""

    idempotency_key: Given[IdempotencyKey] = None


class Cancel(RequestBody):
    """End the session at once: the running turn and all queued ones are cancelled."""

    idempotency_key: Given[IdempotencyKey] = None


class AnswerAsk(RequestBody):
    """Answer a question. The same `response_id` and answer again return the first answer."""

    answer: Any
    response_id: ResponseId
