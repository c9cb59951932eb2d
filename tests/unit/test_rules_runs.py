"""Processes that end, are lost, sleep and wake; holds, controls, and what they do to turns."""

from __future__ import annotations

import pytest
from rules_session import ADA, MINUTE, SECOND, Session

from perdure.errors import HoldNotFound, SessionNotOpen, TooManyHolds, TurnNotRunning
from perdure.records.ids import new_id
from perdure.rules import commands
from perdure.rules.dispatch import hibernate_at, needs_owner, next_action, wake_at


def process(**limits: int) -> Session:
    session = Session(host="process", **limits)
    session.enqueue()
    session.begin()
    return session


# --- losses


def test_a_lost_process_interrupts_its_turn_which_is_never_replayed() -> None:
    session = process()
    session.enqueue()
    session.lose()
    assert session.statuses == ["interrupted", "queued"]
    assert session.turns[1].reason == "process_lost"
    assert next_action(session.h, session.now) == "start_run"
    session.begin()
    assert session.running == 2
    assert [run.recovery for run in session.runs.values()] == ["initial", "reconstructed"]
    assert [turn.number for turn in session.started] == [1, 2]


def test_the_third_loss_in_a_row_holds_the_session() -> None:
    session = process()
    for _ in range(4):
        session.enqueue()
    for lost in (1, 2):
        session.lose()
        assert session.h.holds == ()
        session.begin()
        assert session.running == lost + 1
    session.lose("the third")
    assert session.statuses == ["interrupted"] * 3 + ["queued"] * 2
    (hold,) = session.h.holds
    assert (hold.reason, hold.issuer.kind) == ("process_failures", "system")
    assert hold.message is not None
    assert "the third" in hold.message
    assert next_action(session.h, session.now) == "wait"
    session.resume(hold.id)
    assert (session.h.losses, next_action(session.h, session.now)) == (0, "start_run")
    session.begin()
    assert session.running == 4


def test_a_completed_turn_between_losses_starts_the_count_anew() -> None:
    session = process()
    for _ in range(2):
        session.lose()
        session.enqueue()
        session.begin()
    session.complete()
    for _ in range(2):
        session.enqueue()
        session.work(commands.StartTurn)
        session.lose()
        session.enqueue()
        session.begin()
    assert session.h.holds == ()


def test_a_failed_turn_does_not_start_the_count_anew() -> None:
    session = process()
    for _ in range(2):
        session.lose()
        session.enqueue()
        session.begin()
    session.fail()
    session.enqueue()
    session.work(commands.StartTurn)
    session.lose()
    assert [hold.reason for hold in session.h.holds] == ["process_failures"]


def test_a_process_that_is_lost_while_idle_does_not_count() -> None:
    session = process()
    session.complete()
    for _ in range(5):
        session.lose()
        session.enqueue()
        session.begin()
        session.complete()
    assert (session.h.losses, session.h.holds) == (0, ())


def test_a_process_that_is_lost_before_it_was_ready_counts() -> None:
    session = Session(host="process")
    session.enqueue()
    for _ in range(3):
        session.do(
            commands.StartRun(
                session_id=session.id,
                fence=session.h.fence,
                worker="w",
                run_id=new_id(),
                deployment="d",
                limits=session.h.limits,
            )
        )
        session.lose()
    assert [hold.reason for hold in session.h.holds] == ["process_failures"]
    assert session.statuses == ["queued"]


def test_the_loss_of_an_older_process_changes_nothing() -> None:
    session = process()
    old = session.run
    session.lose()
    session.enqueue()
    session.begin()
    length = len(session.events)
    session.do(
        commands.RunLost(
            session_id=session.id, fence=session.h.fence, worker="w", run_id=old, reason="late", hold_id=new_id()
        )
    )
    session.do(commands.RunStopped(session_id=session.id, fence=session.h.fence, run_id=old, reason="late"))
    assert len(session.events) == length


def test_a_lost_run_leaves_no_question_message_or_live_text_behind() -> None:
    session = process()
    session.work(commands.TakeMessages, turn=1)
    message, ask = session.say(), session.ask().id
    session.work(commands.WriteLive, turn=1, slot="s", content_json=b"1")
    session.lose()
    assert (session.messages[message].status, session.asks[ask].status, session.live) == ("rejected", "cancelled", {})


# --- init


def test_init_that_fails_holds_the_session_and_keeps_its_input() -> None:
    session = Session(host="process")
    session.enqueue()
    session.do(
        commands.StartRun(
            session_id=session.id,
            fence=session.h.fence,
            worker="w",
            run_id=new_id(),
            deployment="d",
            limits=session.h.limits,
        )
    )
    session.work(commands.InitFailed, run_id=session.run, error_json=b'{"code":"x"}', hold_id=new_id())
    assert session.statuses == ["queued"]
    assert next_action(session.h, session.now) == "stop_run"
    session.do(
        commands.RunStopped(session_id=session.id, fence=session.h.fence, run_id=session.run, reason="init_failed")
    )
    (hold,) = session.h.holds
    assert hold.reason == "init_failed"
    session.resume(hold.id)
    session.begin()
    assert session.running == 1
    assert [run.recovery for run in session.runs.values()] == ["initial", "reconstructed"]


# --- interrupt, hold, resume


def test_an_interrupt_stops_the_turn_and_holds_the_rest() -> None:
    session = process()
    session.enqueue("b")
    hold = session.interrupt("stop that")
    session.enqueue("d")
    assert session.statuses == ["interrupted", "queued", "queued"]
    assert session.last("turn.interrupted") == {"reason": "interrupt", "hold_id": hold}
    assert session.last("session.held")["message"] == "stop that"
    session.work(commands.HandlerReleased, turn=1)
    assert session.h.active is None
    with pytest.raises(HoldNotFound):
        session.resume(new_id())
    session.resume(hold)
    assert session.running == 2
    assert [turn.number for turn in session.started] == [1, 2]


def test_a_release_starts_nothing_on_a_run_whose_worker_may_be_dead() -> None:
    session = process()
    session.enqueue("b")
    hold = session.interrupt()
    session.work(commands.HandlerReleased, turn=1)
    session.resume(hold, owner=False)
    assert session.statuses == ["interrupted", "queued"]
    session.lose("its worker was lost")
    assert (session.statuses, session.h.losses) == (["interrupted", "queued"], 0)


def test_nothing_starts_before_the_stopped_handler_has_let_go() -> None:
    session = process()
    session.enqueue()
    session.resume(session.interrupt())
    assert session.h.active is None
    assert session.h.winding is not None
    session.work(commands.HandlerReleased, turn=1)
    assert session.running == 2


def test_a_handler_that_does_not_let_go_costs_its_process() -> None:
    session = process()
    session.enqueue()
    hold = session.interrupt()
    assert wake_at(session.h) == session.now + 10 * SECOND
    assert next_action(session.h, session.now + 10 * SECOND - 1) == "wait"
    assert next_action(session.h, session.now + 10 * SECOND) == "stop_run"
    session.work(commands.StopRun, run_id=session.run, reason="handler_stuck")
    session.do(
        commands.RunStopped(session_id=session.id, fence=session.h.fence, run_id=session.run, reason="handler_stuck")
    )
    session.resume(hold)
    session.begin()
    assert session.running == 2
    assert session.h.losses == 0


def test_a_stopped_turn_cannot_write_or_complete_any_more() -> None:
    session = process()
    session.interrupt()
    with pytest.raises(TurnNotRunning):
        session.write(1, turn=1)
    assert session.complete(turn=1) == "interrupted"
    assert session.h.winding is None  # but its handler has let go


def test_an_idle_session_can_be_held() -> None:
    session = Session()
    hold = session.interrupt()
    session.admit()
    assert (session.h.active, session.statuses) == (None, ["queued"])
    session.resume(hold)
    assert next_action(session.h, session.now) == "start_run"


def test_each_hold_is_released_by_itself_and_only_once() -> None:
    session = process()
    one, two = session.interrupt(), session.interrupt()
    session.enqueue()
    session.work(commands.HandlerReleased, turn=1)
    session.resume(one)
    assert session.h.active is None
    length = len(session.events)
    session.resume(one)
    assert len(session.events) == length
    session.resume(two)
    assert session.running == 2
    assert session.types("session.resumed") == ["session.resumed"] * 2


def test_holds_have_a_limit() -> None:
    session = Session()
    for _ in range(32):
        session.interrupt()
    with pytest.raises(TooManyHolds):
        session.interrupt()


def test_the_system_can_hold_a_session() -> None:
    session = Session()
    session.do(commands.PlaceHold(session_id=session.id, hold_id=new_id(), reason="disk_gap", message="turn 3"))
    (hold,) = session.h.holds
    assert (hold.reason, hold.issuer.kind, hold.message) == ("disk_gap", "system", "turn 3")


# --- close and cancel


def test_closing_drains_and_then_closes() -> None:
    session = process()
    session.enqueue()
    session.enqueue()
    session.close()
    assert session.h.status == "closing"
    with pytest.raises(SessionNotOpen):
        session.enqueue()
    for _ in range(3):
        assert session.h.status == "closing"
        session.complete()
    assert (session.h.status, session.statuses) == ("closed", ["completed"] * 3)
    assert session.types()[-1] == "session.closed"
    assert next_action(session.h, session.now) == "stop_run"
    length = len(session.events)
    session.close()
    assert len(session.events) == length


def test_an_empty_session_closes_at_once() -> None:
    session = Session()
    session.close()
    assert (session.h.status, session.h.ended_at) == ("closed", session.now)


def test_closing_while_held_waits_for_the_hold() -> None:
    session = process()
    session.enqueue()
    hold = session.interrupt()
    session.close()
    session.work(commands.HandlerReleased, turn=1)
    assert session.h.status == "closing"
    session.resume(hold)
    session.complete()
    assert session.h.status == "closed"


def test_a_held_closing_session_without_work_closes_when_its_hold_is_released() -> None:
    session = Session()
    hold = session.interrupt()
    session.close()
    assert session.h.status == "closing"
    session.resume(hold)
    assert session.h.status == "closed"


def test_a_loss_while_closing_goes_on_draining() -> None:
    session = process()
    session.enqueue()
    session.close()
    session.lose()
    assert session.h.status == "closing"
    session.begin()
    session.complete()
    assert (session.h.status, session.statuses) == ("closed", ["interrupted", "completed"])


def test_a_hold_of_a_session_that_has_ended_is_released_without_an_event() -> None:
    session = process()
    hold = session.interrupt()
    session.cancel()
    length = len(session.events)
    session.resume(hold)
    assert (len(session.events), session.h.holds) == (length, ())


def test_cancelling_ends_everything_at_once() -> None:
    session = process()
    session.enqueue()
    session.enqueue()
    session.cancel()
    assert (session.h.status, session.statuses) == ("cancelled", ["cancelled"] * 3)
    assert session.types()[-1] == "session.cancelled"
    assert next_action(session.h, session.now) == "stop_run"
    with pytest.raises(SessionNotOpen):
        session.enqueue()
    with pytest.raises(SessionNotOpen):
        session.interrupt()
    length = len(session.events)
    session.cancel()
    session.close()
    assert (len(session.events), session.h.status) == (length, "cancelled")


def test_a_cancelled_turn_cannot_complete() -> None:
    session = process()
    session.cancel()
    assert session.complete(turn=1) == "cancelled"
    with pytest.raises(TurnNotRunning):
        session.write(1, turn=1)


# --- sleep


def test_an_idle_computer_hibernates_and_the_next_input_wakes_it() -> None:
    session = process(hibernate_after_idle=MINUTE)
    assert hibernate_at(session.h) is None
    session.complete()
    assert hibernate_at(session.h) == wake_at(session.h) == session.now + MINUTE
    session.tick(MINUTE - 1)
    assert next_action(session.h, session.now) == "wait"
    session.tick(1)
    assert next_action(session.h, session.now) == "hibernate"
    session.work(commands.SetResidency, residency="hibernated")
    assert (session.types()[-1], next_action(session.h, session.now)) == ("session.hibernated", "wait")
    session.enqueue()
    assert (session.h.active, next_action(session.h, session.now)) == (None, "resume_computer")
    session.work(commands.SetResidency, residency="running")
    assert session.running == 2
    assert session.types()[-2:] == ["session.awakened", "turn.running"]
    assert len(session.runs) == 1  # the same process goes on


def test_input_that_arrives_while_hibernation_begins_is_not_lost() -> None:
    session = process(hibernate_after_idle=MINUTE)
    session.complete()
    session.tick(MINUTE)
    session.enqueue()
    assert next_action(session.h, session.now) == "resume_computer"
    session.work(commands.SetResidency, residency="running")
    assert next_action(session.h, session.now) == "start_turn"
    session.work(commands.StartTurn)
    assert session.running == 2


def test_an_idle_inline_session_gives_its_run_back() -> None:
    session = Session()
    session.admit()
    session.work(commands.Sleep, run_id=session.run, reason="idle")
    assert session.h.run is not None  # it was not idle
    session.complete()
    session.work(commands.Sleep, run_id=session.run, reason="idle")
    assert session.h.run is None
    session.admit()
    assert session.running == 2
    assert [run.recovery for run in session.runs.values()] == ["initial", "reconstructed"]


def test_a_stop_that_is_only_for_the_idle_spares_the_busy() -> None:
    session = process()
    session.work(commands.StopRun, run_id=session.run, reason="code_changed", if_idle=True)
    assert next_action(session.h, session.now) == "wait"
    session.complete()
    session.work(commands.StopRun, run_id=session.run, reason="code_changed", if_idle=True)
    assert next_action(session.h, session.now) == "stop_run"
    session.do(
        commands.RunStopped(session_id=session.id, fence=session.h.fence, run_id=session.run, reason="code_changed")
    )
    assert session.last("session.process_stopped") == {"reason": "code_changed"}


def test_a_stop_that_was_asked_for_is_not_a_loss() -> None:
    session = process()
    session.work(commands.StopRun, run_id=session.run, reason="shutdown")
    session.do(commands.RunStopped(session_id=session.id, fence=session.h.fence, run_id=session.run, reason="shutdown"))
    assert (session.statuses, session.turns[1].reason, session.h.losses) == (["interrupted"], "process_stopped", 0)


def test_who_needs_an_owner() -> None:
    inline = Session()
    assert not needs_owner(inline.h)
    inline.enqueue()
    assert needs_owner(inline.h)
    hold = inline.interrupt()
    assert not needs_owner(inline.h)
    inline.resume(hold)
    inline.begin()
    assert needs_owner(inline.h)
    inline.complete()
    assert not needs_owner(inline.h)
    resident = process()
    resident.complete()
    assert needs_owner(resident.h)
    assert ADA.kind == "user"
