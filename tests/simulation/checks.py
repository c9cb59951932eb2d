"""What must hold once a run is over: of each session's history, and of the ledger of effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from tests.simulation.simulated_agents import Note
from tests.simulation.truth import SessionRows

from perdure.testing.history import History, Started, problems

if TYPE_CHECKING:
    from tests.simulation.world import World

_decode = msgspec.json.decode


def of(world: World) -> list[str]:
    """Return all that is wrong with what a run has left."""
    found: list[str] = []
    for session_id, rows in world.truth.rows.items():
        receipts = [receipt for client in world.clients for receipt in client.receipts]
        mine = [receipt for receipt in receipts if receipt["session_id"] == session_id]
        notes = [note for note in world.ledger if note.session == session_id]
        told = problems(document(world, rows), _started(rows, notes), mine)
        found += [f"session {session_id}: {each}" for each in told + _effects(rows, notes)]
    return found + _peaceful(world)


SLOW: Final = 0.01
"""The latency from which on a short lease may be lost by chance."""
_TROUBLE: Final = frozenset({"crash", "freeze", "cut", "down", "slow", "clock"})


def _peaceful(world: World) -> list[str]:
    """Check that nothing is lost where nothing went wrong: a graceful stop at most cuts short what takes too long."""
    plan = world.plan
    if _TROUBLE & {mishap.kind for mishap in plan.mishaps} or plan.loses_answers or plan.latency > SLOW:
        return []
    drains = any(mishap.kind == "drain" for mishap in plan.mishaps)
    allowed = {"interrupt", "deadline", "process_stopped"} if drains else {"interrupt", "deadline"}
    return [
        f"session {rows.id}: event {event.seq} {event.type} {event.data!r} though nothing went wrong"
        for rows in world.truth.rows.values()
        for event in rows.events
        if event.type == "session.process_lost"
        or (
            event.type == "turn.interrupted"
            and _decode(event.data)["reason"] not in {"interrupt", "deadline", *allowed}
        )
    ]


def document(world: World, rows: SessionRows) -> History:
    """Return a session as the API shows it."""
    head = world.truth.entries[rows.id].head
    run = None if head.run is None else {"id": head.run.id}
    session = {
        "id": head.id,
        "status": head.status,
        "last_event_seq": head.last_seq,
        "active_turn_id": head.active.id if head.active else None,
        "queued": head.queued,
        "holds": [{"id": hold.id} for hold in head.holds],
        "run": run,
    }
    return History(session, _turns(rows), _events(rows), _runs(rows))


def _events(rows: SessionRows) -> list[dict[str, Any]]:
    turns, runs = rows.turns, rows.runs
    return [
        {
            "seq": event.seq,
            "type": event.type,
            "data": _decode(event.data),
            "turn_id": None if event.turn is None else turns[event.turn - 1].id,
            "run_id": None if event.run is None else runs[event.run - 1].id,
        }
        for event in rows.events
    ]


def _turns(rows: SessionRows) -> list[dict[str, Any]]:
    found = []
    for row in rows.turns:
        turn = rows.turn(row.number)
        assert turn is not None
        raw = {"result": turn.result_json, "response": turn.response_json, "error": turn.error_json}
        shown: dict[str, Any] = {name: _decode(value) for name, value in raw.items() if value is not None}
        shown |= {name: value for name, value in {"reason": turn.reason, "run_id": turn.run_id}.items() if value}
        found.append({"id": turn.id, "sequence": turn.number, "status": turn.status, **shown})
    return found


def _runs(rows: SessionRows) -> list[dict[str, Any]]:
    return [{"number": run.number, "id": run.id, "ended_at": run.ended_at} for run in rows.runs]


def _started(rows: SessionRows, notes: list[Note]) -> list[Started]:
    """Return the beginnings of handlers, run by run.

    A worker that stood still may begin a turn that has been interrupted meanwhile, when later ones run elsewhere.
    """
    order = {run.id: run.number for run in rows.runs}
    began = sorted((note for note in notes if note.what == "began"), key=lambda note: order.get(note.run, 0))
    return [Started(note.turn, note.run, note.place) for note in began]  # type: ignore[arg-type]


def _effects(rows: SessionRows, notes: list[Note]) -> list[str]:
    """Check that a turn that was completed did all that it was told, each once and in order."""
    found = []
    done: dict[int, list[str]] = {}
    for note in notes:
        done.setdefault(note.turn, []).append(note.what)
    for row in rows.turns:
        if row.status == "completed":
            turn = rows.turn(row.number)
            assert turn is not None
            words = _decode(turn.input_json)[0]["text"].split()
            if done.get(row.number) != ["began", *words]:
                found.append(f"turn {row.number} was completed and has done {done.get(row.number)}")
    return found


def history(world: World) -> list[str]:
    """Return all that was stored and done, as lines that are the same whenever the seed is run."""
    lines = [repr(note) for note in world.ledger]
    for key, entry in sorted(world.truth.entries.items()):
        rows = world.truth.rows[key]
        lines.append(repr(entry.head))
        lines += [repr(event) for event in rows.events]
        lines += [repr(each) for each in (rows.runs, rows.asks, rows.messages, rows.holds, rows.live)]
    for client in world.clients:
        lines += [f"{watcher.name} {watcher.cursor} {watcher.ended}" for watcher in client.watchers]
        lines += [repr(receipt) for receipt in client.receipts]
    return lines
