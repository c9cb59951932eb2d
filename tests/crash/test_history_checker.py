"""The checker of histories finds what is wrong: it is given histories that are wrong on purpose."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from perdure.testing import History, HistoryBroken, Started, check_history, problems

Documents = dict[str, Any]


def event(kind: str, turn: str | None = None, run: str | None = None, **data: Any) -> Documents:
    return {"type": kind, "turn_id": turn, "run_id": run, "data": data}


def story() -> list[Documents]:
    """Two runs, a hold, a question, a message, and turns of every kind of end."""
    return [
        event("session.created", agent="a"),
        event("turn.queued", "t1", sequence=1, input=[]),
        event("session.process_started", None, "r1", number=1, recovery="initial"),
        event("turn.running", "t1", "r1", sequence=1),
        event("turn.queued", "t2", sequence=2, input=[]),
        event("turn.output", "t1", "r1", content=[]),
        event("ask.created", "t1", "r1", ask_id="q1", prompt=[], answer={}),
        event("ask.responded", "t1", "r1", ask_id="q1", answer="x"),
        event("message.admitted", "t1", "r1", message_id="m1", content=[]),
        event("message.started", "t1", "r1", message_id="m1"),
        event("message.delivered", "t1", "r1", message_id="m1"),
        event("turn.completed", "t1", "r1", result=1, response=[]),
        event("turn.running", "t2", "r1", sequence=2),
        event("ask.created", "t2", "r1", ask_id="q2", prompt=[], answer={}),
        event("ask.cancelled", "t2", "r1", ask_id="q2"),
        event("turn.interrupted", "t2", "r1", reason="interrupt", hold_id="h1"),
        event("session.held", hold_id="h1", reason="interrupt", issuer={"kind": "user", "id": "u"}),
        event("session.process_lost", None, "r1", reason="killed", losses=0),
        event("turn.queued", "t3", sequence=3, input=[]),
        event("turn.queued", "t4", sequence=4, input=[]),
        event("session.resumed", hold_id="h1"),
        event("session.process_started", None, "r2", number=2, recovery="reconstructed"),
        event("turn.running", "t3", "r2", sequence=3),
        event("turn.failed", "t3", "r2", error={"code": "handler_failed"}),
        event("session.closing", reason="close"),
        event("turn.cancelled", "t4"),
        event("session.cancelled"),
        event("session.process_stopped", None, "r2", reason="session_cancelled"),
    ]


def numbered(events: list[Documents]) -> list[Documents]:
    return [{"seq": number, **each} for number, each in enumerate(events, 1)]


def good() -> History:
    events = numbered(story())
    turns = [
        {"id": "t1", "sequence": 1, "status": "completed", "result": 1, "response": [], "run_id": "r1"},
        {"id": "t2", "sequence": 2, "status": "interrupted", "reason": "interrupt", "run_id": "r1"},
        {"id": "t3", "sequence": 3, "status": "failed", "error": {"code": "handler_failed"}, "run_id": "r2"},
        {"id": "t4", "sequence": 4, "status": "cancelled"},
    ]
    runs = [{"number": 1, "id": "r1", "ended_at": "then"}, {"number": 2, "id": "r2", "ended_at": "then"}]
    session = {
        "id": "s",
        "status": "cancelled",
        "last_event_seq": len(events),
        "active_turn_id": None,
        "queued": 0,
        "holds": [],
        "run": None,
    }
    return History(session, turns, events, runs)


def changed(change: Callable[[list[Documents]], object]) -> History:
    """Return the good history with another log; its numbers and the session's count of them are right."""
    history = good()
    events = story()
    change(events)
    session = {**history.session, "last_event_seq": len(events)}
    return History(session, history.turns, numbered(events), history.runs)


def place(kind: str, turn: str | None = None) -> int:
    return next(
        i for i, each in enumerate(story()) if each["type"] == kind and (turn is None or each["turn_id"] == turn)
    )


def move(kind: str, turn: str | None, to: int) -> History:
    def change(events: list[Documents]) -> None:
        events.insert(to, events.pop(place(kind, turn)))

    return changed(change)


STARTED = [Started(1, "r1", 11), Started(2, "r1", 11), Started(3, "r2", 12)]
RECEIPTS = [{"turn_id": f"t{number}", "sequence": number} for number in (1, 2, 3, 4)]


def test_a_good_history_is_good() -> None:
    assert problems(good(), STARTED, RECEIPTS) == []
    check_history(good(), STARTED, RECEIPTS)


def test_what_is_wrong_is_told_with_the_log() -> None:
    with pytest.raises(HistoryBroken, match=r"(?s)turn 1 is still active.*turn\.running"):
        check_history(move("turn.completed", "t1", place("turn.running", "t2") + 1))


def test_a_hold_of_a_session_that_has_ended_may_be_released_without_an_event() -> None:
    held = story()[: place("session.held") + 1]
    for status, holds, wrong in (("open", [], True), ("cancelled", [], False), ("cancelled", [{"id": "other"}], True)):
        ended = [*held, event("session.cancelled")] if status == "cancelled" else held
        history = changed(lambda events, ended=ended: events.__setitem__(slice(None), ended))  # type: ignore[misc]
        session = {**history.session, "status": status, "holds": holds}
        found = problems(History(session, history.turns, history.events, history.runs))
        assert any("the session's holds" in each for each in found) == wrong


@pytest.mark.parametrize("index", range(len(story())))
def test_no_event_may_be_missing_but_what_is_written_in_a_turn(index: int) -> None:
    lost = story()[index]["type"]
    found = problems(changed(lambda events: events.pop(index)))
    assert bool(found) == (lost not in ("turn.output", "message.started", "session.closing"))


@pytest.mark.parametrize("index", range(len(story())))
def test_no_event_may_be_there_twice_but_what_is_written_in_a_turn(index: int) -> None:
    repeated = story()[index]["type"]
    found = problems(changed(lambda events: events.insert(index, copy.deepcopy(events[index]))))
    assert bool(found) == (repeated not in ("turn.output", "message.started"))


def test_a_gap_and_a_repeated_number_are_found() -> None:
    for wrong in (7, 9):
        history = good()
        events = [*history.events]
        events[7] = {**events[7], "seq": wrong}
        if wrong == 9:
            events = events[:7] + [{**each, "seq": each["seq"] + 1} for each in events[7:]]
        assert any(
            "its number should be 8" in each
            for each in problems(History(history.session, history.turns, events, history.runs))
        )


ORDERS: list[tuple[History, str]] = [
    (move("turn.running", "t2", place("turn.completed", "t1")), "turn 1 is still active"),
    (move("turn.queued", "t2", 1), "its turn should be number 1"),
    (move("turn.output", None, place("turn.running", "t1")), "turn 1 is not active"),
    (move("turn.output", None, place("turn.completed", "t1")), "turn 1 is not active"),
    (move("ask.responded", None, place("ask.created")), "it never began"),
    (move("message.delivered", None, place("turn.completed", "t1")), "was left open"),
    (move("session.resumed", None, place("turn.running", "t3")), "the session is held"),
    (move("session.closing", None, place("turn.queued", "t4")), "takes no input"),
    (move("turn.cancelled", "t4", len(story()) - 1), "have not ended"),
    (move("session.process_lost", None, place("turn.running", "t2")), "the session's run is None"),
    (move("session.process_started", None, place("turn.running", "t1")), "the session's run is None"),
    (move("session.process_stopped", None, place("turn.failed", "t3")), "turn 3 is still active"),
]


@pytest.mark.parametrize(("history", "why"), ORDERS)
def test_what_comes_at_the_wrong_time_is_found(history: History, why: str) -> None:
    assert any(why in each for each in problems(history)), problems(history)


def edited(part: str, index: int | None, **fields: Any) -> History:
    history = copy.deepcopy(good())
    target: Any = getattr(history, part) if index is None else getattr(history, part)[index]
    for name, value in fields.items():
        target.pop(name, None)
        if value is not None:
            target[name] = value
    return history


EDITS: list[tuple[History, str]] = [
    (edited("session", None, status="open"), "the session's status"),
    (edited("session", None, active_turn_id="t1"), "the session's active_turn_id"),
    (edited("session", None, queued=1), "the session's queued"),
    (edited("session", None, last_event_seq=27), "the session's last_event_seq"),
    (edited("session", None, holds=[{"id": "h1"}]), "the session's holds"),
    (edited("session", None, run={"id": "r2"}), "the living runs"),
    (edited("turns", 0, status="interrupted"), "the turns are"),
    (edited("turns", 0, response=None), "its response is not that of the log"),
    (edited("turns", 0, result=None), "turn 1 is completed and shows"),
    (edited("turns", 1, response=[]), "turn 2 is interrupted and shows"),
    (edited("turns", 1, reason="deadline"), "its reason is not that of the log"),
    (edited("turns", 2, error={"code": "other"}), "its error is not that of the log"),
    (edited("turns", 2, run_id="r1"), "its run is r1"),
    (edited("turns", 3, sequence=5), "the turns are"),
    (edited("runs", 1, id="r3"), "the runs are"),
    (edited("runs", 0, ended_at=None), "the living runs"),
    (edited("events", 21, data={"number": 2, "recovery": "initial"}), "it should be run 2, reconstructed"),
]


@pytest.mark.parametrize(("history", "why"), EDITS)
def test_what_does_not_agree_with_the_log_is_found(history: History, why: str) -> None:
    assert any(why in each for each in problems(history)), problems(history)


LEDGERS: list[tuple[list[Started], str]] = [
    ([*STARTED[:2], STARTED[1], STARTED[2]], "the handler of turn 2 was started 2 times"),
    ([STARTED[1], STARTED[0], STARTED[2]], "handlers were started in the order"),
    ([*STARTED, Started(4, "r2", 12)], "started for turn 4, which the log never started"),
    ([Started(1, "r2", 12), *STARTED[1:]], "turn 1 was handled in run r2"),
    ([STARTED[0], Started(2, "r1", 13), STARTED[2]], "a run was in more than one process"),
]


@pytest.mark.parametrize(("started", "why"), LEDGERS)
def test_what_handlers_did_wrong_is_found(started: list[Started], why: str) -> None:
    assert any(why in each for each in problems(good(), started)), problems(good(), started)


@pytest.mark.parametrize("receipt", [{"turn_id": "t9", "sequence": 1}, {"turn_id": "t1", "sequence": 2}])
def test_what_was_accepted_and_is_lost_is_found(receipt: Documents) -> None:
    assert any("is not in the log" in each for each in problems(good(), (), [receipt]))
