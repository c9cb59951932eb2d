"""Turns: one after the other in the order of admission, each with one outcome."""

from __future__ import annotations

import pytest
from rules_session import MINUTE, SECOND, Session, text

from perdure.errors import (
    OutputBudgetExceeded,
    QueueFull,
    SessionKeyConflict,
    SessionNotFound,
    SessionNotOpen,
    StaleFence,
    TurnNotRunning,
)
from perdure.records.ids import new_id
from perdure.records.sessions import Limits
from perdure.rules import commands
from perdure.rules.commands import NewTurn, Permit
from perdure.rules.decide import decide
from perdure.rules.decision import Needs


def test_turns_run_in_the_order_of_admission_one_at_a_time() -> None:
    session = Session()
    for said in "abc":
        session.enqueue(said)
    session.begin()
    for number in (1, 2, 3):
        assert session.running == number
        assert session.statuses.count("running") == 1
        session.complete()
    assert [turn.input_json for turn in session.started] == [text("a"), text("b"), text("c")]
    assert session.h.active is None
    assert session.statuses == ["completed"] * 3


def test_receipts_number_the_inputs_of_a_session() -> None:
    session = Session()
    told = [session.enqueue() for _ in range(3)]
    assert [receipt["sequence"] for receipt in told] == [1, 2, 3]
    assert {receipt["session_id"] for receipt in told} == {session.id}
    assert [receipt["turn_id"] for receipt in told] == [turn.id for turn in session.turns.values()]
    assert not any(receipt["created"] for receipt in told)


def test_events_are_numbered_without_gaps_and_name_their_turn_and_run() -> None:
    session = Session()
    session.admit()
    session.write()
    session.complete()
    assert [event.seq for event in session.events] == list(range(1, 7))
    assert [(event.type, event.turn, event.run) for event in session.events] == [
        ("session.created", None, None),
        ("turn.queued", 1, None),
        ("session.process_started", None, 1),
        ("turn.running", 1, 1),
        ("turn.output", 1, 1),
        ("turn.completed", 1, 1),
    ]


def test_a_permit_starts_only_what_is_first() -> None:
    session = Session()
    session.enqueue("waits")
    session.admit("behind it")
    assert session.h.active is None
    session.begin()
    session.admit("third")
    assert (session.running, session.statuses) == (1, ["running", "queued", "queued"])


def test_a_permit_of_another_worker_starts_nothing() -> None:
    session = Session()
    session.admit()
    session.complete()
    session.enqueue("x", Permit("another", new_id()))
    assert session.h.active is None
    session.work(commands.StartTurn)
    assert session.running == 2


def test_a_permit_without_a_run_starts_nothing_on_a_session_without_one() -> None:
    session = Session()
    session.enqueue("x", Permit("w"))
    assert (session.h.active, session.h.run) == (None, None)


def test_a_worker_that_takes_no_more_work_starts_nothing() -> None:
    session = Session()
    session.admit()
    session.enqueue()
    session.complete(start=False)
    assert session.statuses == ["completed", "queued"]
    session.work(commands.StartTurn, start=False)
    assert session.h.active is None
    session.work(commands.StartTurn)
    assert session.running == 2


def test_a_response_is_shown_only_by_completion() -> None:
    session = Session()
    session.admit()
    session.complete(response_json=text("hi"))
    assert session.last("turn.completed") == {"result": 1, "response": [{"text": "hi", "type": "text"}]}
    session.admit()
    session.complete()
    assert session.last("turn.completed") == {"result": 1}


def test_a_failed_turn_leaves_the_session_open_and_its_queue_going() -> None:
    session = Session()
    session.admit()
    session.enqueue()
    session.fail()
    assert session.statuses == ["failed", "running"]
    assert session.h.status == "open"
    assert session.last("turn.failed") == {"error": {"code": "x"}}


def test_a_settlement_sent_again_changes_nothing_and_tells_the_outcome() -> None:
    session = Session()
    session.admit()
    assert session.complete() == "completed"
    length = len(session.events)
    assert session.complete(turn=1) == "completed"
    assert session.fail(turn=1) == "completed"
    assert len(session.events) == length


@pytest.mark.parametrize("number", [2, 3, 99])
def test_a_turn_that_does_not_run_cannot_be_settled(number: int) -> None:
    session = Session()
    session.admit()
    session.enqueue()
    with pytest.raises(TurnNotRunning):
        session.complete(turn=number)
    assert session.statuses == ["running", "queued"]


def test_a_write_sent_again_is_told_where_the_first_one_is() -> None:
    session = Session()
    session.admit()
    first, second = session.write(1, "a"), session.write(2, "b")
    assert (session.write(1, "a"), session.write(2, "b")) == (first, second)
    assert session.types("turn.output") == ["turn.output"] * 2


def test_writes_of_another_turn_are_not_taken_for_this_ones() -> None:
    session = Session()
    session.admit()
    one = session.write(1, "a")
    session.complete()
    session.admit()
    assert session.write(1, "b") > one


def test_a_turn_that_has_ended_takes_no_output() -> None:
    session = Session()
    session.admit()
    session.complete()
    with pytest.raises(TurnNotRunning):
        session.write(1, turn=1)


def test_output_and_questions_share_a_budget() -> None:
    session = Session()
    session.admit()
    large = "x" * (255 * 1024)
    for op in range(1, 33):
        session.write(op, large)
    with pytest.raises(OutputBudgetExceeded):
        session.write(33, large)
    with pytest.raises(OutputBudgetExceeded):
        session.ask(prompt=large)
    session.write(34, "small")  # there is room for this
    session.complete()
    session.admit()
    session.write(1, large)  # and the next turn has its own budget


def test_a_queue_has_an_end() -> None:
    session = Session()
    for _ in range(1000):
        session.enqueue()
    with pytest.raises(QueueFull):
        session.enqueue()
    session.begin()
    session.enqueue()  # one is running now
    assert session.h.queued == 1000


def test_live_slots_are_of_the_running_turn_and_end_with_it() -> None:
    session = Session()
    session.admit()
    length = len(session.events)
    for said in (b'"a"', b'"ab"'):
        session.work(commands.WriteLive, turn=1, slot="text", content_json=said)
    assert (session.live, len(session.events)) == ({"text": b'"ab"'}, length)
    session.complete()
    assert session.live == {}
    with pytest.raises(TurnNotRunning):
        session.work(commands.WriteLive, turn=1, slot="text", content_json=b"1")


# --- fences


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (commands.WriteOutput, {"turn": 1, "op": 1, "content_json": b"[]"}),
        (commands.WriteLive, {"turn": 1, "slot": "s", "content_json": b"[]"}),
        (commands.CompleteTurn, {"turn": 1, "result_json": b"1"}),
        (commands.FailTurn, {"turn": 1, "error_json": b"{}"}),
        (commands.StartTurn, {}),
        (commands.TakeMessages, {"turn": 1}),
        (commands.CreateAsk, {"turn": 1, "ask_id": "a", "prompt_json": b"[]", "control_json": b"{}"}),
        (commands.WithdrawAsk, {"turn": 1, "ask_id": "a"}),
        (commands.MessageStarted, {"turn": 1, "message_id": "m"}),
        (commands.MessageSettled, {"turn": 1, "message_id": "m"}),
        (commands.HandlerReleased, {"turn": 1}),
        (commands.RunReady, {"run_id": "r"}),
        (commands.InitFailed, {"run_id": "r", "error_json": b"{}", "hold_id": "h"}),
        (commands.StopRun, {"run_id": "r", "reason": "x"}),
        (commands.Sleep, {"run_id": "r", "reason": "x"}),
        (commands.SetResidency, {"residency": "hibernated"}),
        (commands.BeginStep, {"turn": 1, "name": "s", "replay": "safe", "request": b""}),
        (commands.EndStep, {"turn": 1, "name": "s", "status": "completed", "outcome_json": b"1"}),
        (commands.KeepMemo, {"turn": 1, "name": "m", "value_json": b"1"}),
    ],
)
@pytest.mark.parametrize("offset", [-1, 1])
def test_every_command_of_a_worker_is_fenced(kind: type[commands.WorkerCommand], fields: dict, offset: int) -> None:  # type: ignore[type-arg]
    session = Session()
    session.admit()
    with pytest.raises(StaleFence):
        session.work(kind, fence=session.h.fence + offset, **fields)


def test_no_command_of_a_worker_is_forgotten_in_the_test_above() -> None:
    def below(kind: type) -> set[type]:
        return {kind, *(found for child in kind.__subclasses__() for found in below(child))}

    assert len(below(commands.WorkerCommand)) - 1 == 19


def test_adoption_fences_the_worker_before() -> None:
    session = Session(host="process")
    session.enqueue()
    session.begin()
    old = session.h.fence
    session.do(commands.AdoptRun(session_id=session.id, fence=session.h.fence, worker="w2", run_id=session.run))
    with pytest.raises(StaleFence):
        session.work(commands.WriteOutput, fence=old, turn=1, op=1, content_json=b"[]")
    session.write()
    assert session.h.worker == "w2"


def test_adopting_a_run_that_is_over_does_nothing() -> None:
    session = Session(host="process")
    session.enqueue()
    session.begin()
    fence = session.h.fence
    session.do(commands.AdoptRun(session_id=session.id, fence=session.h.fence, worker="w2", run_id=new_id()))
    assert (session.h.fence, session.h.worker) == (fence, "w")


# --- sessions


def test_a_session_of_another_environment_is_not_found() -> None:
    session = Session()
    for environment in ("demo/staging", ""):
        with pytest.raises(SessionNotFound):
            session.do(
                commands.Enqueue(session_id=session.id, environment=environment, turn=NewTurn(new_id(), text("x")))
            )


def test_a_session_that_does_not_exist_is_not_found() -> None:
    with pytest.raises(SessionNotFound):
        decide(None, commands.Enqueue(session_id=new_id(), turn=NewTurn(new_id(), b"[]")), 1, {})


def test_a_key_that_is_taken_is_refused_naming_its_session() -> None:
    create = commands.CreateSession(
        session_id=new_id(), environment="e", agent="a", deployment="d", host="inline", limits=Limits(), key="k"
    )
    with pytest.raises(Needs):
        decide(None, create, 1, {})
    with pytest.raises(SessionKeyConflict) as refused:
        decide(None, create, 1, {("key", ("e", "a", "k")): "other"})
    assert refused.value.details == {"session_id": "other"}
    made = decide(None, create, 1, {("key", ("e", "a", "k")): None})
    assert made.head.key == "k"


def test_creation_with_an_input_is_one_commit() -> None:
    create = commands.CreateSession(
        session_id=new_id(),
        environment="e",
        agent="a",
        deployment="d",
        host="inline",
        limits=Limits(),
        turn=NewTurn(new_id(), text("x")),
        permit=Permit("w", new_id()),
    )
    made = decide(None, create, 1, {})
    assert [event.type for event in made.events] == [
        "session.created",
        "turn.queued",
        "session.process_started",
        "turn.running",
    ]
    assert made.started is not None


# --- deadlines


def test_a_turn_past_its_deadline_is_interrupted_and_holds_the_session() -> None:
    session = Session(max_turn_duration=MINUTE)
    session.admit()
    session.enqueue()
    session.tick(MINUTE - 1)
    assert session.running == 1
    session.tick(1)
    assert session.statuses == ["interrupted", "queued"]
    assert session.turns[1].reason == "deadline"
    (hold,) = session.h.holds
    assert (hold.reason, hold.message, hold.issuer.kind) == ("turn_deadline", "Turn deadline elapsed", "system")
    assert session.last("session.deadline") == {"hold_id": hold.id}
    session.work(commands.HandlerReleased, turn=1)
    assert session.h.active is None
    session.resume(hold.id)
    assert session.running == 2


def test_each_turn_has_the_deadline_from_its_own_start() -> None:
    session = Session(max_turn_duration=MINUTE)
    session.admit()
    session.enqueue()
    session.now += 40 * SECOND
    session.complete()
    session.tick(40 * SECOND)
    assert session.running == 2


# --- idleness


def test_an_idle_session_closes_by_itself_and_a_busy_one_does_not() -> None:
    session = Session(close_after_idle=MINUTE)
    session.admit()
    session.tick(10 * MINUTE)
    assert session.h.status == "open"
    session.complete()
    session.tick(MINUTE - 1)
    assert session.h.status == "open"
    session.tick(1)
    assert session.h.status == "closed"
    assert session.last("session.closing") == {"reason": "idle"}
    with pytest.raises(SessionNotOpen):
        session.enqueue()


def test_waiting_input_keeps_a_session_open() -> None:
    session = Session(close_after_idle=MINUTE)
    session.enqueue()
    session.tick(10 * MINUTE)
    assert session.h.status == "open"
