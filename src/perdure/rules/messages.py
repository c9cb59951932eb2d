"""Steering messages: what is said to a turn while it runs."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from perdure.errors import MessageClosed, MessageNotFound, SessionHeld, TooManyPending, TurnNotFound
from perdure.records.sessions import ActiveTurn, Message, SessionHead, Turn
from perdure.rules.commands import MessageSettled, MessageStarted, SendToTurn, TakeMessages
from perdure.rules.decision import Decision, Draft, EndMessage, Found, PutMessage, data, need, receipt, with_raw
from perdure.rules.guards import check_fence, running
from perdure.rules.retention import gone

PENDING_LIMIT: Final = 64


def take(head: SessionHead, command: TakeMessages, now: int, _: Found) -> Decision:
    """Note that the running turn's handler takes messages from now on."""
    check_fence(head, command)
    active = running(head, command.turn)
    draft = Draft(head, now)
    if not active.takes_messages:
        draft.update_active(takes_messages=True)
    return draft.done()


def send_to_turn(head: SessionHead, command: SendToTurn, now: int, found: Found) -> Decision:
    """Say something to exactly one turn; it is never given to another."""
    if head.active is None or head.active.id != command.turn_id:
        turn: Turn | None = need(found, "turn_id", command.turn_id)
        if turn is None:
            raise TurnNotFound(command.turn_id, gone(head))
        raise MessageClosed(command.turn_id, f"it is {turn.status}")
    draft = Draft(head, now)
    admit(draft, command.message_id, command.content_json)
    told = receipt(session_id=head.id, turn_id=command.turn_id, message_id=command.message_id, status="admitted")
    return draft.done(told)


def admit(draft: Draft, message_id: str, content_json: bytes) -> None:
    """Accept a message for the running turn."""
    active = draft.head.active
    assert active is not None
    if not active.takes_messages:
        raise MessageClosed(active.id, "its handler takes none")
    if len(active.messages) >= PENDING_LIMIT:
        raise TooManyPending("messages", PENDING_LIMIT)
    draft.update_active(messages=(*active.messages, message_id))
    message = Message(message_id, active.number, active.id, "admitted", content_json, draft.now)
    draft.change(PutMessage(message))
    told = {"message_id": b'"' + message_id.encode() + b'"', "content": content_json}
    draft.event("message.admitted", with_raw(told), turn=active.number)


def check_not_held(head: SessionHead) -> None:
    """Refuse an automatic send to a held session: neither steering nor queueing is what the sender asked for."""
    if head.holds:
        raise SessionHeld(head.id, [hold.id for hold in head.holds])


def started(head: SessionHead, command: MessageStarted, now: int, found: Found) -> Decision:
    """Note that the handler has begun to deal with a message; doing so again changes nothing."""
    message, draft = _pending(head, command, command.turn, command.message_id, now, found)
    if message.status == "admitted":
        draft.change(PutMessage(replace(message, status="started")))
        draft.event("message.started", data(message_id=message.id), turn=message.turn)
    return draft.done()


def settled(head: SessionHead, command: MessageSettled, now: int, found: Found) -> Decision:
    """Note what became of a message; the first outcome stands."""
    message, draft = _pending(head, command, command.turn, command.message_id, now, found)
    if message.status not in ("admitted", "started"):
        return draft.done(message.status)
    active = running(head, command.turn)
    draft.update_active(messages=tuple(other for other in active.messages if other != message.id))
    if command.rejected is None:
        draft.change(PutMessage(replace(message, status="delivered")))
        draft.event("message.delivered", data(message_id=message.id), turn=message.turn)
    else:
        _reject(draft, message.id, message.turn, command.rejected)
    return draft.done()


def _pending(
    head: SessionHead, command: MessageStarted | MessageSettled, turn: int, message_id: str, now: int, found: Found
) -> tuple[Message, Draft]:
    check_fence(head, command)
    running(head, turn)
    message: Message | None = need(found, "message", message_id)
    if message is None:
        raise MessageNotFound(message_id)
    return message, Draft(head, now)


def reject_pending(draft: Draft, active: ActiveTurn) -> None:
    """Reject the messages that a turn did not get to."""
    for message_id in active.messages:
        _reject(draft, message_id, active.number, "turn_ended")


def _reject(draft: Draft, message_id: str, turn: int, reason: str) -> None:
    draft.change(EndMessage(message_id, reason))
    draft.event("message.rejected", data(message_id=message_id, reason=reason), turn=turn)
