"""What holds in every session, whatever is done to it in whatever order; and that none is ever stuck."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from rules_session import MINUTE, SECOND, NotNow, Session

from perdure.errors import PerdureError
from perdure.records.ids import new_id
from perdure.records.sessions import ENDED
from perdure.rules import commands
from perdure.rules.dispatch import is_drained, needs_owner, next_action, wake_at

Act = Callable[[Session, int], Any]


def turn_at(session: Session, pick: int) -> int:
    return pick % (len(session.turns) + 2)


def some(rows: dict[str, Any], pick: int) -> str:
    return list(rows)[pick % len(rows)] if rows else new_id()


def start_run(session: Session, _: int) -> None:
    limits = session.h.limits
    session.do(
        commands.StartRun(
            session_id=session.id, fence=session.h.fence, worker="w", run_id=new_id(), deployment="d", limits=limits
        )
    )


def adopt(session: Session, _: int) -> None:
    session.do(commands.AdoptRun(session_id=session.id, fence=session.h.fence, worker="w2", run_id=session.run))


def stop_run(session: Session, pick: int) -> None:
    session.work(commands.StopRun, run_id=session.run, reason="asked", if_idle=bool(pick % 2))


def stopped(session: Session, _: int) -> None:
    session.do(commands.RunStopped(session_id=session.id, fence=session.h.fence, run_id=session.run, reason="asked"))


def settle_message(session: Session, pick: int) -> None:
    message = some(session.messages, pick)
    rejected = "no" if pick % 2 else None
    session.work(commands.MessageSettled, turn=session.running, message_id=message, rejected=rejected)


ACTS: dict[str, Act] = {
    "enqueue": lambda session, _: session.enqueue(),
    "admit": lambda session, _: session.admit(),
    "start run": start_run,
    "ready": lambda session, _: session.work(commands.RunReady, run_id=session.run),
    "adopt": adopt,
    "init failed": lambda session, _: session.work(
        commands.InitFailed, run_id=session.run, error_json=b"{}", hold_id=new_id()
    ),
    "lose": lambda session, _: session.lose(),
    "stop run": stop_run,
    "stopped": stopped,
    "sleep": lambda session, _: session.work(commands.Sleep, run_id=session.run, reason="idle"),
    "hibernated": lambda session, _: session.work(commands.SetResidency, residency="hibernated"),
    "awake": lambda session, _: session.work(commands.SetResidency, residency="running"),
    "start turn": lambda session, _: session.work(commands.StartTurn),
    "output": lambda session, pick: session.write(pick % 5, turn=turn_at(session, pick)),
    "live": lambda session, pick: session.work(
        commands.WriteLive, turn=session.running, slot=f"s{pick % 2}", content_json=b"1"
    ),
    "complete": lambda session, pick: session.complete(start=pick % 4 != 0),
    "complete any": lambda session, pick: session.complete(turn=turn_at(session, pick)),
    "fail": lambda session, pick: session.fail(),
    "released": lambda session, pick: session.work(commands.HandlerReleased, turn=turn_at(session, pick)),
    "interrupt": lambda session, _: session.interrupt(),
    "resume": lambda session, pick: session.resume(some(session.holds, pick)),
    "close": lambda session, pick: session.close() if pick % 3 == 0 else None,
    "cancel": lambda session, pick: session.cancel() if pick % 5 == 0 else None,
    "tick": lambda session, pick: session.tick(pick * SECOND),
    "take messages": lambda session, _: session.work(commands.TakeMessages, turn=session.running),
    "say": lambda session, _: session.say(),
    "settle message": settle_message,
    "ask": lambda session, _: session.ask(),
    "answer": lambda session, pick: session.answer(some(session.asks, pick), response_id=f"r{pick % 2}"),
    "withdraw": lambda session, pick: session.work(
        commands.WithdrawAsk, turn=session.running, ask_id=some(session.asks, pick)
    ),
}

plans = st.lists(st.tuples(st.sampled_from(sorted(ACTS)), st.integers(0, 100)), max_size=60)
hosts = st.sampled_from(["inline", "process"])
limits = st.fixed_dictionaries(
    {},
    optional={
        "close_after_idle": st.just(90 * SECOND),
        "max_turn_duration": st.just(MINUTE),
        "hibernate_after_idle": st.just(30 * SECOND),
    },
)


def check(session: Session) -> None:
    head, events, turns = session.h, session.events, session.turns
    assert [event.seq for event in events] == list(range(1, head.last_seq + 1))
    assert list(turns) == list(range(1, head.last_turn + 1))
    running = [number for number, turn in turns.items() if turn.status == "running"]
    assert running == ([head.active.number] if head.active else [])
    queued = [number for number, turn in turns.items() if turn.status == "queued"]
    assert queued == list(range(head.first_queued, head.last_turn + 1))
    check_outcomes(session)
    check_leftovers(session)
    living = [number for number, run in session.runs.items() if run.ended_at is None]
    assert living == ([head.run.number] if head.run else [])
    assert len(session.runs) == head.runs
    assert {hold.id for hold in head.holds} == {key for key, hold in session.holds.items() if hold.released_at is None}
    if head.is_terminal:
        assert all(turn.status in ENDED for turn in turns.values())
        assert (head.status == "cancelled") or is_drained(head)
        assert head.ended_at is not None
    if head.active or head.winding:
        assert head.run is not None


def check_outcomes(session: Session) -> None:
    """Each turn starts at most once, in order, and has at most one outcome, of which its row tells the same."""
    started = [turn.number for turn in session.started]
    assert started == sorted(set(started))
    ends = Counter(event.turn for event in session.events if event.type.removeprefix("turn.") in ENDED)
    ended = {number for number, turn in session.turns.items() if turn.status in ENDED}
    assert ends == dict.fromkeys(ended, 1)
    for event in session.events:
        if event.turn is not None and event.type.removeprefix("turn.") in ENDED:
            assert session.turns[event.turn].status == event.type.removeprefix("turn.")
        if event.type == "turn.output":
            assert event.turn in started


def check_leftovers(session: Session) -> None:
    """Only the running turn has open questions, messages under way and live text."""
    active = session.h.active
    open_asks = {key for key, ask in session.asks.items() if ask.status == "pending"}
    open_messages = {key for key, found in session.messages.items() if found.status in ("admitted", "started")}
    assert open_asks == set(active.asks if active else ())
    assert open_messages == set(active.messages if active else ())
    assert active or not session.live


def serve(session: Session) -> None:
    """Do what an owner does until nothing is left to do."""
    for _ in range(2_000):
        head = session.h
        action = next_action(head, session.now)
        if action == "start_run":
            session.begin()
        elif action == "start_turn":
            session.work(commands.StartTurn)
        elif action == "resume_computer":
            session.work(commands.SetResidency, residency="running")
        elif action == "hibernate":
            session.work(commands.SetResidency, residency="hibernated")
        elif action == "stop_run":
            stopped(session, 0)
        elif head.run is not None and head.run.phase == "starting":
            session.work(commands.RunReady, run_id=head.run.id)
        elif head.active is not None:
            session.complete()
        elif head.winding is not None:
            session.work(commands.HandlerReleased, turn=head.winding.turn)
        else:
            return
        check(session)
    raise AssertionError(f"never comes to rest: {session.h}")


@settings(max_examples=300, deadline=None)
@given(host=hosts, limits=limits, plan=plans)
def test_a_session_is_whole_whatever_is_done_and_never_stuck(
    host: Any, limits: dict[str, int], plan: list[tuple[str, int]]
) -> None:
    session = Session(host, **limits)
    fence = 0
    for name, pick in plan:
        before = (session.h, len(session.events))
        with suppress(PerdureError, NotNow):
            ACTS[name](session, pick)
            before = (session.h, len(session.events))
        assert (session.h, len(session.events)) == before, "a refusal left something"
        assert session.h.fence >= fence
        fence = session.h.fence
        check(session)

    serve(session)
    assert session.h.holds or all(turn.status in ENDED for turn in session.turns.values())
    for hold in session.h.holds:
        session.resume(hold.id)
        serve(session)
    assert all(turn.status in ENDED for turn in session.turns.values())
    if session.h.status == "closing":
        raise AssertionError("a session that has nothing left does not close")
    session.close()
    serve(session)
    assert session.h.is_terminal
    assert not needs_owner(session.h)
    assert wake_at(session.h) is None
