"""Random commands of everybody at once, stale workers among them, never break a session's head."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
from head_machine_parts import Ruled
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from perdure.api.events import EVENT_TYPES
from perdure.errors import SessionNotOpen, StaleFence
from perdure.records.ids import new_id
from perdure.records.sessions import ComputerState, Issuer, Limits
from perdure.rules import commands as c
from perdure.rules.dispatch import next_action
from perdure.rules.holds import HOLD_LIMIT

ADA = Issuer("user", "ada")
CONTENT = b'[{"text":"x","type":"text"}]'
SECOND = 1_000_000
picks = st.integers(0, 7)
turns = st.sampled_from([0, 0, 0, 0, -1, 1])
"""Which turn a worker means: the running one, or one beside it."""
stale = st.sampled_from([0, 0, 0, 1, 2])
"""How many claims ago a worker was given its fence."""


class HeadMachine(RuleBasedStateMachine):
    """One session, its clients, its owner, and workers who think that they are."""

    @initialize(process=st.booleans(), limits=st.booleans(), resumes=st.booleans())
    def create(self, process: bool, limits: bool, resumes: bool) -> None:
        times = (90 * SECOND, 30 * SECOND if process else None, 60 * SECOND) if limits else (None, None, None)
        self.ids: list[str] = []
        self.ruled = Ruled(
            c.CreateSession(
                session_id=new_id(),
                environment="demo/development",
                agent="a",
                deployment="d",
                host="process" if process else "inline",
                limits=Limits(*times),
                computer=ComputerState(new_id(), "t") if process else None,
                resumes=resumes,
            )
        )

    @property
    def id(self) -> str:
        return self.ruled.head.id

    @property
    def run(self) -> str:
        return self.ruled.head.run.id if self.ruled.head.run else new_id()

    def number(self, off: int) -> int:
        active = self.ruled.head.active
        return max(0, (active.number if active else self.ruled.head.first_queued - 1) + off)

    def some_id(self, pick: int) -> str:
        """Return one of the newest ids, or a new one."""
        return self.ids[-1 - pick] if pick < len(self.ids) else self.fresh_id()

    def fresh_id(self) -> str:
        self.ids.append(new_id())
        return self.ids[-1]

    def work(self, kind: type[c.WorkerCommand], age: int, **fields: object) -> None:
        """Have a worker do something; one whose fence is not the session's is refused, whatever it asks."""
        head = self.ruled.head
        start = fields.pop("start", True)
        command = kind(session_id=self.id, fence=head.fence - age, start=start, **fields)  # type: ignore[arg-type]
        self.ruled.do(command)
        if age:
            assert isinstance(self.ruled.refused, StaleFence)
            assert self.ruled.head is head

    # --- clients

    @rule(pick=picks)
    def enqueue(self, pick: int) -> None:
        permit = [None, None, c.Permit("w"), c.Permit("w", new_id()), c.Permit("other", new_id())][pick % 5]
        was_open = self.ruled.head.status == "open"
        self.ruled.do(c.Enqueue(session_id=self.id, turn=c.NewTurn(new_id(), CONTENT), permit=permit))
        assert was_open or isinstance(self.ruled.refused, SessionNotOpen)

    @rule()
    def send(self) -> None:
        turn = c.NewTurn(new_id(), CONTENT)
        self.ruled.do(c.Send(session_id=self.id, turn=turn, message_id=self.fresh_id()))

    @rule(off=turns)
    def send_to_turn(self, off: int) -> None:
        turn = self.ruled.rows.turns.get(self.number(off))
        self.ruled.do(
            c.SendToTurn(
                session_id=self.id,
                turn_id=turn.id if turn else new_id(),
                message_id=self.fresh_id(),
                content_json=CONTENT,
            )
        )

    @rule(pick=picks)
    def interrupt_now_and_then(self, pick: int) -> None:
        if pick == 0:
            self.interrupt()

    def interrupt(self) -> None:
        hold, active = self.fresh_id(), self.ruled.head.active if self.ruled.head.run else None
        self.ruled.do(c.Interrupt(session_id=self.id, control_id=new_id(), hold_id=hold, issuer=ADA, message="m" * 99))
        if active is not None:
            winding = self.ruled.head.winding
            assert winding is not None, "nobody waits for the handler of a stopped turn to let go"
            assert winding.turn == active.number

    @precondition(lambda self: not self.ruled.head.holds)
    @rule(pick=picks)
    def hold_fast(self, pick: int) -> None:
        """Place as many holds as a session bears, now and then."""
        for _ in range(HOLD_LIMIT if pick == 1 else 0):
            self.interrupt()

    @rule(released=st.booleans(), steps=st.integers(1, 4))
    def go_on_a_little(self, released: bool, steps: int) -> None:
        self.go_on(released, steps)

    @rule(steps=st.integers(2, 6))
    def go_on_far(self, steps: int) -> None:
        self.go_on(True, steps)

    @precondition(lambda self: self.ruled.head.active is None and not self.ruled.head.is_terminal)
    @rule()
    def go_on_to_a_turn(self) -> None:
        self.go_on(True, 4)

    def go_on(self, released: bool, steps: int) -> None:
        """Do as the session's owner does, after a user who may have released all holds and said something more."""
        for hold in self.ruled.head.holds if released else ():
            self.ruled.do(c.Resume(session_id=self.id, control_id=new_id(), hold_id=hold.id, issuer=ADA))
        if self.ruled.head.queued == 0:
            self.ruled.do(c.Enqueue(session_id=self.id, turn=c.NewTurn(new_id(), CONTENT)))
        for _ in range(steps):
            self.act(next_action(self.ruled.head, self.ruled.now))

    def act(self, action: str) -> None:
        head = self.ruled.head
        if action == "start_run":
            self.start_run()
        elif head.run is not None and head.run.phase == "starting":
            self.work(c.RunReady, 0, run_id=self.run)
        elif action == "start_turn":
            self.work(c.StartTurn, 0)
        elif action == "stop_run":
            self.stopped()
        elif action in ("hibernate", "resume_computer"):
            self.work(c.SetResidency, 0, residency="hibernated" if action == "hibernate" else "running")
        elif head.winding is not None:
            self.work(c.HandlerReleased, 0, turn=head.winding.turn)

    @rule(pick=picks)
    def resume(self, pick: int) -> None:
        holds = [hold.id for hold in self.ruled.head.holds]
        hold = holds[pick % len(holds)] if holds else self.some_id(pick)
        self.ruled.do(c.Resume(session_id=self.id, control_id=new_id(), hold_id=hold, issuer=ADA))

    @rule(pick=picks)
    def close(self, pick: int) -> None:
        if pick == 0:
            self.ruled.do(c.Close(session_id=self.id, control_id=new_id(), issuer=ADA))

    @rule(pick=picks)
    def cancel(self, pick: int) -> None:
        if pick == 0:
            self.ruled.do(c.Cancel(session_id=self.id, control_id=new_id(), issuer=ADA))
            assert self.ruled.refused is None
            assert self.ruled.head.is_terminal

    @rule(pick=picks, response=st.sampled_from(["r1", "r2"]))
    def answer(self, pick: int, response: str) -> None:
        fields = {"answer_json": b'"yes"', "response_id": response, "issuer": ADA}
        self.ruled.do(c.AnswerAsk(session_id=self.id, ask_id=self.some_id(pick), **fields))  # type: ignore[arg-type]

    # --- the engine

    @rule(seconds=st.sampled_from([0, 1, 11, 31, 61, 91]))
    def tick(self, seconds: int) -> None:
        self.ruled.now += seconds * SECOND
        self.ruled.do(c.Tick(session_id=self.id, hold_id=new_id()))
        assert self.ruled.refused is None, "time is never refused"

    @rule()
    def start_run(self) -> None:
        fields = {
            "fence": self.ruled.head.fence,
            "resumes": self.ruled.head.resumes,
            "worker": "w",
            "run_id": new_id(),
            "deployment": "d",
            "limits": self.ruled.head.limits,
        }
        self.ruled.do(c.StartRun(session_id=self.id, **fields))  # type: ignore[arg-type]

    @rule(ours=st.booleans())
    def adopt(self, ours: bool) -> None:
        fence = self.ruled.head.fence
        known = self.ruled.head.run is not None
        self.ruled.do(
            c.AdoptRun(
                session_id=self.id, fence=self.ruled.head.fence, worker="w" if ours else "other", run_id=self.run
            )
        )
        assert self.ruled.head.fence == fence + known

    @rule(ours=st.booleans())
    def lose(self, ours: bool) -> None:
        run = self.run if ours else new_id()
        self.ruled.do(
            c.RunLost(
                session_id=self.id,
                fence=self.ruled.head.fence,
                worker="w",
                run_id=run,
                reason="killed",
                hold_id=new_id(),
            )
        )
        assert self.ruled.refused is None, "a loss is never refused: nothing else would settle it"
        assert not ours or self.ruled.head.run is None

    @rule()
    def stopped(self) -> None:
        self.ruled.do(c.RunStopped(session_id=self.id, fence=self.ruled.head.fence, run_id=self.run, reason="asked"))
        assert self.ruled.refused is None

    @precondition(lambda self: next_action(self.ruled.head, self.ruled.now) == "start_run")
    @rule()
    def agent_is_gone(self) -> None:
        self.ruled.do(c.PlaceHold(session_id=self.id, hold_id=new_id(), reason="agent_unavailable", message="gone"))
        assert self.ruled.refused is None

    # --- workers

    @rule(age=stale)
    def ready(self, age: int) -> None:
        self.work(c.RunReady, age, run_id=self.run)

    @rule(age=stale)
    def init_failed(self, age: int) -> None:
        self.work(c.InitFailed, age, run_id=self.run, error_json=b"{}", hold_id=new_id())
        assert age or self.ruled.refused is None

    @rule(age=stale, if_idle=st.booleans(), though_queued=st.booleans())
    def stop_run(self, age: int, if_idle: bool, though_queued: bool) -> None:
        self.work(c.StopRun, age, run_id=self.run, reason="asked", if_idle=if_idle, though_queued=though_queued)

    @rule(age=stale, though_queued=st.booleans())
    def sleep(self, age: int, though_queued: bool) -> None:
        self.work(c.Sleep, age, run_id=self.run, reason="slept", though_queued=though_queued)

    @rule(age=stale, residency=st.sampled_from(["hibernated", "running"]))
    def set_residency(self, age: int, residency: str) -> None:
        self.work(c.SetResidency, age, residency=residency)

    @rule(age=stale)
    def start_turn(self, age: int) -> None:
        self.work(c.StartTurn, age)

    @rule(age=stale, off=turns, op=st.integers(1, 4), size=st.sampled_from([10, 10, 3_000_000]))
    def write(self, age: int, off: int, op: int, size: int) -> None:
        self.work(c.WriteOutput, age, turn=self.number(off), op=op, content_json=b'"%b"' % (b"x" * size))

    @rule(age=stale, off=turns)
    def write_live(self, age: int, off: int) -> None:
        self.work(c.WriteLive, age, turn=self.number(off), slot="s", content_json=CONTENT)

    @rule(age=stale, off=turns)
    def take_messages(self, age: int, off: int) -> None:
        self.work(c.TakeMessages, age, turn=self.number(off))

    @rule(age=stale, off=turns, pick=picks)
    def message_started(self, age: int, off: int, pick: int) -> None:
        self.work(c.MessageStarted, age, turn=self.number(off), message_id=self.some_id(pick))

    @rule(age=stale, off=turns, pick=picks, rejected=st.sampled_from([None, "no"]))
    def message_settled(self, age: int, off: int, pick: int, rejected: str | None) -> None:
        self.work(c.MessageSettled, age, turn=self.number(off), message_id=self.some_id(pick), rejected=rejected)

    @rule(age=stale, off=turns, pick=picks)
    def ask(self, age: int, off: int, pick: int) -> None:
        question = {"prompt_json": CONTENT, "control_json": b'{"type":"text"}'}
        self.work(c.CreateAsk, age, turn=self.number(off), ask_id=self.some_id(pick + 3), **question)

    @rule(age=stale, off=turns, pick=picks)
    def withdraw(self, age: int, off: int, pick: int) -> None:
        self.work(c.WithdrawAsk, age, turn=self.number(off), ask_id=self.some_id(pick))

    @rule(age=stale, off=turns, start=st.booleans())
    def complete(self, age: int, off: int, start: bool) -> None:
        self.work(c.CompleteTurn, age, turn=self.number(off), result_json=b"1", start=start)

    @rule(age=stale, off=turns)
    def fail(self, age: int, off: int) -> None:
        self.work(c.FailTurn, age, turn=self.number(off), error_json=b"{}")

    @rule(age=stale, off=turns)
    def released(self, age: int, off: int) -> None:
        self.work(c.HandlerReleased, age, turn=self.number(off))

    # --- what belongs together

    @precondition(lambda self: self.ruled.head.active is not None)
    @rule(steps=st.integers(1, 3), rejected=st.sampled_from([None, "no"]))
    def steer(self, steps: int, rejected: str | None) -> None:
        """Say something to the running turn, which deals with it as far as it gets."""
        turn = self.number(0)
        self.work(c.TakeMessages, 0, turn=turn)
        self.send_to_turn(0)
        if steps > 1:
            self.work(c.MessageStarted, 0, turn=turn, message_id=self.ids[-1])
        if steps > 2:
            self.work(c.MessageSettled, 0, turn=turn, message_id=self.ids[-1], rejected=rejected)

    @precondition(lambda self: self.ruled.head.active is not None)
    @rule(answered=st.booleans())
    def inquire(self, answered: bool) -> None:
        """Ask a question, and perhaps have it answered."""
        self.ask(0, 0, len(self.ids))
        if answered:
            self.answer(0, "r1")

    # --- what is sent again

    @precondition(lambda self: self.ruled.head.active is not None)
    @rule(op=st.integers(1, 4))
    def write_twice(self, op: int) -> None:
        """A write whose answer was lost is sent again, and is one event."""
        head = self.ruled.head
        again = [
            self.ruled.do(
                c.WriteOutput(session_id=self.id, fence=head.fence, turn=self.number(0), op=op, content_json=CONTENT)
            )
            for _ in range(2)
        ]
        if again[0] is not None:
            assert again[1] is not None
            assert again[1].receipt == again[0].receipt
            assert not again[1].writes

    @precondition(lambda self: self.ruled.head.active is not None and self.ruled.head.run is not None)
    @rule(kind=st.sampled_from(["complete", "fail"]))
    def settle_twice(self, kind: str) -> None:
        """A settlement that is sent again changes nothing more, and is answered with what the turn came to."""
        number, fence = self.number(0), self.ruled.head.fence
        settle: c.Command = c.CompleteTurn(session_id=self.id, fence=fence, turn=number, result_json=b"1", start=False)
        if kind == "fail":
            settle = c.FailTurn(session_id=self.id, fence=fence, turn=number, error_json=b"{}", start=False)
        first, second = self.ruled.do(settle), self.ruled.do(settle)
        assert first is not None
        assert second is not None
        assert second.receipt == first.receipt == self.ruled.rows.turns[number].status
        assert not second.writes

    @rule(age=stale, off=turns, name=st.sampled_from(["a", "b"]), replay=st.sampled_from(["safe", "never"]))
    def begin_step(self, age: int, off: int, name: str, replay: str) -> None:
        self.work(c.BeginStep, age, turn=self.number(off), name=name, replay=replay, request=b"")

    @rule(age=stale, name=st.sampled_from(["a", "b"]), status=st.sampled_from(["completed", "failed"]))
    def end_step(self, age: int, name: str, status: str) -> None:
        self.work(c.EndStep, age, turn=self.number(0), name=name, status=status, outcome_json=b"1")

    @rule(age=stale, name=st.sampled_from(["a", "b"]), value=st.sampled_from([b"1", b"2"]))
    def keep_memo(self, age: int, name: str, value: bytes) -> None:
        self.work(c.KeepMemo, age, turn=self.number(0), name=name, value_json=value)

    @precondition(lambda self: self.ruled.head.resumes and self.ruled.head.active is not None)
    @rule(
        name=st.sampled_from(["c", "d"]),
        replay=st.sampled_from(["safe", "never"]),
        ended=st.sampled_from([None, "completed", "failed"]),
    )
    def lose_in_a_step(self, name: str, replay: str, ended: str | None) -> None:
        """Lose the process in a step, or just after it, and begin the step again in the next."""
        if self.ruled.head.run is None:
            return
        turn = self.number(0)
        step = {"turn": turn, "name": name, "request": b""}
        self.work(c.BeginStep, 0, replay=replay, **step)
        if ended:
            self.work(c.EndStep, 0, turn=turn, name=name, status=ended, outcome_json=b"1")
        self.lose(True)
        self.go_on(True, 2)
        if self.ruled.head.run is not None and self.ruled.head.run.phase == "ready":
            self.work(c.BeginStep, 0, replay=replay, **step)

    def teardown(self) -> None:
        SEEN.update(event.type for event in self.ruled.rows.events)


SEEN: Counter[str] = Counter()


def test_heads_keep_their_promises_whatever_comes() -> None:
    SEEN.clear()
    plan = settings(max_examples=800, stateful_step_count=60, deadline=None, print_blob=True, derandomize=True)
    run_state_machine_as_test(HeadMachine, settings=plan)
    assert set(EVENT_TYPES) <= set(SEEN), f"never seen: {set(EVENT_TYPES) - set(SEEN)}"
