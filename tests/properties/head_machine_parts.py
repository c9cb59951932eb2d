"""A session under the rules alone, with every row that a rule may ask for, and the promises of its head."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from perdure.errors import PerdureError
from perdure.records.sessions import ENDED, Ask, Event, Hold, Message, QueuedTurn, SessionHead, Turn
from perdure.records.steps import Step
from perdure.rules import decision as d
from perdure.rules.commands import Command
from perdure.rules.decide import decide
from perdure.rules.decision import Decision, Needs
from perdure.rules.dispatch import needs_owner, next_action, wake_at
from perdure.rules.holds import HOLD_LIMIT
from perdure.rules.turns import QUEUE_LIMIT

HEAD_BYTES: Final = 32 * 1024
"""More than a head with all that is bounded at its bound: 32 holds, 32 questions, 64 messages, and names."""

SYSTEM_HOLDS: Final = 2
"""The system may add a hold for a run's `init` and one for its loss; the next run begins without any hold."""

encode = msgspec.json.Encoder().encode


class Rows:
    """What a store holds of one session beside its head."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.turns: dict[int, Turn] = {}
        self.asks: dict[str, Ask] = {}
        self.messages: dict[str, Message] = {}
        self.holds: dict[str, Hold] = {}
        self.runs: dict[int, str | None] = {}
        self.steps: dict[tuple[int, str], Step] = {}
        self.memos: dict[tuple[int, str], bytes] = {}

    def find(self, kind: str, key: Any) -> Any:
        """Return the row that a rule asks for."""
        if kind == "queued":
            turn = self.turns[key]
            assert turn.status in ("queued", "running"), f"turn {key} is to start or to go on and is {turn.status}"
            return QueuedTurn(key, turn.id, turn.input_json, turn.created_at)
        if kind == "turn_id":
            return next((turn for turn in self.turns.values() if turn.id == key), None)
        if kind == "output_seq":
            turn, op, after = key
            return next((e.seq for e in self.events if (e.turn, e.op) == (turn, op) and e.seq > after), None)
        tables: dict[str, dict[Any, Any]] = {
            "turn": self.turns,
            "ask": self.asks,
            "message": self.messages,
            "hold": self.holds,
            "step": self.steps,
            "memo": self.memos,
            "key": {},
        }
        return tables[kind].get(key)

    def write(self, made: Decision) -> None:
        """Take what a decision writes."""
        self.events += made.events
        for change in made.changes:
            self._change(change, made.head.id)

    def _change(self, change: d.Change, session_id: str) -> None:
        match change:
            case d.InsertTurn(number, turn_id, seq, at):
                assert number not in self.turns
                data = encode(json.loads(self.events[seq - 1].data)["input"])
                self.turns[number] = Turn(turn_id, session_id, number, "queued", data, at)
            case d.TurnStarted(number, _, at):
                assert self.turns[number].status in ("queued", "running")
                self.turns[number] = replace(self.turns[number], status="running", started_at=at)
            case d.TurnEnded(number, status, seq, at):
                assert self.turns[number].status not in ENDED, f"turn {number} ends twice"
                assert self.events[seq - 1].type == f"turn.{status}"
                self.turns[number] = replace(self.turns[number], status=status, ended_at=at)
            case d.PutHold(hold):
                self.holds[hold.id] = hold
            case d.PutRun(run):
                assert run.number not in self.runs
                self.runs[run.number] = None
            case d.EndRun(number, _, reason):
                assert self.runs[number] is None
                self.runs[number] = reason
            case d.PutAsk(ask):
                self.asks[ask.id] = ask
            case d.EndAsk(ask_id, at):
                assert self.asks[ask_id].status == "pending"
                self.asks[ask_id] = replace(self.asks[ask_id], status="cancelled", ended_at=at)
            case d.PutMessage(message):
                self.messages[message.id] = message
            case d.EndMessage(message_id, reason):
                assert self.messages[message_id].status in ("admitted", "started")
                self.messages[message_id] = replace(self.messages[message_id], status="rejected", reason=reason)
            case d.PutStep(step):
                self._put_step(step)
            case d.PutMemo(turn, name, value):
                assert (turn, name) not in self.memos, "a memo is kept twice"
                self.memos[turn, name] = value

    def _put_step(self, step: Step) -> None:
        known = self.steps.get((step.turn, step.name))
        assert known is None or known.status == "running", "a step that has ended changes"
        if known is not None and step.attempts > known.attempts:
            assert known.replay == "safe", "a step that is never replayed was"
            assert step.run > known.run, "a step was begun twice in one run"
        self.steps[step.turn, step.name] = step


class Ruled:
    """Applies commands as a store does. A refusal changes nothing, and deciding twice decides the same."""

    def __init__(self, create: Command) -> None:
        self.now = 1_000_000_000
        self.rows = Rows()
        self.head = self._decide(None, create).head
        self.rows.events += [Event(1, "session.created", b"{}", self.now)]
        self.refused: PerdureError | None = None

    def _decide(self, head: SessionHead | None, command: Command) -> Decision:
        found: dict[tuple[str, Any], Any] = {}
        before = encode(head)
        while True:
            try:
                made = decide(head, command, self.now, found)
                again = decide(head, command, self.now, found)
            except Needs as needs:
                found[needs.kind, needs.key] = self.rows.find(needs.kind, needs.key)
                continue
            finally:
                assert encode(head) == before, "a rule changed the head that it was given"
            assert again == made
            return made

    def do(self, command: Command) -> Decision | None:
        """Apply a command and return what it did, or None when it is refused."""
        self.refused = None
        try:
            made = self._decide(self.head, command)
        except PerdureError as refusal:
            self.refused = refusal
            return None
        if made.writes:
            self.rows.write(made)
            self.head = made.head
        else:
            assert (made.events, made.changes, made.head) == ([], [], self.head)
        check_head(self.head, self.rows)
        return made


def check_head(head: SessionHead, rows: Rows) -> None:
    """Check that the head agrees with itself, with the rows and with its bounds."""
    _check_numbers(head, rows)
    _check_execution(head, rows)
    _check_leftovers(head, rows)
    assert len(head.holds) <= HOLD_LIMIT + SYSTEM_HOLDS
    assert {hold.id for hold in head.holds} == {key for key, hold in rows.holds.items() if hold.released_at is None}
    assert len(encode(head)) <= HEAD_BYTES
    if head.is_terminal:
        assert all(turn.status in ENDED for turn in rows.turns.values())
        assert head.ended_at is not None
        assert next_action(head, 1 << 60) in ("stop_run", "wait")
    if next_action(head, 1 << 60) != "wait":
        assert needs_owner(head) or head.host == "inline"
    if (at := wake_at(head)) is not None:
        assert at >= 0
        assert not head.is_terminal or head.winding is not None


def _check_numbers(head: SessionHead, rows: Rows) -> None:
    assert [event.seq for event in rows.events] == list(range(1, head.last_seq + 1))
    assert list(rows.turns) == list(range(1, head.last_turn + 1))
    assert 0 <= head.queued <= min(head.last_turn, QUEUE_LIMIT)
    queued = [number for number, turn in rows.turns.items() if turn.status == "queued"]
    assert queued == list(range(head.first_queued, head.last_turn + 1))


def _check_execution(head: SessionHead, rows: Rows) -> None:
    running = [number for number, turn in rows.turns.items() if turn.status == "running"]
    assert running == ([head.active.number] if head.active else [])
    assert head.active is None or head.active.number == head.first_queued - 1
    assert head.active is None or head.winding is None, "a turn runs beside one that has not let go"
    lost = head.resumes and head.run is None
    assert head.active is None or lost or not head.holds or head.resumes, "a turn runs in a held session"
    assert head.active is None or head.run is not None or lost
    assert head.winding is None or head.run is not None
    living = [number for number, end in rows.runs.items() if end is None]
    assert living == ([head.run.number] if head.run else [])
    assert len(rows.runs) == head.runs
    assert (head.run is None) or head.run.recovery == ("initial" if head.runs == 1 else "reconstructed")


def _check_leftovers(head: SessionHead, rows: Rows) -> None:
    asks = {ask.id for ask in rows.asks.values() if ask.status == "pending"}
    messages = {message.id for message in rows.messages.values() if message.status in ("admitted", "started")}
    assert asks == set(head.active.asks if head.active else ())
    assert messages == set(head.active.messages if head.active else ())
    at_work = {step.name for step in rows.steps.values() if step.status == "running" and _is_active(head, step.turn)}
    assert at_work == set(head.active.at_work if head.active else ())


def _is_active(head: SessionHead, turn: int) -> bool:
    return head.active is not None and head.active.number == turn
