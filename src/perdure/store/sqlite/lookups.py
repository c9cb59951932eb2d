"""The rows that rules ask to see, looked up inside the transaction that writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from perdure.records.sessions import Ask, Hold, Message, QueuedTurn, Turn
from perdure.records.steps import Step
from perdure.store import records
from perdure.store.sqlite.codec import LARGEST_NUMBER, number_of, pack_id, position, sid_at, unpack_known
from perdure.store.sqlite.database import Database, Row, one
from perdure.store.sqlite.records import to_ask, to_hold, to_message, to_queued, to_turn
from perdure.store.sqlite.statements import sql


def look_up(database: Database, session_id: str, sid: int, kind: str, key: Any) -> Any:
    """Return the row that a rule needs, or None."""
    return _LOOK_UPS[kind](database, session_id, sid, key)


def turn_row(database: Database, sid: int, number: int) -> Row | None:
    """Return the row of one turn by its number."""
    pos = position(sid, number)
    found: Row | None = one(database, sql("turns"), (pos - 1, pos, 1))
    return found


def turn_by_id(database: Database, session_id: str, sid: int, turn_id: str) -> Turn | None:
    """Return one turn of a session by its id."""
    found = one(database, sql("turn_position"), (pack_id(turn_id),))
    if found is None or sid_at(found[0]) != sid:
        return None
    return _turn(database, session_id, sid, number_of(found[0]))


def _turn(database: Database, session_id: str, sid: int, number: int) -> Turn | None:
    row = turn_row(database, sid, number)
    return None if row is None else to_turn(session_id, row)


def _queued(database: Database, _: str, sid: int, number: int) -> QueuedTurn | None:
    row = turn_row(database, sid, number)
    return None if row is None else to_queued(row)


def _queued_seq(database: Database, _: str, sid: int, number: int) -> int | None:
    row = one(database, sql("queued_seq"), (position(sid, number),))
    return None if row is None else row[0]


def ask(database: Database, _: str, sid: int, ask_id: str) -> Ask | None:
    """Return one question."""
    row = one(database, sql("ask"), (sid, pack_id(ask_id)))
    return None if row is None else to_ask(row)


def message(database: Database, _: str, sid: int, message_id: str) -> Message | None:
    """Return one steering message."""
    row = one(database, sql("message"), (sid, pack_id(message_id)))
    return None if row is None else to_message(row)


def _hold(database: Database, _: str, sid: int, hold_id: str) -> Hold | None:
    row = one(database, sql("hold"), (sid, pack_id(hold_id)))
    return None if row is None else to_hold(row)


def find_key(database: Database, scope: tuple[str, str, str]) -> str | None:
    """Return the id of the session that has a key."""
    row = one(database, sql("find_key"), scope)
    return unpack_known(row[0]) if row else None


def _output_seq(database: Database, _: str, sid: int, key: tuple[int, int, int]) -> int | None:
    turn, op, started_seq = key
    bounds = (position(sid, started_seq), position(sid, LARGEST_NUMBER))
    row = one(database, sql("output_position"), (*bounds, turn, op))
    return None if row is None else number_of(row[0])


def _step(database: Database, _: str, sid: int, key: tuple[int, str]) -> Step | None:
    turn, name = key
    row = one(database, sql("step"), (position(sid, turn), name))
    return None if row is None else records.to_step(turn, *row)


def _memo(database: Database, _: str, sid: int, key: tuple[int, str]) -> bytes | None:
    turn, name = key
    row = one(database, sql("memo"), (position(sid, turn), name))
    return None if row is None else bytes(row[0])


_LOOK_UPS: Final[dict[str, Callable[[Database, str, int, Any], Any]]] = {
    "turn": _turn,
    "turn_id": turn_by_id,
    "queued": _queued,
    "queued_seq": _queued_seq,
    "ask": ask,
    "message": message,
    "hold": _hold,
    "key": lambda database, _, __, key: find_key(database, key),
    "output_seq": _output_seq,
    "step": _step,
    "memo": _memo,
}
