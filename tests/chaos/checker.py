"""What must hold after a chaos run, whatever was broken in it: one rule a function, over plain data.

The rules compare three witnesses that know nothing of each other: what clients asked, were told and were shown; what
handlers noted outside of the database; and what the store holds in the end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.chaos.evidence import Asked, Document, Evidence, Reading, digest, events_of, text_of

from perdure.testing import Started, problems
from perdure.testing.history import ENDS, TERMINAL, History

ON_PURPOSE: Final = "fails on purpose"
_SHOWN: Final = 40


@dataclass(frozen=True)
class Problem:
    """A promise that was broken: which rule found it, in which session, and how."""

    rule: str
    session: str | None
    why: str

    def __str__(self) -> str:
        return f"[{self.rule}] {self.session or '-'}: {self.why}"


Found = Iterator[tuple[str | None, str]]


class Broken(AssertionError):
    """Raised when promises were broken; the message lists them."""


def check(evidence: Evidence) -> None:
    """Raise `Broken` unless all rules hold."""
    found = find(evidence)
    if found:
        more = [f"… and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
        raise Broken("\n".join([f"{len(found)} promises were broken:", *map(str, found[:_SHOWN]), *more]))


def find(evidence: Evidence) -> list[Problem]:
    """Return every broken promise."""
    return [Problem(name, session, why) for name, rule in RULES.items() for session, why in rule(evidence)]


# --- what was acknowledged


def acknowledged(evidence: Evidence) -> Found:
    """Whatever a client got a receipt for is in the log."""
    for asked in evidence.asked:
        if asked.receipt is None:
            continue
        session = asked.receipt.get("session_id", asked.session)
        history = evidence.histories.get(session)
        if history is None:
            yield session, f"{asked.what} {asked.key} was acknowledged, and there is no such session"
        elif not _is_kept(history, asked, asked.receipt):
            yield session, f"{asked.what} {asked.key} was acknowledged with {asked.receipt} and is not in the log"


def _is_kept(history: History, asked: Asked, receipt: dict[str, Any]) -> bool:
    if asked.what == "answer":
        told = [event["data"] for event in events_of(history, "ask.responded")]
        return any(data["ask_id"] == receipt["id"] and data["answer"] == asked.text for data in told)
    if receipt.get("message_id"):
        admitted = events_of(history, "message.admitted")
        return any(_says(event, receipt["message_id"], asked.text) for event in admitted)
    if "turn_id" in receipt:
        return receipt["turn_id"] is None or _is_queued(history, receipt, asked.text)
    if asked.what == "close":
        return bool(events_of(history, "session.closing", "session.closed", "session.cancelled"))
    kind = {"interrupt": "session.held", "resume": "session.resumed"}[asked.what]
    return any(event["data"]["hold_id"] == receipt["hold_id"] for event in events_of(history, kind))


def _says(event: Document, message: str, text: str | None) -> bool:
    data = event["data"]
    return data["message_id"] == message and text_of(data["content"]) == text


def _is_queued(history: History, receipt: dict[str, Any], text: str | None) -> bool:
    return any(
        event["turn_id"] == receipt["turn_id"]
        and event["data"]["sequence"] == receipt["sequence"]
        and text_of(event["data"]["input"]) == text
        for event in events_of(history, "turn.queued")
    )


def accepted_once(evidence: Evidence) -> Found:
    """However often an input was sent, it became one turn or message at most; a refused one became none."""
    refused = {asked.text: asked for asked in evidence.asked if asked.refused and not asked.answers}
    for session, history in evidence.histories.items():
        texts = [text_of(event["data"]["input"]) for event in events_of(history, "turn.queued")]
        texts += [text_of(event["data"]["content"]) for event in events_of(history, "message.admitted")]
        for text, times in Counter(texts).items():
            if times > 1:
                yield session, f"{text!r} was accepted {times} times"
            if text in refused:
                yield session, f"{text!r} was refused ({refused[text].refused}) and is in the log"


def same_receipts(evidence: Evidence) -> Found:
    """Every repeat of a request got the first receipt, byte for byte."""
    for asked in evidence.asked:
        if len(set(asked.answers)) > 1:
            yield asked.session, f"{asked.what} {asked.key} was answered in several ways: {sorted(set(asked.answers))}"


def accepted_in_order(evidence: Evidence) -> Found:
    """An input that was sent after another one's receipt had come is behind it."""
    inputs: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    for asked in evidence.asked:
        receipt = asked.receipt
        if receipt and receipt.get("sequence") and asked.ended is not None:
            inputs[receipt["session_id"]].append((asked.began, asked.ended, receipt["sequence"]))
    for session, times in inputs.items():
        for _, ended, sequence in times:
            behind = [other for began, _, other in times if began > ended and other <= sequence]
            if behind:
                yield session, f"input {sequence} was acknowledged before {min(behind)} was sent"


# --- the log


def histories(evidence: Evidence) -> Found:
    """Each log is whole and agrees with turns, runs and holds, and with what handlers began."""
    began = _by_session(evidence, "begin")
    for session, history in evidence.histories.items():
        inline = history.session["host"] == "inline"
        runs = {run["id"]: run["number"] for run in history.runs}
        # Within a run only: a worker that slept since it was told of a turn begins it late, and nothing comes of it.
        entries = sorted(began[session], key=lambda entry: (runs.get(entry["run"], 0), entry["at"], entry["sequence"]))
        # A worker has many inline runs, but a run has one process, whichever host it is of.
        started = [Started(entry["sequence"], entry["run"], None if inline else entry["pid"]) for entry in entries]
        for why in problems(history, started):
            yield session, why


def one_outcome(evidence: Evidence) -> Found:
    """Each turn that was started ended once, and no turn ended twice."""
    for session, history in evidence.histories.items():
        ends = Counter(event["turn_id"] for event in events_of(history, *ENDS))
        for turn, times in ends.items():
            if times > 1:
                yield session, f"turn {turn} has {times} outcomes"


def at_rest(evidence: Evidence) -> Found:
    """Once everything is healed, everything that was accepted has ended, and nothing is held or being ended."""
    for session, history in evidence.histories.items():
        left = [turn["sequence"] for turn in history.turns if turn["status"] not in ENDS.values()]
        if left:
            yield session, f"turns {left} have not ended"
        shown = history.session
        if shown["active_turn_id"] or shown["queued"] or shown["holds"]:
            yield session, f"it is not at rest: {shown}"
        if shown["status"] == "closing" or (shown["status"] in TERMINAL and shown["run"]):
            yield session, f"it has not come to its end: {shown}"


def failures(evidence: Evidence) -> Found:
    """A turn failed only when its handler said so: no trouble of the machine's is stored as anybody's result."""
    for session, history in evidence.histories.items():
        for event in events_of(history, "turn.failed"):
            error = event["data"]["error"]
            if ON_PURPOSE not in error["message"]:
                yield session, f"turn {event['turn_id']} failed with {error}"


# --- owners and handlers


def started_once(evidence: Evidence) -> Found:
    """No handler of a live-state agent was called twice for a turn."""
    for session, entries in _by_session(evidence, "begin").items():
        for turn, times in Counter(entry["turn"] for entry in entries).items():
            if times > 1:
                where = sorted({f"{entry['node']}:{entry['pid']}" for entry in entries if entry["turn"] == turn})
                yield session, f"turn {turn} was begun {times} times, in {where}"


def effects_once(evidence: Evidence) -> Found:
    """No effect that must not be repeated was had twice in a turn."""
    for session, entries in _by_session(evidence, "effect").items():
        for (turn, name), times in Counter((entry["turn"], entry["name"]) for entry in entries).items():
            if times > 1:
                yield session, f"turn {turn} had the effect {name!r} {times} times"


def owners_only(evidence: Evidence) -> Found:
    """What is in the log was written in the run that had the session then, by the handler that was called in it."""
    began = {entry["nonce"]: entry for entry in evidence.ledger if entry["kind"] == "begin"}
    ended = {entry["nonce"] for entry in evidence.ledger if entry["kind"] == "end"}
    for session, history in evidence.histories.items():
        run: str | None = None
        for event in history.events:
            if event["type"] == "session.process_started":
                run = event["run_id"]
            if event["run_id"] not in (None, run):
                yield session, f"event {event['seq']} {event['type']} is of run {event['run_id']}, the owner's is {run}"
            if nonce := _nonce(event):
                for why in _foreign(event, run, began.get(nonce)):
                    yield session, why
                if event["type"] == "turn.completed" and nonce not in ended:
                    yield session, f"event {event['seq']} {event['type']}: its handler had not come to its end"
            if event["type"].startswith("session.process_") and event["type"] != "session.process_started":
                run = None


def _nonce(event: Document) -> str | None:
    """Return which call of a handler wrote an event, if one did."""
    data = event["data"]
    if event["type"] == "turn.completed":
        nonce: str = data["result"]["nonce"]
        return nonce
    if event["type"] == "turn.output":
        return text_of(data["content"]).partition(" ")[0]
    if event["type"] == "ask.created":
        return text_of(data["prompt"]).partition(" ")[0]
    if event["type"] == "turn.failed" and ON_PURPOSE in data["error"]["message"]:
        return str(data["error"]["message"]).partition(" ")[0]
    return None


def _foreign(event: Document, run: str | None, began: Document | None) -> Iterator[str]:
    what = f"event {event['seq']} {event['type']}"
    if began is None:
        yield f"{what} was written by a call that nobody noted"
        return
    where = f"{began['node']}:{began['pid']}"
    if began["turn"] != event["turn_id"]:
        yield f"{what} of turn {event['turn_id']} was written by the handler of turn {began['turn']}, in {where}"
    if began["run"] != run:
        yield f"{what} was written in run {began['run']}, in {where}; the owner's is {run}"


def one_process(evidence: Evidence) -> Found:
    """A run is in one process, whichever worker looks after it."""
    places: dict[tuple[str, str], set[int]] = defaultdict(set)
    for entry in evidence.ledger:
        places[entry["session"], entry["run"]].add(entry["pid"])
    for (session, run), pids in places.items():
        if len(pids) > 1:
            yield session, f"run {run} was in processes {sorted(pids)}"


def told_once(evidence: Evidence) -> Found:
    """What was said to a running turn reached its handler once: each delivered message, and the answer in the log."""
    heard = _by_session(evidence, "heard")
    messages = _by_session(evidence, "message")
    for session, history in evidence.histories.items():
        times = Counter(entry["message"] for entry in messages[session])
        for message, count in times.items():
            if count > 1:
                yield session, f"message {message} reached its handler {count} times"
        for event in events_of(history, "message.delivered"):
            if event["data"]["message_id"] not in times:
                yield session, f"message {event['data']['message_id']} is delivered, and its handler never heard it"
        given = {event["turn_id"]: event["data"]["answer"] for event in events_of(history, "ask.responded")}
        for entry in heard[session]:
            if given.get(entry["turn"]) != entry["text"]:
                told = given.get(entry["turn"])
                yield session, f"turn {entry['turn']} heard {entry['text']!r}, the log says {told!r}"


# --- readers


def readers(evidence: Evidence) -> Found:
    """Each reader saw the log from its beginning, without gap or repeat, on whichever servers it was; nothing else."""
    for reading in evidence.readings:
        history = evidence.histories.get(reading.session)
        if history is None:
            yield reading.session, f"{reading.reader} read a session that does not exist"
            continue
        logged = {event["seq"]: digest(event) for event in history.events}
        for why in _misread(reading, logged):
            yield reading.session, f"{reading.reader}: {why}"


def _misread(reading: Reading, logged: dict[int, str]) -> Iterator[str]:
    last = 0
    for connection in reading.connections:
        if connection.after != last:
            yield f"asked {connection.server} for what is after {connection.after}, and had seen {last}"
        for seq, seen in connection.seen:
            if seq != last + 1:
                yield f"{connection.server} sent event {seq} after event {last}"
            last = seq
            if logged.get(seq) != seen:
                yield f"{connection.server} sent an event {seq} that the log does not have"
    if last < reading.due:
        yield f"its last event was {last}, and it was given time for {reading.due}"
    if reading.ended and last != max(logged):
        yield f"its last event was {last}, the log's is {max(logged)}"


def feed(evidence: Evidence) -> Found:
    """Whoever read the feed of all sessions saw every event of each once, in order."""
    last: dict[str, int] = defaultdict(int)
    logs = {session: {event["seq"]: digest(event) for event in h.events} for session, h in evidence.histories.items()}
    for session, seq, seen in evidence.feed:
        if seq != last[session] + 1:
            yield session, f"the feed had event {seq} after event {last[session]}"
        last[session] = seq
        if logs.get(session, {}).get(seq) != seen:
            yield session, f"the feed had an event {seq} that the log does not have"
    for reading in evidence.readings:
        if evidence.feed and last[reading.session] < reading.due:
            yield reading.session, f"the feed ended with event {last[reading.session]}, it had time for {reading.due}"


def answers(evidence: Evidence) -> Found:
    """Clients met no error but passing ones and refusals that they had asked for."""
    for unexpected in evidence.unexpected:
        yield unexpected.session, f"{unexpected.what}: {unexpected.error}"


def _by_session(evidence: Evidence, kind: str) -> dict[str, list[Document]]:
    found: dict[str, list[Document]] = defaultdict(list)
    for entry in evidence.ledger:
        if entry["kind"] == kind:
            found[entry["session"]].append(entry)
    return found


Rule = Callable[[Evidence], Iterable[tuple[str | None, str]]]
_ALL: Final[Sequence[Rule]] = (
    acknowledged,
    accepted_once,
    same_receipts,
    accepted_in_order,
    histories,
    one_outcome,
    at_rest,
    failures,
    started_once,
    effects_once,
    owners_only,
    one_process,
    told_once,
    readers,
    feed,
    answers,
)
RULES: Final[dict[str, Rule]] = {rule.__name__: rule for rule in _ALL}
