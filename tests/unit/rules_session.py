"""One session in memory, ruled by the rules alone: no store, no clock but the test's own."""

from __future__ import annotations

import json
from typing import Any

from msgspec.structs import replace

from perdure.records.ids import new_id
from perdure.records.sessions import (
    ENDED,
    Ask,
    ComputerState,
    Event,
    Hold,
    HostKind,
    Issuer,
    Limits,
    Message,
    QueuedTurn,
    Run,
    SessionHead,
    Turn,
)
from perdure.records.steps import Step
from perdure.rules import commands
from perdure.rules import decision as changes
from perdure.rules.commands import Command, NewTurn, Permit
from perdure.rules.decide import decide
from perdure.rules.decision import Decision, Needs
from perdure.rules.dispatch import next_action

ADA = Issuer("user", "ada")
SECOND = 1_000_000
MINUTE = 60 * SECOND


def text(said: str) -> bytes:
    return json.dumps([{"text": said, "type": "text"}]).encode()


class NotNow(Exception):
    """Raised when a test wants what the session does not have at present: a running turn, a run."""


class Session:
    """Applies commands as a store does, and remembers the rows that rules may ask for."""

    def __init__(
        self, host: HostKind = "inline", key: str | None = None, *, resumes: bool = False, **limits: int
    ) -> None:
        self.now = 1_000 * SECOND
        self.head: SessionHead | None = None
        self.events: list[Event] = []
        self.turns: dict[int, Turn] = {}
        self.runs: dict[int, Run] = {}
        self.asks: dict[str, Ask] = {}
        self.messages: dict[str, Message] = {}
        self.holds: dict[str, Hold] = {}
        self.live: dict[str, bytes] = {}
        self.started: list[QueuedTurn] = []
        self.journal: dict[tuple[int, str], Step] = {}
        self.memos: dict[tuple[int, str], bytes] = {}
        self.id = new_id()
        create = commands.CreateSession(
            session_id=self.id,
            environment="demo/development",
            agent="assistant",
            deployment="deployment",
            host=host,
            limits=Limits(**limits),
            key=key,
            computer=ComputerState(new_id(), "template") if host == "process" else None,
            resumes=resumes,
        )
        self.do(create)

    # --- acting

    def do(self, command: Command) -> Any:
        """Apply a command and return its receipt; a refusal leaves everything as it was."""
        found: dict[tuple[str, Any], Any] = {("key", ("demo/development", "assistant", None)): None}
        before = None if self.head is None else replace(self.head)
        while True:
            try:
                made = decide(self.head, command, self.now, found)
                break
            except Needs as needs:
                found[needs.kind, needs.key] = self._row(needs.kind, needs.key)
            finally:
                assert self.head == before, "a rule changed the head that it was given"
        self._take(made)
        return json.loads(made.receipt) if isinstance(made.receipt, bytes) else made.receipt

    def _take(self, made: Decision) -> None:
        assert made.writes or (not made.events and not made.changes)
        if not made.writes:
            assert made.head == self.head
            return
        self.head = made.head
        self.events += made.events
        for change in made.changes:
            self._write(change)
        if made.started is not None:
            self.started.append(made.started)

    def _row(self, kind: str, key: Any) -> Any:
        if kind == "turn":
            return self.turns.get(key)
        if kind == "turn_id":
            return next((turn for turn in self.turns.values() if turn.id == key), None)
        if kind == "queued":
            turn = self.turns[key]
            assert turn.status == "queued" or self.h.active is not None
            return QueuedTurn(key, turn.id, turn.input_json, turn.created_at)
        if kind == "output_seq":
            turn, op, after = key
            mine = [event.seq for event in self.events if (event.turn, event.op) == (turn, op) and event.seq > after]
            return mine[-1] if mine else None
        if kind == "key":
            return None
        rows: dict[str, Any] = {"ask": self.asks, "message": self.messages, "hold": self.holds}
        return (rows | {"step": self.journal, "memo": self.memos})[kind].get(key)

    def _write(self, change: changes.Change) -> None:
        match change:
            case changes.InsertTurn():
                queued = json.loads(self.events[change.queued_seq - 1].data)
                data = json.dumps(queued["input"]).encode()
                self.turns[change.number] = Turn(change.id, self.id, change.number, "queued", data, change.created_at)
            case changes.TurnStarted():
                assert self.turns[change.number].status == "queued" or self.h.resumes
                self.turns[change.number] = replace(
                    self.turns[change.number], status="running", started_at=change.at, run_id=self.runs[change.run].id
                )
            case changes.TurnEnded():
                assert self.turns[change.number].status not in ENDED
                assert self.events[change.ended_seq - 1].type == f"turn.{change.status}"
                self.turns[change.number] = replace(
                    self.turns[change.number], status=change.status, ended_at=change.at, reason=change.reason
                )
            case changes.PutHold():
                self.holds[change.hold.id] = change.hold
            case changes.PutRun():
                assert change.run.number not in self.runs
                self.runs[change.run.number] = change.run
            case changes.EndRun():
                run = self.runs[change.number]
                self.runs[change.number] = replace(run, ended_at=change.at, end_reason=change.reason)
            case changes.PutAsk():
                self.asks[change.ask.id] = change.ask
            case changes.EndAsk():
                assert self.asks[change.id].status == "pending"
                self.asks[change.id] = replace(self.asks[change.id], status="cancelled", ended_at=change.at)
            case changes.PutMessage():
                self.messages[change.message.id] = change.message
            case changes.EndMessage():
                message = self.messages[change.id]
                assert message.status in ("admitted", "started")
                self.messages[change.id] = replace(message, status="rejected", reason=change.reason)
            case _:
                self._write_apart(change)

    def _write_apart(self, change: changes.Change) -> None:
        if isinstance(change, changes.PutLive):
            self.live[change.slot] = change.content_json
        elif isinstance(change, changes.ClearLive):
            self.live.clear()
        elif isinstance(change, changes.PutStep):
            step = change.step
            assert step.ended_seq is None or self.events[step.ended_seq - 1].type == f"step.{step.status}"
            self.journal[step.turn, step.name] = step
        elif isinstance(change, changes.PutMemo):
            assert (change.turn, change.name) not in self.memos
            self.memos[change.turn, change.name] = change.value_json

    # --- short words for what tests do

    @property
    def h(self) -> SessionHead:
        assert self.head is not None
        return self.head

    def enqueue(self, said: str = "more", permit: Permit | None = None) -> Any:
        return self.do(commands.Enqueue(session_id=self.id, turn=NewTurn(new_id(), text(said)), permit=permit))

    def admit(self, said: str = "more") -> Any:
        """Enqueue as an engine does that may start the turn in the same commit, on a new run where that is inline."""
        return self.enqueue(said, Permit("w", new_id() if self.h.host == "inline" else None))

    def begin(self) -> None:
        """Start a run and say that its process is ready."""
        self.do(
            commands.StartRun(
                session_id=self.id,
                fence=self.h.fence,
                worker="w",
                run_id=new_id(),
                deployment="d",
                limits=self.h.limits,
                resumes=self.h.resumes,
            )
        )
        self.work(commands.RunReady, run_id=self.run)

    @property
    def run(self) -> str:
        if self.h.run is None:
            raise NotNow("the session has no run")
        return self.h.run.id

    def work(self, kind: type[commands.WorkerCommand], **fields: Any) -> Any:
        """Apply a command of the session's owner."""
        return self.do(kind(session_id=self.id, fence=fields.pop("fence", self.h.fence), **fields))

    def write(self, op: int = 1, said: str = "out", turn: int | None = None) -> Any:
        return self.work(commands.WriteOutput, turn=turn or self.running, op=op, content_json=text(said))

    def complete(self, turn: int | None = None, **fields: Any) -> Any:
        return self.work(commands.CompleteTurn, turn=turn or self.running, result_json=b"1", **fields)

    def fail(self, turn: int | None = None) -> Any:
        return self.work(commands.FailTurn, turn=turn or self.running, error_json=b'{"code":"x"}')

    def lose(self, reason: str = "killed") -> None:
        self.do(
            commands.RunLost(
                session_id=self.id, fence=self.h.fence, worker="w", run_id=self.run, reason=reason, hold_id=new_id()
            )
        )

    def interrupt(self, message: str | None = None) -> str:
        control = {"control_id": new_id(), "issuer": ADA}
        hold = commands.Interrupt(session_id=self.id, hold_id=new_id(), message=message, **control)
        return str(self.do(hold)["hold_id"])

    def resume(self, hold_id: str, *, owner: bool = True) -> Any:
        """Release a hold; then the session's owner, if it lives, does what is to be done."""
        told = self.do(commands.Resume(session_id=self.id, control_id=new_id(), hold_id=hold_id, issuer=ADA))
        if owner and next_action(self.h, self.now) == "start_turn":
            self.work(commands.StartTurn)
        return told

    def close(self) -> Any:
        return self.do(commands.Close(session_id=self.id, control_id=new_id(), issuer=ADA))

    def cancel(self) -> Any:
        return self.do(commands.Cancel(session_id=self.id, control_id=new_id(), issuer=ADA))

    def tick(self, later: int = 0) -> None:
        self.now += later
        self.do(commands.Tick(session_id=self.id, hold_id=new_id()))

    def ask(self, ask_id: str | None = None, prompt: str = "well?", control: bytes = b'{"type":"text"}') -> Any:
        return self.work(
            commands.CreateAsk,
            turn=self.running,
            ask_id=ask_id or new_id(),
            prompt_json=text(prompt),
            control_json=control,
        )

    def answer(self, ask_id: str, answer: bytes = b'"yes"', response_id: str = "r1") -> Any:
        return self.do(
            commands.AnswerAsk(
                session_id=self.id, ask_id=ask_id, answer_json=answer, response_id=response_id, issuer=ADA
            )
        )

    def say(self, said: str = "psst", turn: int | None = None) -> str:
        """Send a message to a turn and return its id."""
        turn_id = self.turns[turn or self.running].id
        told = self.do(
            commands.SendToTurn(session_id=self.id, turn_id=turn_id, message_id=new_id(), content_json=text(said))
        )
        return str(told["message_id"])

    # --- looking

    @property
    def running(self) -> int:
        if self.h.active is None:
            raise NotNow("no turn runs")
        return self.h.active.number

    @property
    def statuses(self) -> list[str]:
        return [turn.status for turn in self.turns.values()]

    def types(self, prefix: str = "") -> list[str]:
        return [event.type for event in self.events if event.type.startswith(prefix)]

    def last(self, kind: str) -> Any:
        """Return the data of the newest event of a kind."""
        return json.loads(next(event.data for event in reversed(self.events) if event.type == kind))
