"""What a session's runtime is told of what others do to its turn: stops, answers, messages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from perdure.hosts.protocol import Answered, Begin, Deliver, Directive, Guest, Stop
from perdure.records.sessions import Ask, SessionHead
from perdure.rules import commands as c
from perdure.store.port import Committed, Store

_PAGE: Final = 500


def pass_on(guest: Guest, before: SessionHead, news: Committed) -> None:
    """Tell a runtime what a commit of this process means to it."""
    winding = news.head.winding
    if winding is not None and winding != before.winding:
        guest.tell(Stop(winding.turn, "stopped"))
    command = news.command
    if isinstance(command, c.AnswerAsk) and news.head.active is not None:
        guest.tell(Answered(news.head.active.number, command.ask_id, command.answer_json, command.issuer))
    elif isinstance(command, c.Send | c.SendToTurn):
        _deliver(guest, command, before, news.head)


def _deliver(guest: Guest, command: c.Send | c.SendToTurn, before: SessionHead, head: SessionHead) -> None:
    known = before.active.messages if before.active else ()
    if head.active is None or command.message_id not in head.active.messages or command.message_id in known:
        return
    content = command.turn.input_json if isinstance(command, c.Send) else command.content_json
    guest.tell(Deliver(head.active.number, command.message_id, content))


def is_left_untold(before: SessionHead, news: Committed) -> bool:
    """Whether more has changed for the running turn than the command of the news did: other processes did it.

    A commit of ours may be made on a head that holds commits of others that we have not heard of yet.
    """
    was, now = before.active, news.head.active
    if was is None or now is None or was.number != now.number:
        return news.command is None and _concern(before) != _concern(news.head)
    if was.asks is now.asks and was.messages is now.messages:
        return False
    command = news.command
    answered = set(was.asks) - set(now.asks)
    if isinstance(command, c.AnswerAsk | c.WithdrawAsk):
        answered.discard(command.ask_id)
    said = set(now.messages) - set(was.messages)
    if isinstance(command, c.Send | c.SendToTurn):
        said.discard(command.message_id)
    return bool(answered or said)


async def everything(store: Store, head: SessionHead) -> list[Directive]:
    """Return all that a runtime may have missed. It does again nothing of what it has not missed."""
    return [directive async for directive in _all(store, head)]


def is_still_true(told: SessionHead, head: SessionHead) -> bool:
    """Whether what was gathered for one head is all that is to be told for another."""
    return _concern(told) == _concern(head)


def _concern(head: SessionHead) -> tuple[Any, ...]:
    active = head.active
    return head.winding, active and (active.number, active.asks, active.messages)


async def _all(store: Store, head: SessionHead) -> AsyncIterator[Directive]:
    if head.winding is not None:
        yield Stop(head.winding.turn, "stopped")
    active = head.active
    if active is None or head.run is None or head.run.phase == "starting":
        # A lost turn is gone on with once its new process is ready: the commit that says so begins it.
        return
    turn = await store.turn(head.id, active.id)
    assert turn is not None
    yield Begin(active.number, active.id, turn.input_json, turn.created_at)
    async for ask in _answered(store, head.id):
        if ask.turn == active.number:
            yield Answered(ask.turn, ask.id, ask.answer_json, ask.responder)
    for message_id in active.messages:
        message = await store.message(head.id, message_id)
        if message is not None:
            yield Deliver(message.turn, message.id, message.content_json)


async def _answered(store: Store, session_id: str) -> AsyncIterator[Ask]:
    """Read all, since ids are made by the clocks of several machines and tell little of the order of things."""
    after = ""
    while page := await store.asks(session_id, "responded", after, _PAGE):
        for ask in page:
            yield ask
        after = page[-1].id
