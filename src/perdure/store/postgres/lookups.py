"""The rows that rules ask to see: which statement finds each, and what its rows mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from perdure.store import records
from perdure.store.codec import is_canonical
from perdure.store.postgres.database import Row, Statement
from perdure.store.postgres.records import to_hold, to_queued, to_turn
from perdure.store.postgres.statements import sql


class LookUp(NamedTuple):
    """A statement, None when nothing can be found; and what its first row means to a rule."""

    statement: Statement | None
    meaning: Callable[[Row], Any]

    def result(self, rows: list[Row]) -> Any:
        """Return what the rule gets to see, or None."""
        return self.meaning(rows[0]) if rows else None


def look_up(session_id: str, kind: str, key: Any) -> LookUp:
    """Return how to find the row that a rule needs."""
    return _LOOK_UPS[kind](session_id, key)


def _by_id(name: str, meaning: Callable[[str, Row], Any]) -> Callable[[str, Any], LookUp]:
    def find(session_id: str, key: str) -> LookUp:
        statement = (sql(name), (session_id, key)) if is_canonical(key) else None
        return LookUp(statement, lambda row: meaning(session_id, row))

    return find


def _turn(session_id: str, number: int) -> LookUp:
    return LookUp((sql("turn"), (session_id, number)), lambda row: to_turn(session_id, row))


def _queued(session_id: str, number: int) -> LookUp:
    return LookUp((sql("turn"), (session_id, number)), to_queued)


def _queued_seq(session_id: str, number: int) -> LookUp:
    return LookUp((sql("queued_seq"), (session_id, number)), lambda row: row[0])


def _key(_: str, scope: tuple[str, str, str]) -> LookUp:
    return LookUp((sql("find_key"), scope), lambda row: row[0])


def _output_seq(session_id: str, key: tuple[int, int, int]) -> LookUp:
    turn, op, started_seq = key
    return LookUp((sql("output_position"), (session_id, started_seq, turn, op)), lambda row: row[0])


def _step(session_id: str, key: tuple[int, str]) -> LookUp:
    turn, name = key
    statement = (sql("step"), (session_id, turn, name.encode()))
    return LookUp(statement, lambda row: records.to_step(turn, bytes(row[0]).decode(), *row[1:]))


def _memo(session_id: str, key: tuple[int, str]) -> LookUp:
    turn, name = key
    return LookUp((sql("memo"), (session_id, turn, name.encode())), lambda row: bytes(row[0]))


_LOOK_UPS: Final[dict[str, Callable[[str, Any], LookUp]]] = {
    "turn": _turn,
    "turn_id": _by_id("turn_by_id", to_turn),
    "queued": _queued,
    "queued_seq": _queued_seq,
    "ask": _by_id("ask", lambda _, row: records.to_ask(*row)),
    "message": _by_id("message", lambda _, row: records.to_message(*row)),
    "hold": _by_id("hold", lambda _, row: to_hold(row)),
    "key": _key,
    "output_seq": _output_seq,
    "step": _step,
    "memo": _memo,
}
