"""What every session's history must keep to, whatever has crashed: checked on documents as the API sends them.

The promises: events are numbered without a gap and agree with the turns, runs and holds that they tell of; one turn is
active at a time; turns start in the order of their acceptance, once, and never while the session is held; each ends
once; a response is seen exactly when its turn completed; no handler was started twice; what was accepted is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

Document: TypeAlias = Mapping[str, Any]

ENDS: Final = {
    "turn.completed": "completed",
    "turn.failed": "failed",
    "turn.interrupted": "interrupted",
    "turn.cancelled": "cancelled",
}
TERMINAL: Final = ("closed", "cancelled")
_IN_TURN: Final = ("turn.output", "ask.", "message.", "step.")
_WITHOUT_PROCESS: Final = ("ask.responded", "message.admitted")


class HistoryBroken(AssertionError):
    """Raised when a session's history breaks a promise; the message lists which, and the log."""


@dataclass(frozen=True)
class History:
    """One session as the API shows it: the session, all its turns and runs in order, and its whole log."""

    session: Document
    turns: Sequence[Document]
    events: Sequence[Document]
    runs: Sequence[Document]


@dataclass(frozen=True)
class Started:
    """A handler noted that it began with a turn: its sequence number, and the run and process that it ran in."""

    sequence: int
    run_id: str | None = None
    pid: int | None = None


def check_history(history: History, started: Iterable[Started] = (), receipts: Iterable[Document] = ()) -> None:
    """Raise `HistoryBroken` unless the history keeps all promises; see `problems`."""
    found = problems(history, started, receipts)
    if found:
        log = [f"  {event['seq']:>4} {event['type']} {event['data']}" for event in history.events]
        told = "\n".join([f"session {history.session.get('id')}:", *found, "its log:", *log])
        raise HistoryBroken(told)


def problems(history: History, started: Iterable[Started] = (), receipts: Iterable[Document] = ()) -> list[str]:
    """Return every promise that the history breaks, in words.

    `started` are the notes that handlers made first thing, in order; `receipts` are those of accepted inputs.
    """
    told = _Reading(history)
    for event in history.events:
        told.read(event)
    told.finish()
    told.compare_ledger(list(started))
    told.compare_receipts(receipts)
    return told.found


@dataclass
class _Told:
    """What the log says of one turn."""

    id: str
    sequence: int
    status: str = "queued"
    run_id: str | None = None
    earlier_runs: list[str | None] = field(default_factory=list)
    lost: bool = False
    ended: Document | None = None
    asks: dict[str, str] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)


class _Reading:
    """Reads a log from its beginning, as a session that tells its own story, and notes what cannot be."""

    def __init__(self, history: History) -> None:
        self.found: list[str] = []
        self._history = history
        self._turns: dict[str, _Told] = {}
        self._active: _Told | None = None
        self._holds: dict[str, Document] = {}
        self._run: str | None = None
        self._runs: list[str | None] = []
        self._status = "open"
        self._seq = 0
        self._started = 0
        # Only turns of agents that are resumed outlive their process.
        self._resumes = any(event["type"] in ("turn.resumed", "step.started") for event in history.events)

    def _wrong(self, event: Document, why: str) -> None:
        self.found.append(f"event {event['seq']} {event['type']}: {why}")

    # --- events

    def read(self, event: Document) -> None:
        """Take the next event."""
        self._seq += 1
        if event["seq"] != self._seq:
            self._wrong(event, f"its number should be {self._seq}")
            self._seq = event["seq"]
        if (event["type"] == "session.created") != (self._seq == 1):
            self._wrong(event, "a log begins with session.created, once")
        self._read_kind(event)

    def _read_kind(self, event: Document) -> None:
        kind = event["type"]
        if kind in ENDS:
            self._end_turn(event)
        elif kind == "turn.queued":
            self._queue_turn(event)
        elif kind == "turn.running":
            self._start_turn(event)
        elif kind == "turn.resumed":
            self._resume_turn(event)
        elif kind.startswith(_IN_TURN):
            self._in_turn(event)
        elif kind.startswith("session.process_"):
            self._read_process(event)
        else:
            self._read_session(event)

    def _queue_turn(self, event: Document) -> None:
        if self._status != "open":
            self._wrong(event, f"a session that is {self._status} takes no input")
        sequence = event["data"]["sequence"]
        if sequence != len(self._turns) + 1:
            self._wrong(event, f"its turn should be number {len(self._turns) + 1}")
        if event["turn_id"] in self._turns:
            self._wrong(event, "the turn was queued before")
        self._turns[event["turn_id"]] = _Told(event["turn_id"], sequence)

    def _turn_of(self, event: Document) -> _Told:
        turn = self._turns.get(event["turn_id"])
        if turn is None:
            self._wrong(event, "its turn was never queued")
            turn = self._turns[event["turn_id"]] = _Told(event["turn_id"], -1)
        return turn

    def _start_turn(self, event: Document) -> None:
        turn = self._turn_of(event)
        if turn.status != "queued":
            self._wrong(event, f"turn {turn.sequence} is {turn.status} already")
        if self._active is not None:
            self._wrong(event, f"turn {self._active.sequence} is still active")
        if turn.sequence <= self._started:
            self._wrong(event, f"turn {self._started} was started before it")
        if self._holds:
            self._wrong(event, "the session is held")
        if self._run is None or event["run_id"] != self._run:
            self._wrong(event, f"the session's run is {self._run}")
        turn.status, turn.run_id = "running", event["run_id"]
        self._active, self._started = turn, max(self._started, turn.sequence)

    def _resume_turn(self, event: Document) -> None:
        turn = self._turn_of(event)
        if turn is not self._active or not turn.lost:
            self._wrong(event, f"turn {turn.sequence} was not lost while it was active")
        if self._holds:
            self._wrong(event, "the session is held")
        if self._run is None or event["run_id"] != self._run:
            self._wrong(event, f"the session's run is {self._run}")
        turn.earlier_runs.append(turn.run_id)
        turn.run_id, turn.lost = event["run_id"], False

    def _end_turn(self, event: Document) -> None:
        turn = self._turn_of(event)
        status = ENDS[event["type"]]
        if turn.ended is not None:
            self._wrong(event, f"turn {turn.sequence} is {turn.status} already")
        if status != "cancelled" and turn is not self._active:
            self._wrong(event, f"turn {turn.sequence} was not active")
        for what, known in (("question", turn.asks), ("message", turn.messages)):
            for name, state in known.items():
                if state == "open":
                    self._wrong(event, f"{what} {name} was left open")
        turn.status, turn.ended = status, event
        if turn is self._active:
            self._active = None

    def _in_turn(self, event: Document) -> None:
        turn = self._turn_of(event)
        if turn is not self._active:
            self._wrong(event, f"turn {turn.sequence} is not active")
        if turn.lost and event["type"] not in _WITHOUT_PROCESS:
            self._wrong(event, f"no process works on turn {turn.sequence}")
        noun, _, verb = event["type"].partition(".")
        if noun == "ask":
            self._open_and_shut(event, turn.asks, event["data"]["ask_id"], verb == "created", verb != "created")
        elif noun == "message":
            shut = verb in ("delivered", "rejected")
            self._open_and_shut(event, turn.messages, event["data"]["message_id"], verb == "admitted", shut)

    def _open_and_shut(self, event: Document, known: dict[str, str], name: str, opens: bool, shuts: bool) -> None:
        if (name in known) == opens:
            self._wrong(event, "it began twice" if opens else "it never began")
        elif known.get(name) == "shut":
            self._wrong(event, "it had ended")
        known[name] = "shut" if shuts else "open"

    def _read_process(self, event: Document) -> None:
        if event["type"] == "session.process_started":
            if self._run is not None:
                self._wrong(event, f"run {self._run} has not ended")
            self._run = event["run_id"]
            self._runs.append(self._run)
            recovery = "initial" if len(self._runs) == 1 else "reconstructed"
            if (event["data"]["number"], event["data"]["recovery"]) != (len(self._runs), recovery):
                self._wrong(event, f"it should be run {len(self._runs)}, {recovery}")
            return
        if self._run is None or event["run_id"] != self._run:
            self._wrong(event, f"the session's run is {self._run}")
        if self._active is not None and self._resumes:
            self._active.lost = True
        elif self._active is not None:
            self._wrong(event, f"turn {self._active.sequence} is still active")
        self._run = None

    def _read_session(self, event: Document) -> None:
        kind, data = event["type"], event["data"]
        if kind == "session.held":
            if data["hold_id"] in self._holds:
                self._wrong(event, "the hold was placed before")
            self._holds[data["hold_id"]] = data
        elif kind == "session.resumed":
            if self._holds.pop(data["hold_id"], None) is None:
                self._wrong(event, "there was no such hold")
        elif kind in ("session.closing", "session.closed", "session.cancelled"):
            self._change_status(event, kind.removeprefix("session."))

    def _change_status(self, event: Document, status: str) -> None:
        allowed = {"closing": ("open",), "closed": ("closing",), "cancelled": ("open", "closing")}
        if self._status not in allowed[status]:
            self._wrong(event, f"the session was {self._status}")
        left = [turn.sequence for turn in self._turns.values() if turn.ended is None]
        if status in TERMINAL and left:
            self._wrong(event, f"turns {left} have not ended")
        if status == "closed" and self._holds:
            self._wrong(event, "the session is held")
        self._status = status

    # --- the rest against the log

    def finish(self) -> None:
        """Compare the session, its turns and its runs with what the log has told."""
        session = self._history.session
        left = [turn for turn in self._turns.values() if turn.ended is None]
        told = {
            "last_event_seq": self._seq,
            "status": self._status,
            "active_turn_id": self._active.id if self._active else None,
            "queued": len([turn for turn in left if turn is not self._active]),
        }
        for name, value in told.items():
            if session[name] != value:
                self.found.append(f"the session's {name} is {session[name]!r}, the log says {value!r}")
        shown = {hold["id"] for hold in session["holds"]}
        # A session that has ended gets no event any more, not of a hold that is released either.
        if shown != set(self._holds) and not (self._status in TERMINAL and shown < set(self._holds)):
            self.found.append(f"the session's holds are {session['holds']}, the log says {sorted(self._holds)}")
        self._compare_turns()
        self._compare_runs()

    def _compare_turns(self) -> None:
        shown = [(turn["id"], turn["sequence"], turn["status"]) for turn in self._history.turns]
        told = [(turn.id, turn.sequence, turn.status) for turn in self._turns.values()]
        if shown != told:
            self.found.append(f"the turns are {shown}, the log says {told}")
        for turn in self._history.turns:
            self._compare_outcome(turn, self._turns.get(turn["id"]))

    def _compare_outcome(self, turn: Document, told: _Told | None) -> None:
        completed = turn["status"] == "completed"
        data = told.ended["data"] if told and told.ended else {}
        if ("result" in turn) != completed or ("response" in turn and not completed):
            self.found.append(f"turn {turn['sequence']} is {turn['status']} and shows {sorted(turn)}")
        for name in ("result", "response", "error", "reason"):
            if turn["status"] != "cancelled" and turn.get(name) != data.get(name):
                self.found.append(f"turn {turn['sequence']}: its {name} is not that of the log")
        if told is not None and turn.get("run_id") != told.run_id:
            self.found.append(f"turn {turn['sequence']}: its run is {turn.get('run_id')}, the log says {told.run_id}")

    def _compare_runs(self) -> None:
        shown = [(run["number"], run["id"]) for run in self._history.runs]
        if shown != list(enumerate(self._runs, 1)):
            self.found.append(f"the runs are {shown}, the log says {self._runs}")
        living = [run["id"] for run in self._history.runs if run.get("ended_at") is None]
        present = self._history.session["run"]
        if living != ([self._run] if self._run else []) or (present["id"] if present else None) != self._run:
            self.found.append(f"the living runs are {living}, the session's is {present}, the log says {self._run}")

    def compare_ledger(self, started: list[Started]) -> None:
        """Compare what handlers noted with what the log says of their turns."""
        by_sequence = {turn.sequence: turn for turn in self._turns.values()}
        for sequence, times in Counter(each.sequence for each in started).items():
            turn = by_sequence.get(sequence)
            if times > 1 + (len(turn.earlier_runs) if turn is not None else 0):
                self.found.append(f"the handler of turn {sequence} was started {times} times")
        if [each.sequence for each in started] != sorted(each.sequence for each in started):
            self.found.append(f"handlers were started in the order {[each.sequence for each in started]}")
        for each in started:
            turn = by_sequence.get(each.sequence)
            if turn is None or turn.run_id is None:
                self.found.append(f"a handler was started for turn {each.sequence}, which the log never started")
            elif each.run_id not in (None, turn.run_id, *turn.earlier_runs):
                self.found.append(f"turn {each.sequence} was handled in run {each.run_id}, the log says {turn.run_id}")
        places = {(each.run_id, each.pid) for each in started if each.run_id and each.pid}
        if len({run for run, _ in places}) != len(places):
            self.found.append(f"a run was in more than one process: {sorted(places)}")

    def compare_receipts(self, receipts: Iterable[Document]) -> None:
        """Look for what was accepted."""
        for receipt in receipts:
            turn = self._turns.get(receipt["turn_id"])
            if turn is None or turn.sequence != receipt["sequence"]:
                self.found.append(f"what was accepted as {dict(receipt)} is not in the log")
