"""The rows of one transaction: gathered while commands are decided, written statement by statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from perdure.records.sessions import SessionHead
from perdure.rules import decision as rule
from perdure.rules.decision import Decision
from perdure.store.codec import pack_head
from perdure.store.sqlite.codec import SHIFT, STATUS_NUMBERS, TYPE_NUMBERS, pack_id, position
from perdure.store.sqlite.database import Database, Row
from perdure.store.sqlite.feed import pack_ranges
from perdure.store.sqlite.statements import sql

_RUNNING: Final = STATUS_NUMBERS["running"]
_QUEUED: Final = STATUS_NUMBERS["queued"]

_INSERT_SESSION: Final = sql("insert_session")
_UPDATE_SESSION: Final = sql("update_session")
_PUT_HEAD: Final = sql("put_head")
_INSERT_EVENT: Final = sql("insert_event")
_PUT_COMMIT: Final = sql("put_commit")
_INSERT_TURN: Final = sql("insert_turn")
_START_TURN: Final = sql("start_turn")
_END_TURN: Final = sql("end_turn")
_INSERT_RECEIPT: Final = sql("insert_receipt")
_PUT_LIVE: Final = sql("put_live")
_CLEAR_LIVE: Final = sql("clear_live")


class Rows:
    """Rows to write. `others` are the seldom ones, kept in the order in which they were decided.

    `numbers` are those of the feed's commits to come. Of a head only the newest counts, so sessions that commit twice
    in one transaction write one body.
    """

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self.size = 0
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self.sessions: list[Row] = []
        self.columns: dict[int, Row] = {}
        self.heads: dict[int, SessionHead] = {}
        self.events: list[Row] = []
        self.turns: dict[int, Row] = {}
        self.started: list[Row] = []
        self.ended: list[Row] = []
        self.receipts: list[Row] = []
        self.others: list[tuple[str, Row]] = []
        self.firsts: dict[int, int] = {}

    def add(self, sid: int, made: Decision, before: Row | None, after: Row) -> None:
        """Take over what a decision writes; `before` and `after` are the session's indexed columns."""
        head = made.head
        base = sid << SHIFT
        for event in made.events:
            kind = TYPE_NUMBERS.get(event.type, event.type)
            self.events.append((base | event.seq, kind, event.at, event.turn, event.run, event.op, event.data))
            self.size += len(event.data)
        if made.events and sid not in self.firsts:
            self.firsts[sid] = made.events[0].seq
        for change in made.changes:
            if (take := _TAKE.get(type(change))) is not None:
                take(self, sid, change)
        self.heads[sid] = head
        if before is None:
            self.sessions.append((sid, pack_id(head.id), head.environment, head.agent, head.key, *after))
        elif before != after:
            self.columns[sid] = (sid, *after)

    def remember(self, scope: bytes, asked: bytes, receipt: bytes, environment: str, now: int) -> None:
        """Take over a receipt."""
        self.receipts.append((scope, asked, receipt, environment, now))

    def put_live(self, sid: int, change: rule.PutLive, now: int) -> None:
        """Take over a live slot."""
        self.others.append((_PUT_LIVE, (sid, change.slot, change.turn, now, change.content_json)))
        self.size += len(change.content_json)

    def clear_live(self, sid: int) -> None:
        """Take over that a session's live slots go."""
        self.others.append((_CLEAR_LIVE, (sid,)))

    def write(self, database: Database) -> None:
        """Write all rows, and forget them."""
        if self.heads:
            self._write_heads(database)
        if self.events:
            database.executemany(_INSERT_EVENT, self.events)
            self._write_feed(database)
        if self.turns:
            database.executemany(_INSERT_TURN, self.turns.values())
        if self.started:
            database.executemany(_START_TURN, self.started)
        if self.ended:
            database.executemany(_END_TURN, self.ended)
        if self.receipts:
            database.executemany(_INSERT_RECEIPT, self.receipts)
        for statement, row in self.others:
            database.execute(statement, row)
        self.clear()

    def _write_feed(self, database: Database) -> None:
        ranges: dict[str, list[tuple[int, int, int]]] = {}
        for sid, first in self.firsts.items():
            head = self.heads[sid]
            ranges.setdefault(head.environment, []).append((sid, first, head.last_seq))
        at = self.events[-1][2]
        for environment, written in ranges.items():
            database.execute(_PUT_COMMIT, (environment, next(self._numbers), at, pack_ranges(written)))

    def _write_heads(self, database: Database) -> None:
        if self.sessions:
            database.executemany(_INSERT_SESSION, self.sessions)
        if self.columns:
            database.executemany(_UPDATE_SESSION, self.columns.values())
        database.executemany(_PUT_HEAD, [(sid, pack_head(head)) for sid, head in self.heads.items()])


def _insert_turn(rows: Rows, sid: int, change: rule.InsertTurn) -> None:
    pos = position(sid, change.number)
    rows.turns[pos] = (pos, pack_id(change.id), _QUEUED, change.queued_seq, change.created_at, None, None)


def _start_turn(rows: Rows, sid: int, change: rule.TurnStarted) -> None:
    pos = position(sid, change.number)
    waiting = rows.turns.get(pos)
    if waiting is None:
        rows.started.append((pos, _RUNNING, change.run, change.at))
    else:
        pos, turn_id, _, queued_seq, created_at, _, _ = waiting
        rows.turns[pos] = (pos, turn_id, _RUNNING, queued_seq, created_at, change.run, change.at)


def _end_turn(rows: Rows, sid: int, change: rule.TurnEnded) -> None:
    pos = position(sid, change.number)
    rows.ended.append((pos, STATUS_NUMBERS[change.status], change.ended_seq, change.at, change.reason))


def _put_run(rows: Rows, sid: int, change: rule.PutRun) -> None:
    run = change.run
    row = (position(sid, run.number), pack_id(run.id), run.recovery, pack_id(run.deployment), run.started_at)
    rows.others.append((sql("put_run"), (*row, run.ended_at, run.end_reason)))


def _end_run(rows: Rows, sid: int, change: rule.EndRun) -> None:
    rows.others.append((sql("end_run"), (position(sid, change.number), change.at, change.reason)))


def _put_hold(rows: Rows, sid: int, change: rule.PutHold) -> None:
    hold = change.hold
    issuer = hold.issuer
    row = (sid, pack_id(hold.id), hold.reason, issuer.kind, issuer.id, hold.message, hold.created_at, hold.released_at)
    rows.others.append((sql("put_hold"), row))


def _put_ask(rows: Rows, sid: int, change: rule.PutAsk) -> None:
    ask = change.ask
    responder = (ask.responder.kind, ask.responder.id) if ask.responder else (None, None)
    row = (sid, pack_id(ask.id), ask.turn, ask.status, ask.created_at, ask.ended_at, ask.response_id, *responder)
    rows.others.append((sql("put_ask"), (*row, ask.control_json, ask.prompt_json, ask.answer_json)))


def _end_ask(rows: Rows, sid: int, change: rule.EndAsk) -> None:
    rows.others.append((sql("end_ask"), (sid, pack_id(change.id), change.at)))


def _put_message(rows: Rows, sid: int, change: rule.PutMessage) -> None:
    told = change.message
    row = (sid, pack_id(told.id), told.turn, told.status, told.created_at, told.reason, told.content_json)
    rows.others.append((sql("put_message"), row))


def _end_message(rows: Rows, sid: int, change: rule.EndMessage) -> None:
    rows.others.append((sql("end_message"), (sid, pack_id(change.id), change.reason)))


def _put_step(rows: Rows, sid: int, change: rule.PutStep) -> None:
    step = change.step
    row = (position(sid, step.turn), step.name, step.replay, step.status, step.request, step.run, step.attempts)
    rows.others.append((sql("put_step"), (*row, step.started_at, step.ended_seq)))


def _put_memo(rows: Rows, sid: int, change: rule.PutMemo) -> None:
    rows.others.append((sql("put_memo"), (position(sid, change.turn), change.name, change.value_json)))
    rows.size += len(change.value_json)


# Live slots are not here: they are the batch's business, which knows whether a session has any.
_TAKE: Final[dict[type, Callable[[Rows, int, Any], None]]] = {
    rule.InsertTurn: _insert_turn,
    rule.TurnStarted: _start_turn,
    rule.TurnEnded: _end_turn,
    rule.PutRun: _put_run,
    rule.EndRun: _end_run,
    rule.PutHold: _put_hold,
    rule.PutAsk: _put_ask,
    rule.EndAsk: _end_ask,
    rule.PutMessage: _put_message,
    rule.EndMessage: _end_message,
    rule.PutStep: _put_step,
    rule.PutMemo: _put_memo,
}
