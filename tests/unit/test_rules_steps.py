"""Steps: intended before they are done; what becomes of them when their process is lost."""

from __future__ import annotations

from typing import Any

import pytest
from rules_session import Session

from perdure.errors import NotSupported, StaleFence, StepMismatch, StepNotFound, TooManyPending, TurnNotRunning
from perdure.records.ids import new_id
from perdure.records.steps import MEMOS_A_TURN, STEPS_A_TURN, STEPS_AT_ONCE, Step, StepTold
from perdure.rules import commands
from perdure.rules.dispatch import needs_owner, next_action


@pytest.fixture(params=["inline", "process"])
def session(request: pytest.FixtureRequest) -> Session:
    session = Session(host=request.param, resumes=True)
    session.enqueue()
    session.begin()
    return session


def begin(session: Session, name: str = "charge", replay: str = "never", request: bytes = b"r") -> StepTold:
    step: StepTold = session.work(commands.BeginStep, turn=1, name=name, replay=replay, request=request)
    return step


def end(session: Session, name: str = "charge", status: str = "completed", outcome: bytes = b"1") -> Step:
    step: Step = session.work(commands.EndStep, turn=1, name=name, status=status, outcome_json=outcome)
    return step


def attempts(session: Session) -> int:
    return session.journal[1, "charge"].attempts


def lose(session: Session) -> None:
    """Lose the process and begin another."""
    session.lose()
    session.begin()


def test_a_turn_whose_process_is_lost_goes_on_in_the_next(session: Session) -> None:
    session.write()
    session.lose()
    assert (session.statuses, session.h.run) == (["running"], None)
    assert next_action(session.h, session.now) == "start_run"
    assert needs_owner(session.h)
    session.begin()
    assert [turn.number for turn in session.started] == [1, 1]
    assert session.types("turn.") == ["turn.queued", "turn.running", "turn.output", "turn.resumed"]
    assert session.turns[1].run_id == session.run
    session.complete()
    assert session.statuses == ["completed"]


def test_an_output_that_was_written_before_the_loss_is_not_written_again(session: Session) -> None:
    first = session.write(op=1)
    lose(session)
    assert session.write(op=1) == first
    assert session.write(op=2) == first + 4, "after the loss, the new process and its turn"


def test_what_waits_behind_a_lost_turn_goes_on_waiting(session: Session) -> None:
    session.enqueue()
    lose(session)
    assert session.statuses == ["running", "queued"]
    session.complete()
    assert session.statuses == ["completed", "running"]


def test_the_outcome_of_a_step_is_the_same_ever_after(session: Session) -> None:
    assert begin(session).status == "running"
    assert end(session).outcome_json == b"1"
    assert end(session, outcome=b"2").outcome_json == b"1"
    lose(session)
    known = begin(session)
    assert (known.status, known.outcome_json) == ("completed", b"1")
    assert session.types("step.") == ["step.started", "step.completed"]
    assert session.last("step.completed") == {"name": "charge", "result": 1}


def test_a_step_that_failed_has_failed(session: Session) -> None:
    begin(session)
    end(session, status="failed", outcome=b'{"code":"x"}')
    lose(session)
    assert begin(session).status == "failed"
    assert session.last("step.failed") == {"name": "charge", "error": {"code": "x"}}


@pytest.mark.parametrize("then", ["never", "safe"])
@pytest.mark.parametrize("first", ["never", "safe"])
def test_a_step_at_work_when_its_process_was_lost_runs_again_only_if_it_is_safe(
    session: Session, first: str, then: str
) -> None:
    begin(session, replay=first)
    lose(session)
    again = begin(session, replay=then)
    safe = first == then == "safe"
    assert again.status == ("running" if safe else "interrupted")
    assert attempts(session) == 1 + safe
    assert session.types("step.")[1:] == ["step.started" if safe else "step.interrupted"]
    assert begin(session, replay=then).status == again.status, "told again, it is the same"
    assert len(session.types("step.")) == 2
    assert (session.h.active.at_work if session.h.active else None) == (("charge",) if safe else ())


def test_a_step_is_begun_again_in_its_own_run_by_who_missed_the_answer(session: Session) -> None:
    begin(session)
    begin(session)
    assert attempts(session) == 1
    assert session.types("step.") == ["step.started"]


def test_other_arguments_after_a_loss_are_a_mistake(session: Session) -> None:
    begin(session, request=b"one")
    lose(session)
    with pytest.raises(StepMismatch):
        begin(session, request=b"two")


def test_a_step_that_keeps_killing_its_process_is_parked(session: Session) -> None:
    begin(session, replay="safe")
    for _ in range(2):
        lose(session)
        begin(session, replay="safe")
    session.lose()
    (hold,) = session.h.holds
    assert hold.reason == "process_failures"
    assert "charge" in (hold.message or "")
    assert (next_action(session.h, session.now), needs_owner(session.h)) == ("wait", False)
    session.resume(hold.id)
    session.begin()
    begin(session, replay="safe")
    assert attempts(session) == 4


def test_a_step_that_completes_shows_that_its_process_gets_on(session: Session) -> None:
    for number in range(5):
        lose(session)
        begin(session, f"step {number}")
        end(session, f"step {number}")
    assert session.h.holds == ()


@pytest.mark.parametrize("how", ["interrupt", "cancel"])
def test_a_lost_turn_can_be_ended_from_outside(session: Session, how: str) -> None:
    begin(session)
    session.lose()
    getattr(session, how)()
    assert session.statuses == ["interrupted" if how == "interrupt" else "cancelled"]
    assert (session.h.winding, session.h.run) == (None, None)


def test_its_deadline_passes_while_no_process_works_on_it() -> None:
    session = Session(resumes=True, max_turn_duration=5_000_000)
    session.enqueue()
    session.begin()
    session.lose()
    session.tick(later=5_000_000)
    assert session.statuses == ["interrupted"]


def test_questions_and_messages_outlive_the_process(session: Session) -> None:
    session.work(commands.TakeMessages, turn=1)
    message, ask = session.say(), session.ask().id
    lose(session)
    assert (session.messages[message].status, session.asks[ask].status) == ("admitted", "pending")
    session.answer(ask)
    assert session.asks[ask].status == "responded"


def test_a_memo_is_what_was_kept_first(session: Session) -> None:
    assert session.work(commands.KeepMemo, turn=1, name="key", value_json=b'"a"') == "a"
    lose(session)
    assert session.work(commands.KeepMemo, turn=1, name="key", value_json=b'"b"') == "a"


def test_a_process_that_is_not_the_owner_any_more_begins_nothing(session: Session) -> None:
    stale = {"session_id": session.id, "fence": session.h.fence, "turn": 1, "name": "x"}
    lose(session)
    with pytest.raises(StaleFence):
        session.do(commands.BeginStep(**stale, replay="safe", request=b""))
    with pytest.raises(StaleFence):
        session.do(commands.EndStep(**stale, status="completed", outcome_json=b"1"))
    with pytest.raises(StaleFence):
        session.do(commands.KeepMemo(**stale, value_json=b"1"))


def test_steps_belong_to_a_running_turn(session: Session) -> None:
    with pytest.raises(StepNotFound):
        end(session)
    session.complete()
    with pytest.raises(TurnNotRunning):
        begin(session)


def test_an_agent_that_is_interrupted_keeps_no_journal() -> None:
    session = Session()
    session.enqueue()
    session.begin()
    with pytest.raises(NotSupported):
        begin(session)
    with pytest.raises(NotSupported):
        session.work(commands.KeepMemo, turn=1, name="key", value_json=b"1")


def test_there_are_limits(session: Session) -> None:
    for number in range(STEPS_AT_ONCE):
        begin(session, str(number))
    with pytest.raises(TooManyPending):
        begin(session, "one more")
    for field, limit, act in (
        ("steps", STEPS_A_TURN, lambda: begin(session, "another")),
        ("memos", MEMOS_A_TURN, lambda: session.work(commands.KeepMemo, turn=1, name="k", value_json=b"1")),
    ):
        end(session, "0")
        set_active(session, **{field: limit})
        with pytest.raises(TooManyPending):
            act()


def set_active(session: Session, **fields: Any) -> None:
    from msgspec.structs import replace

    assert session.head is not None
    assert session.head.active is not None
    session.head = replace(session.head, active=replace(session.head.active, **fields))


def test_new_code_may_change_how_later_turns_are_treated(session: Session) -> None:
    session.complete()
    session.lose()
    session.enqueue()
    session.do(
        commands.StartRun(
            session_id=session.id,
            fence=session.h.fence,
            worker="w",
            run_id=new_id(),
            deployment="d2",
            limits=session.h.limits,
        )
    )
    assert not session.h.resumes
