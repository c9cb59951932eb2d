"""The rows of one transaction: gathered while commands are decided, written statement by statement."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from perdure.records.sessions import SessionHead
from perdure.rules import decision as rule
from perdure.rules.decision import Decision
from perdure.rules.dispatch import needs_owner, wake_at
from perdure.store.sqlite.codec import STATUS_NUMBERS, pack_head, pack_id, pack_type, position
from perdure.store.sqlite.statements import sql

Row: TypeAlias = tuple[Any, ...]
_RUNNING: Final = STATUS_NUMBERS["running"]
_QUEUED: Final = STATUS_NUMBERS["queued"]


class Rows:
    """Rows to write. `others` are the seldom ones, kept in the order in which they were decided."""

    def __init__(self) -> None:
        self.sessions: list[Row] = []
        self.heads: dict[int, SessionHead] = {}
        self.columns: dict[int, Row] = {}
        self.events: list[Row] = []
        self.turns: dict[int, Row] = {}
        self.started: list[Row] = []
        self.ended: list[Row] = []
        self.receipts: list[Row] = []
        self.others: list[tuple[str, Row]] = []

    def add(self, sid: int, before: SessionHead | None, made: Decision) -> None:
        """Take over what a decision writes."""
        head = made.head
        for event in made.events:
            row = (sid << 32 | event.seq, pack_type(event.type), event.at, event.turn, event.run, event.op, event.data)
            self.events.append(row)
        for change in made.changes:
            _ADD[type(change)](self, sid, change, head)
        self._add_head(sid, before, head)

    def _add_head(self, sid: int, before: SessionHead | None, head: SessionHead) -> None:
        self.heads[sid] = head
        columns = _columns(head)
        if before is None:
            self.sessions.append((sid, pack_id(head.id), head.environment, head.agent, head.key, *columns))
        elif columns != _columns(before):
            self.columns[sid] = (sid, *columns)

    def write(self, database: sqlite3.Connection) -> None:
        """Write all rows and forget them."""
        if self.sessions:
            database.executemany(sql("insert_session"), self.sessions)
        if self.columns:
            database.executemany(sql("update_session"), self.columns.values())
        if self.heads:
            bodies = [(sid, pack_head(head)) for sid, head in self.heads.items()]
            database.executemany(sql("put_head"), bodies)
        if self.events:
            database.executemany(sql("insert_event"), self.events)
        if self.turns:
            database.executemany(sql("insert_turn"), self.turns.values())
        if self.started:
            database.executemany(sql("start_turn"), self.started)
        if self.ended:
            database.executemany(sql("end_turn"), self.ended)
        if self.receipts:
            database.executemany(sql("insert_receipt"), self.receipts)
        for statement, row in self.others:
            database.execute(statement, row)
        self.__init__()  # type: ignore[misc]


def _columns(head: SessionHead) -> Row:
    return (head.status, wake_at(head), int(needs_owner(head)))


def _insert_turn(rows: Rows, sid: int, change: rule.InsertTurn, _: SessionHead) -> None:
    pos = position(sid, change.number)
    rows.turns[pos] = (pos, pack_id(change.id), _QUEUED, change.queued_seq, change.created_at, None, None)


def _start_turn(rows: Rows, sid: int, change: rule.TurnStarted, _: SessionHead) -> None:
    pos = position(sid, change.number)
    waiting = rows.turns.get(pos)
    if waiting is None:
        rows.started.append((pos, _RUNNING, change.run, change.at))
    else:
        rows.turns[pos] = (*waiting[:2], _RUNNING, *waiting[3:5], change.run, change.at)


def _end_turn(rows: Rows, sid: int, change: rule.TurnEnded, _: SessionHead) -> None:
    pos = position(sid, change.number)
    rows.ended.append((pos, STATUS_NUMBERS[change.status], change.ended_seq, change.at, change.reason))


def _put_run(rows: Rows, sid: int, change: rule.PutRun, _: SessionHead) -> None:
    run = change.run
    row = (position(sid, run.number), pack_id(run.id), run.recovery, pack_id(run.deployment), run.started_at)
    rows.others.append((sql("put_run"), (*row, run.ended_at, run.end_reason)))


def _end_run(rows: Rows, sid: int, change: rule.EndRun, _: SessionHead) -> None:
    rows.others.append((sql("end_run"), (position(sid, change.number), change.at, change.reason)))


def _put_hold(rows: Rows, sid: int, change: rule.PutHold, _: SessionHead) -> None:
    hold = change.hold
    issuer = hold.issuer
    row = (sid, pack_id(hold.id), hold.reason, issuer.kind, issuer.id, hold.message, hold.created_at, hold.released_at)
    rows.others.append((sql("put_hold"), row))


def _put_ask(rows: Rows, sid: int, change: rule.PutAsk, _: SessionHead) -> None:
    ask = change.ask
    responder = (ask.responder.kind, ask.responder.id) if ask.responder else (None, None)
    row = (sid, pack_id(ask.id), ask.turn, ask.status, ask.created_at, ask.ended_at, ask.response_id, *responder)
    rows.others.append((sql("put_ask"), (*row, ask.control_json, ask.prompt_json, ask.answer_json)))


def _end_ask(rows: Rows, sid: int, change: rule.EndAsk, _: SessionHead) -> None:
    rows.others.append((sql("end_ask"), (sid, pack_id(change.id), change.at)))


def _put_message(rows: Rows, sid: int, change: rule.PutMessage, _: SessionHead) -> None:
    told = change.message
    row = (sid, pack_id(told.id), told.turn, told.status, told.created_at, told.reason, told.content_json)
    rows.others.append((sql("put_message"), row))


def _end_message(rows: Rows, sid: int, change: rule.EndMessage, _: SessionHead) -> None:
    rows.others.append((sql("end_message"), (sid, pack_id(change.id), change.reason)))


def _skip(rows: Rows, sid: int, change: rule.Change, head: SessionHead) -> None:
    """Live slots are the batch's business, which knows whether there are any and what time it is."""


_ADD: Final[dict[type, Callable[[Rows, int, Any, SessionHead], None]]] = {
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
    rule.PutLive: _skip,
    rule.ClearLive: _skip,
}
