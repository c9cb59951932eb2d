"""Questions that a running turn asks of a person, and their answers."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from perdure.errors import AskAlreadyResponded, AskCancelled, AskNotFound, IdempotencyConflict, TooManyPending
from perdure.records.sessions import ActiveTurn, Ask, SessionHead
from perdure.rules.answers import check_answer
from perdure.rules.commands import AnswerAsk, CreateAsk, WithdrawAsk
from perdure.rules.decision import Decision, Draft, EndAsk, Found, PutAsk, data, need, with_raw
from perdure.rules.guards import check_fence, running, spend
from perdure.rules.retention import gone

PENDING_LIMIT: Final = 32


def create(head: SessionHead, command: CreateAsk, now: int, found: Found) -> Decision:
    """Ask a question; asking again under the same id returns the first, another question under it is refused."""
    check_fence(head, command)
    active = running(head, command.turn)
    draft = Draft(head, now)
    existing: Ask | None = need(found, "ask", command.ask_id)
    if existing is not None:
        if (existing.prompt_json, existing.control_json) != (command.prompt_json, command.control_json):
            raise IdempotencyConflict(command.ask_id)
        return draft.done(existing)
    if len(active.asks) >= PENDING_LIMIT:
        raise TooManyPending("questions", PENDING_LIMIT)
    size = spend(active, len(command.prompt_json) + len(command.control_json))
    draft.update_active(asks=(*active.asks, command.ask_id), size=size)
    ask = Ask(command.ask_id, active.number, active.id, "pending", command.prompt_json, command.control_json, now)
    draft.change(PutAsk(ask))
    told = {"ask_id": _quoted(ask.id), "prompt": ask.prompt_json, "answer": ask.control_json}
    draft.event("ask.created", with_raw(told), turn=active.number)
    return draft.done(ask)


def _quoted(text: str) -> bytes:
    return b'"' + text.encode() + b'"'


def answer(head: SessionHead, command: AnswerAsk, now: int, found: Found) -> Decision:
    """Take the first valid answer; the same response again returns it, another one is refused."""
    ask: Ask | None = need(found, "ask", command.ask_id)
    if ask is None:
        raise AskNotFound(command.ask_id, gone(head))
    draft = Draft(head, now)
    if ask.status == "cancelled":
        raise AskCancelled(ask.id)
    if ask.status == "responded":
        if (ask.response_id, ask.answer_json) != (command.response_id, command.answer_json):
            raise AskAlreadyResponded(ask.id)
        return draft.done(ask)
    check_answer(ask.control_json, command.answer_json)
    answered = replace(
        ask,
        status="responded",
        answer_json=command.answer_json,
        response_id=command.response_id,
        responder=command.issuer,
        ended_at=now,
    )
    _forget(draft, ask.id)
    draft.change(PutAsk(answered))
    told = {
        "ask_id": _quoted(ask.id),
        "answer": command.answer_json,
        "responded_by": data(kind=command.issuer.kind, id=command.issuer.id),
    }
    draft.event("ask.responded", with_raw(told), turn=ask.turn)
    return draft.done(answered)


def withdraw(head: SessionHead, command: WithdrawAsk, now: int, found: Found) -> Decision:
    """Take a question back; an answer that came first stands."""
    check_fence(head, command)
    ask: Ask | None = need(found, "ask", command.ask_id)
    draft = Draft(head, now)
    if ask is None or ask.status != "pending":
        return draft.done(ask)
    _forget(draft, ask.id)
    _cancel(draft, ask.id, ask.turn)
    return draft.done()


def cancel_pending(draft: Draft, active: ActiveTurn) -> None:
    """Cancel the questions that a turn leaves behind."""
    for ask_id in active.asks:
        _cancel(draft, ask_id, active.number)


def _cancel(draft: Draft, ask_id: str, turn: int) -> None:
    draft.change(EndAsk(ask_id, draft.now))
    draft.event("ask.cancelled", data(ask_id=ask_id), turn=turn)


def _forget(draft: Draft, ask_id: str) -> None:
    active = draft.head.active
    if active is not None and ask_id in active.asks:
        draft.update_active(asks=tuple(other for other in active.asks if other != ask_id))
