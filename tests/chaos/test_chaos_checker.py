"""The checker of chaos runs finds what is wrong: each of its rules is given evidence that is wrong on purpose."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.chaos.checker import RULES, Broken, Problem, check, find
from tests.chaos.evidence import Asked, Connection, Evidence, Reading, Unexpected, digest

from perdure.testing import History

SESSION = "s"


def event(kind: str, turn: str | None = None, run: str | None = None, **data: Any) -> dict[str, Any]:
    return {"session_id": SESSION, "type": kind, "turn_id": turn, "run_id": run, "data": data, "at": "then"}


def content(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def log() -> list[dict[str, Any]]:
    """A session whose first worker is lost in the second turn; a question, a message, a hold and a failure."""
    events = [
        event("session.created", agent="plain"),
        event("turn.queued", "t1", sequence=1, input=content("k1 ask what")),
        event("session.process_started", None, "r1", number=1, recovery="initial"),
        event("turn.running", "t1", "r1", sequence=1),
        event("ask.created", "t1", "r1", ask_id="q1", prompt=content("n1 what"), answer={"type": "text"}),
        event("ask.responded", "t1", "r1", ask_id="q1", answer="this"),
        event("turn.completed", "t1", "r1", result={"nonce": "n1"}, response=content("n1 heard this")),
        event("turn.queued", "t2", sequence=2, input=content("k2 listen 10")),
        event("turn.running", "t2", "r1", sequence=2),
        event("message.admitted", "t2", "r1", message_id="m1", content=content("k3 hello")),
        event("message.started", "t2", "r1", message_id="m1"),
        event("message.delivered", "t2", "r1", message_id="m1"),
        event("turn.output", "t2", "r1", content=content("n2 0")),
        event("turn.interrupted", "t2", "r1", reason="process_lost"),
        event("session.process_lost", None, "r1", reason="its worker was lost", losses=1),
        event("turn.queued", "t3", sequence=3, input=content("k4 fail x")),
        event("session.held", hold_id="h1", reason="interrupt", issuer={"kind": "user", "id": "u"}),
        event("session.resumed", hold_id="h1"),
        event("session.process_started", None, "r2", number=2, recovery="reconstructed"),
        event("turn.running", "t3", "r2", sequence=3),
        event("turn.output", "t3", "r2", content=content("n3 fails")),
        event("turn.failed", "t3", "r2", error={"code": "handler_failed", "message": "n3 fails on purpose"}),
        event("session.closing", reason="close"),
        event("session.closed"),
        event("session.process_stopped", None, "r2", reason="session_closed"),
    ]
    return [{"seq": number, **each} for number, each in enumerate(events, 1)]


def history() -> History:
    events = log()
    done = {"result": {"nonce": "n1"}, "response": content("n1 heard this")}
    failed = {"code": "handler_failed", "message": "n3 fails on purpose"}
    turns = [
        {"id": "t1", "sequence": 1, "status": "completed", "run_id": "r1", **done},
        {"id": "t2", "sequence": 2, "status": "interrupted", "run_id": "r1", "reason": "process_lost"},
        {"id": "t3", "sequence": 3, "status": "failed", "run_id": "r2", "error": failed},
    ]
    runs = [{"number": 1, "id": "r1", "ended_at": "then"}, {"number": 2, "id": "r2", "ended_at": "then"}]
    session = {
        "id": SESSION,
        "host": "process",
        "status": "closed",
        "last_event_seq": len(events),
        "active_turn_id": None,
        "queued": 0,
        "holds": [],
        "run": None,
    }
    return History(session, turns, events, runs)


def note(kind: str, number: int, at: float, **more: Any) -> dict[str, Any]:
    run, pid = ("r2", 12) if number == 3 else ("r1", 11)
    who = {"node": f"worker-{run}", "pid": pid, "session": SESSION, "run": run}
    return {"kind": kind, **who, "turn": f"t{number}", "sequence": number, "nonce": f"n{number}", "at": at, **more}


def ledger() -> list[dict[str, Any]]:
    return [
        note("begin", 1, 1.0),
        note("heard", 1, 1.1, text="this"),
        note("end", 1, 1.2),
        note("begin", 2, 2.0),
        note("message", 2, 2.1, message="m1", text="k3 hello"),
        note("effect", 2, 2.2, name="charge"),
        note("begin", 3, 3.0),
    ]


def answered(what: str, key: str, began: float, text: str | None = None, **receipt: Any) -> Asked:
    body = msgspec.json.encode({"session_id": SESSION, **receipt})
    return Asked(what, key, SESSION, text, {}, began, began + 0.1, [body, body])


def asked() -> list[Asked]:
    return [
        answered("create", "k1", 0.5, "k1 ask what", turn_id="t1", sequence=1, created=True),
        answered("answer", "a1", 1.05, "this", id="q1", turn_id="t1", status="responded"),
        answered("enqueue", "k2", 1.5, "k2 listen 10", turn_id="t2", sequence=2, created=False),
        answered("send", "k3", 2.05, "k3 hello", turn_id="t2", message_id="m1", kind="messaged"),
        answered("enqueue", "k4", 2.5, "k4 fail x", turn_id="t3", sequence=3, created=False),
        answered("interrupt", "k5", 2.6, hold_id="h1", id="c1", status="accepted"),
        answered("resume", "k6", 2.7, hold_id="h1", id="c2", status="accepted"),
        answered("close", "k7", 3.5, id="c3", status="accepted"),
        Asked("enqueue", "k8", SESSION, "k8 say 1", {}, 4.0, 4.1, [], "session_not_open"),
        Asked("enqueue", "k9", SESSION, "k9 say 1", {}, 4.0),
    ]


def reading() -> Reading:
    seen = [(each["seq"], digest(each)) for each in log()]
    first, second = Connection("server-1", 0, seen[:9]), Connection("server-2", 9, seen[9:])
    return Reading(SESSION, "reader", [first, Connection("server-1", 9), second], ended=True)


def good() -> Evidence:
    feed = [(SESSION, each["seq"], digest(each)) for each in log()]
    return Evidence({SESSION: history()}, asked(), [reading()], ledger(), feed)


def test_good_evidence_is_good() -> None:
    assert find(good()) == []
    check(good())


def test_a_worker_that_was_asleep_may_begin_late_what_was_taken_from_it() -> None:
    evidence = good()
    evidence.ledger[3]["at"] = 3.5
    assert find(evidence) == []


def test_a_message_lists_what_was_broken() -> None:
    evidence = good()
    evidence.unexpected.append(Unexpected(SESSION, "enqueue k1", "500"))
    with pytest.raises(Broken, match=r"1 promises were broken:\n\[answers\] s: enqueue k1: 500"):
        check(evidence)


# --- evidence that is wrong on purpose

Wrong = Callable[[Evidence], object]
WRONG: dict[str, list[tuple[Wrong, str]]] = {name: [] for name in RULES}


def wrong(rule: str, why: str) -> Callable[[Wrong], Wrong]:
    """Note what makes good evidence bad, and what the rule is to say of it."""

    def take(change: Wrong) -> Wrong:
        WRONG[rule].append((change, why))
        return change

    return take


def of(evidence: Evidence, kind: str, turn: str | None = None) -> dict[str, Any]:
    """Return the log's event of a kind, to be changed."""
    events: Any = evidence.histories[SESSION].events
    return next(each for each in events if each["type"] == kind and turn in (None, each["turn_id"]))


def relog(evidence: Evidence, change: Callable[[list[dict[str, Any]]], object]) -> None:
    """Change the log itself, and number it anew."""
    old = evidence.histories[SESSION]
    events: list[dict[str, Any]] = list(old.events)  # type: ignore[arg-type]
    change(events)
    events = [{**each, "seq": number} for number, each in enumerate(events, 1)]
    session = {**old.session, "last_event_seq": len(events)}
    evidence.histories[SESSION] = History(session, old.turns, events, old.runs)


def drop(kind: str, turn: str | None = None) -> Wrong:
    return lambda evidence: relog(evidence, lambda events: events.remove(of(evidence, kind, turn)))


def rewrite(evidence: Evidence, index: int, **receipt: Any) -> None:
    evidence.asked[index].answers = [msgspec.json.encode({"session_id": SESSION, **receipt})]


wrong("acknowledged", "k2 was acknowledged")(drop("turn.queued", "t2"))
wrong("acknowledged", "a1 was acknowledged")(drop("ask.responded"))
wrong("acknowledged", "k3 was acknowledged")(drop("message.admitted"))
wrong("acknowledged", "k5 was acknowledged")(drop("session.held"))
wrong("acknowledged", "k6 was acknowledged")(drop("session.resumed"))


@wrong("acknowledged", "k7 was acknowledged")
def never_closed(evidence: Evidence) -> None:
    relog(evidence, lambda events: events.__setitem__(slice(22, 24), []))


@wrong("acknowledged", "k4 was acknowledged")
def another_number(evidence: Evidence) -> None:
    rewrite(evidence, 4, turn_id="t3", sequence=4, created=False)


@wrong("acknowledged", "k4 was acknowledged")
def another_input(evidence: Evidence) -> None:
    of(evidence, "turn.queued", "t3")["data"]["input"] = content("something else")


@wrong("acknowledged", "there is no such session")
def no_session(evidence: Evidence) -> None:
    rewrite(evidence, 0, session_id="lost", turn_id="t1", sequence=1, created=True)


@wrong("accepted_once", "'k2 listen 10' was accepted 2 times")
def accepted_twice(evidence: Evidence) -> None:
    of(evidence, "turn.queued", "t3")["data"]["input"] = content("k2 listen 10")


@wrong("accepted_once", "'k3 hello' was accepted 2 times")
def steered_twice(evidence: Evidence) -> None:
    of(evidence, "turn.queued", "t3")["data"]["input"] = content("k3 hello")


@wrong("accepted_once", "was refused (session_not_open) and is in the log")
def refused_and_done(evidence: Evidence) -> None:
    of(evidence, "turn.queued", "t3")["data"]["input"] = content("k8 say 1")


@wrong("same_receipts", "k2 was answered in several ways")
def another_receipt(evidence: Evidence) -> None:
    evidence.asked[2].answers[1] += b" "


@wrong("accepted_in_order", "input 2 was acknowledged before 1 was sent")
def out_of_order(evidence: Evidence) -> None:
    evidence.asked[0].began = 1.7


@wrong("histories", "its number should be 5")
def gap(evidence: Evidence) -> None:
    of(evidence, "ask.created")["seq"] = 6


@wrong("histories", "turn 2 was started before it")
def started_out_of_order(evidence: Evidence) -> None:
    def change(events: list[dict[str, Any]]) -> None:
        events.insert(2, events.pop(7))
        events.insert(4, events.pop(8))

    relog(evidence, change)


@wrong("histories", "handlers were started in the order [2, 1, 3]")
def begun_out_of_order(evidence: Evidence) -> None:
    evidence.ledger[0]["at"] = 2.5


@wrong("histories", "turn 2 was handled in run r9, the log says r1")
def begun_in_another_run(evidence: Evidence) -> None:
    evidence.ledger[3]["run"] = "r9"


@wrong("one_outcome", "turn t1 has 2 outcomes")
def two_outcomes(evidence: Evidence) -> None:
    relog(evidence, lambda events: events.insert(7, copy.deepcopy(events[6])))


@wrong("at_rest", "turns [2] have not ended")
def never_ended(evidence: Evidence) -> None:
    evidence.histories[SESSION].turns[1]["status"] = "running"  # type: ignore[index]


def shown(**fields: Any) -> Wrong:
    return lambda evidence: evidence.histories[SESSION].session.update(fields)  # type: ignore[attr-defined]


wrong("at_rest", "it is not at rest")(shown(active_turn_id="t2"))
wrong("at_rest", "it is not at rest")(shown(queued=1))
wrong("at_rest", "it is not at rest")(shown(holds=[{"id": "h1"}]))
wrong("at_rest", "it has not come to its end")(shown(status="closing"))
wrong("at_rest", "it has not come to its end")(shown(run={"id": "r2"}))


@wrong("failures", "turn t3 failed with {'code': 'store_unavailable'")
def failed_by_the_machine(evidence: Evidence) -> None:
    of(evidence, "turn.failed")["data"]["error"] = {"code": "store_unavailable", "message": "57P01"}


@wrong("started_once", "turn t2 was begun 2 times")
def begun_twice(evidence: Evidence) -> None:
    evidence.ledger.append(note("begin", 2, 2.5, nonce="n4", node="worker-3", run="r2"))


@wrong("effects_once", "turn t2 had the effect 'charge' 2 times")
def charged_twice(evidence: Evidence) -> None:
    evidence.ledger.append(note("effect", 2, 2.5, name="charge"))


@wrong("owners_only", "event 14 turn.output is of run r1, the owner's is None")
def written_after_the_end(evidence: Evidence) -> None:
    relog(evidence, lambda events: events.insert(12, events.pop(14)))


@wrong("owners_only", "turn.output was written in run r1, in worker-r1:11; the owner's is r2")
def written_by_a_stale_owner(evidence: Evidence) -> None:
    of(evidence, "turn.output", "t3")["data"]["content"] = content("n2 ends")


@wrong("owners_only", "of turn t3 was written by the handler of turn t2")
def written_by_another_turn(evidence: Evidence) -> None:
    of(evidence, "turn.output", "t3")["data"]["content"] = content("n2 ends")


@wrong("owners_only", "turn.completed was written in run r9, in worker-9:99; the owner's is r1")
def completed_by_a_stale_owner(evidence: Evidence) -> None:
    stale = {"nonce": "n9", "run": "r9", "node": "worker-9", "pid": 99}
    evidence.ledger += [note("begin", 1, 0.9) | stale, note("end", 1, 1.3) | stale]
    of(evidence, "turn.completed")["data"]["result"] = {"nonce": "n9"}


@wrong("owners_only", "turn.failed was written in run r1")
def failed_by_a_stale_owner(evidence: Evidence) -> None:
    of(evidence, "turn.failed")["data"]["error"] = {"code": "handler_failed", "message": "n2 fails on purpose"}


@wrong("owners_only", "ask.created was written by a call that nobody noted")
def asked_by_nobody(evidence: Evidence) -> None:
    of(evidence, "ask.created")["data"]["prompt"] = content("n7 what")


@wrong("owners_only", "its handler had not come to its end")
def completed_too_early(evidence: Evidence) -> None:
    evidence.ledger = [entry for entry in evidence.ledger if entry["kind"] != "end"]


@wrong("one_process", "run r1 was in processes [11, 13]")
def two_processes(evidence: Evidence) -> None:
    evidence.ledger[4]["pid"] = 13


@wrong("told_once", "message m1 reached its handler 2 times")
def heard_twice(evidence: Evidence) -> None:
    evidence.ledger.append(note("message", 2, 2.5, message="m1", text="k3 hello"))


@wrong("told_once", "message m1 is delivered, and its handler never heard it")
def never_heard(evidence: Evidence) -> None:
    del evidence.ledger[4]


@wrong("told_once", "turn t1 heard 'that', the log says 'this'")
def heard_another_answer(evidence: Evidence) -> None:
    evidence.ledger[1]["text"] = "that"


@wrong("readers", "server-2 sent event 11 after event 9")
def reader_missed_one(evidence: Evidence) -> None:
    del evidence.readings[0].connections[2].seen[0]


@wrong("readers", "server-2 sent event 9 after event 9")
def reader_saw_one_twice(evidence: Evidence) -> None:
    connections = evidence.readings[0].connections
    connections[2].seen.insert(0, connections[0].seen[-1])


@wrong("readers", "server-1 sent an event 4 that the log does not have")
def reader_saw_what_is_gone(evidence: Evidence) -> None:
    evidence.readings[0].connections[0].seen[3] = (4, "other")


@wrong("readers", "asked server-2 for what is after 7, and had seen 9")
def reader_asked_again(evidence: Evidence) -> None:
    evidence.readings[0].connections[2].after = 7


@wrong("readers", "its last event was 24, the log's is 25")
def reader_ended_early(evidence: Evidence) -> None:
    del evidence.readings[0].connections[2].seen[-1]


@wrong("readers", "its last event was 25, and it was given time for 26")
def reader_heard_no_more(evidence: Evidence) -> None:
    evidence.readings[0].due = 26


@wrong("readers", "read a session that does not exist")
def reader_of_nothing(evidence: Evidence) -> None:
    evidence.readings[0].session = "lost"


@wrong("feed", "the feed had event 5 after event 3")
def feed_missed_one(evidence: Evidence) -> None:
    del evidence.feed[3]


@wrong("feed", "the feed had event 5 after event 5")
def feed_had_one_twice(evidence: Evidence) -> None:
    evidence.feed.insert(5, evidence.feed[4])


@wrong("feed", "the feed had an event 2 that the log does not have")
def feed_had_what_is_gone(evidence: Evidence) -> None:
    evidence.feed[1] = (SESSION, 2, "other")


@wrong("feed", "the feed ended with event 24, it had time for 25")
def feed_ended_early(evidence: Evidence) -> None:
    evidence.readings[0].due = 25
    del evidence.feed[-1]


@wrong("answers", "enqueue k1: 500")
def broken_answer(evidence: Evidence) -> None:
    evidence.unexpected.append(Unexpected(SESSION, "enqueue k1", "500"))


CASES = [(rule, change, why) for rule, changes in WRONG.items() for change, why in changes]


@pytest.mark.parametrize(("rule", "change", "why"), CASES, ids=lambda value: getattr(value, "__name__", None))
def test_what_is_wrong_is_found(rule: str, change: Wrong, why: str) -> None:
    evidence = good()
    change(evidence)
    found = find(evidence)
    assert any(problem.rule == rule and why in problem.why for problem in found), _listed(found)


def _listed(found: list[Problem]) -> str:
    return "\n".join(map(str, found)) or "nothing was found"


def test_every_rule_has_been_shown_something_wrong() -> None:
    assert [rule for rule, changes in WRONG.items() if not changes] == []
