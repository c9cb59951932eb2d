"""Questions of a turn, and messages to it."""

from __future__ import annotations

import json

import pytest
from rules_session import Session, text

from perdure.errors import (
    AnswerInvalid,
    AskAlreadyResponded,
    AskCancelled,
    AskNotFound,
    IdempotencyConflict,
    InvalidControl,
    MessageClosed,
    MessageNotFound,
    SessionHeld,
    TooManyPending,
    TurnNotFound,
)
from perdure.records.ids import new_id
from perdure.rules import commands
from perdure.rules.answers import check_answer, check_control
from perdure.rules.commands import NewTurn


def running(takes_messages: bool = True) -> Session:
    session = Session()
    session.admit()
    if takes_messages:
        session.work(commands.TakeMessages, turn=1)
    return session


# --- questions


def test_a_question_is_answered_once() -> None:
    session = running()
    ask = session.ask()
    assert (ask.status, ask.turn) == ("pending", 1)
    answered = session.answer(ask.id)
    assert (answered.status, answered.answer_json) == ("responded", b'"yes"')
    assert session.last("ask.responded")["responded_by"] == {"kind": "user", "id": "ada"}
    assert session.answer(ask.id) == answered
    for other in ({"response_id": "r2"}, {"answer": b'"no"'}):
        with pytest.raises(AskAlreadyResponded):
            session.answer(ask.id, **other)
    assert session.types("ask.") == ["ask.created", "ask.responded"]


def test_asking_again_returns_the_first_and_a_changed_question_is_refused() -> None:
    session = running()
    ask = session.ask("q")
    assert session.ask("q") == ask
    session.answer("q")
    assert session.ask("q").status == "responded"
    with pytest.raises(IdempotencyConflict):
        session.ask("q", prompt="another?")


def test_a_question_ends_with_its_turn() -> None:
    session = running()
    ask = session.ask()
    session.interrupt()
    assert session.asks[ask.id].status == "cancelled"
    with pytest.raises(AskCancelled):
        session.answer(ask.id)


def test_an_answered_question_stays_answered_when_its_turn_ends() -> None:
    session = running()
    ask = session.ask()
    session.answer(ask.id)
    session.complete()
    assert session.asks[ask.id].status == "responded"
    assert session.types("ask.") == ["ask.created", "ask.responded"]


def test_a_question_can_be_taken_back_unless_the_answer_came_first() -> None:
    session = running()
    taken, answered = session.ask(), session.ask()
    session.answer(answered.id)
    for ask in (taken, answered):
        session.work(commands.WithdrawAsk, turn=1, ask_id=ask.id)
    assert [session.asks[ask.id].status for ask in (taken, answered)] == ["cancelled", "responded"]
    with pytest.raises(AskCancelled):
        session.answer(taken.id)
    session.work(commands.WithdrawAsk, turn=1, ask_id=new_id())  # never asked: nothing to take back


def test_a_question_that_was_never_asked_is_not_found() -> None:
    with pytest.raises(AskNotFound):
        running().answer(new_id())


def test_only_so_many_questions_wait() -> None:
    session = running()
    asks = [session.ask() for _ in range(32)]
    with pytest.raises(TooManyPending):
        session.ask()
    session.answer(asks[0].id)
    session.ask()


def test_a_wrong_answer_leaves_the_question_open() -> None:
    session = running()
    control = check_control({"type": "choice", "options": [{"id": "a", "label": "A", "value": 1}]})
    ask = session.ask(control=control)
    with pytest.raises(AnswerInvalid):
        session.answer(ask.id, b'{"selected":[{"id":"a","value":2}]}')
    assert session.asks[ask.id].status == "pending"
    session.answer(ask.id, b'{"selected":[{"id":"a","value":1}]}')


OPTIONS = [{"id": name, "label": name.upper(), "value": {"n": number}} for number, name in enumerate("abc")]
ONE = {"type": "choice", "options": OPTIONS}
MANY = {**ONE, "multiple": True}
FREE = {**ONE, "allow_text": True}


def chosen(names: str, **more: object) -> dict[str, object]:
    return {"selected": [{"id": name, "value": {"n": "abc".index(name)}} for name in names], **more}


@pytest.mark.parametrize(
    ("control", "answer"),
    [
        ({"type": "text"}, "yes"),
        (ONE, chosen("b")),
        (MANY, chosen("ac")),
        (FREE, chosen("", text="neither")),
        (FREE, chosen("a", text="because")),
    ],
)
def test_answers_that_fit(control: object, answer: object) -> None:
    check_answer(check_control(control), json.dumps(answer).encode())


@pytest.mark.parametrize(
    ("control", "answer"),
    [
        ({"type": "text"}, ""),
        ({"type": "text"}, ["yes"]),
        ({"type": "text"}, None),
        (ONE, chosen("ab")),
        (ONE, chosen("")),
        (ONE, chosen("a", text="no text here")),
        (ONE, "a"),
        (ONE, {"selected": [{"id": "a", "value": {"n": 1}}]}),
        (ONE, {"selected": [{"id": "z", "value": 0}]}),
        (ONE, {"selected": ["a"]}),
        (MANY, chosen("ca")),
        (MANY, chosen("aa")),
        (FREE, chosen("", text="")),
        (FREE, chosen("", text="x" * 8193)),
    ],
)
def test_answers_that_do_not_fit(control: object, answer: object) -> None:
    with pytest.raises(AnswerInvalid):
        check_answer(check_control(control), json.dumps(answer).encode())


@pytest.mark.parametrize(
    "control",
    [
        None,
        {},
        {"type": "number"},
        {"type": "text", "more": 1},
        {"type": "choice"},
        {"type": "choice", "options": []},
        {"type": "choice", "options": OPTIONS * 40},
        {"type": "choice", "options": [OPTIONS[0], OPTIONS[0]]},
        {"type": "choice", "options": [{"id": "a", "label": "", "value": 1}]},
        {"type": "choice", "options": [{"id": "x" * 129, "label": "l", "value": 1}]},
        {"type": "choice", "options": [{"id": "a", "label": "l"}]},
        {"type": "choice", "options": ["a"]},
        {**ONE, "multiple": "yes"},
        {**ONE, "extra": 1},
    ],
)
def test_controls_that_are_refused(control: object) -> None:
    with pytest.raises(InvalidControl):
        check_control(control)


# --- messages


def test_a_message_goes_to_the_turn_that_takes_them() -> None:
    session = running()
    message = session.say()
    session.work(commands.MessageStarted, turn=1, message_id=message)
    session.work(commands.MessageStarted, turn=1, message_id=message)
    session.work(commands.MessageSettled, turn=1, message_id=message)
    session.work(commands.MessageSettled, turn=1, message_id=message, rejected="too late")
    assert session.messages[message].status == "delivered"
    assert session.types("message.") == ["message.admitted", "message.started", "message.delivered"]


def test_a_message_can_be_rejected_by_its_handler() -> None:
    session = running()
    message = session.say()
    session.work(commands.MessageSettled, turn=1, message_id=message, rejected="message_rejected")
    assert session.last("message.rejected") == {"message_id": message, "reason": "message_rejected"}


def test_a_turn_that_takes_no_messages_refuses_them() -> None:
    session = running(takes_messages=False)
    with pytest.raises(MessageClosed):
        session.say()


def test_a_message_never_goes_to_another_turn() -> None:
    session = running()
    session.enqueue()
    with pytest.raises(MessageClosed):
        session.say(turn=2)
    session.complete()
    with pytest.raises(MessageClosed):
        session.say(turn=1)
    with pytest.raises(MessageClosed):  # the second takes none yet
        session.say(turn=2)
    with pytest.raises(TurnNotFound):
        session.do(
            commands.SendToTurn(session_id=session.id, turn_id=new_id(), message_id=new_id(), content_json=text("x"))
        )


def test_messages_that_a_turn_did_not_get_to_are_rejected() -> None:
    session = running()
    one, two = session.say(), session.say()
    session.work(commands.MessageSettled, turn=1, message_id=one)
    session.complete()
    assert [session.messages[found].status for found in (one, two)] == ["delivered", "rejected"]
    assert session.messages[two].reason == "turn_ended"


def test_an_unknown_message_is_not_found() -> None:
    with pytest.raises(MessageNotFound):
        running().work(commands.MessageStarted, turn=1, message_id=new_id())


def test_only_so_many_messages_wait() -> None:
    session = running()
    for _ in range(64):
        session.say()
    with pytest.raises(TooManyPending):
        session.say()


def send(session: Session) -> dict[str, object]:
    turn = NewTurn(new_id(), text("x"))
    found: dict[str, object] = session.do(commands.Send(session_id=session.id, turn=turn, message_id=new_id()))
    return found


def test_send_steers_a_turn_that_takes_messages_and_enqueues_otherwise() -> None:
    session = Session()
    assert send(session)["kind"] == "enqueued"
    session.begin()
    assert send(session)["kind"] == "enqueued"
    session.work(commands.TakeMessages, turn=1)
    told = send(session)
    assert (told["kind"], told["turn_id"]) == ("messaged", session.turns[1].id)
    assert session.h.queued == 1


def test_send_to_a_held_session_is_refused() -> None:
    session = Session()
    hold = session.interrupt()
    with pytest.raises(SessionHeld) as refused:
        send(session)
    assert refused.value.details["hold_ids"] == [hold]
    assert session.h.queued == 0
