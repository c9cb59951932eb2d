"""The rows of one transaction: gathered while commands are decided, sent as one statement a table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from perdure.records.sessions import SessionHead
from perdure.rules import decision as rule
from perdure.rules.decision import Decision
from perdure.store.batch import Columns
from perdure.store.codec import pack_head
from perdure.store.postgres.arrays import Kind, array, arrays, uuid_bytes
from perdure.store.postgres.database import Statement
from perdure.store.postgres.statements import sql

_Key = tuple[str, int]
_SESSION: Final[tuple[Kind, ...]] = ("uuid", "text", "text", "text", "text", "int8", "bool", "int8", "text", "text")
_COLUMNS: Final[tuple[Kind, ...]] = ("uuid", "text", "int8", "bool", "int8", "text", "text")
_HEAD: Final[tuple[Kind, ...]] = ("uuid", "bool", "bytea", "int8")
_EVENT: Final[tuple[Kind, ...]] = ("uuid", "int8", "text", "int8", "int4", "int4", "int4", "bytea")
_NEW_TURN: Final[tuple[Kind, ...]] = ("uuid", "int4", "uuid", "text", "int8", "int8")
_TURN: Final[tuple[Kind, ...]] = (*_NEW_TURN, "int4", "int8", "int8", "int8", "text")
_STARTED: Final[tuple[Kind, ...]] = ("uuid", "int4", "int4", "int8")
_ENDED: Final[tuple[Kind, ...]] = ("uuid", "int4", "text", "int8", "int8", "text")
_RECEIPT: Final[tuple[Kind, ...]] = ("bytea", "bytea", "bytea", "text", "int8")
_RANGE: Final[tuple[Kind, ...]] = ("uuid", "int8", "int8")
_LIVE: Final[tuple[Kind, ...]] = ("uuid", "text", "int4", "int8", "bytea")


class Rows:
    """Rows to write. `others` are the seldom ones, kept in the order in which they were decided.

    Rows of one key are merged, because one statement may touch a row only once.
    """

    def __init__(self) -> None:
        self.size = 0
        self._ends: dict[str, list[Any]] = {}
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self.sessions: dict[str, list[Any]] = {}
        self.columns: dict[str, Sequence[Any]] = {}
        self.heads: dict[str, SessionHead] = {}
        self.live: dict[str, bool] = {}
        self.events: list[Sequence[Any]] = []
        self.turns: dict[_Key, list[Any]] = {}
        self.started: dict[_Key, Sequence[Any]] = {}
        self.ended: dict[_Key, Sequence[Any]] = {}
        self.receipts: list[tuple[bytes, bytes, bytes, str, int]] = []
        self.cleared: set[str] = set()
        self.slots: dict[tuple[str, str], Sequence[Any]] = {}
        self.others: list[Statement] = []

    def add(self, sid: str, made: Decision, before: Columns | None, after: Columns) -> None:
        """Take over what a decision writes; `before` and `after` are the session's indexed columns."""
        for event in made.events:
            row = (sid, event.seq, event.type, event.at, event.turn, event.run, event.op, event.data)
            self.events.append(row)
            self.size += len(event.data)
        if made.events:
            self._note(sid, made)
        for change in made.changes:
            if (take := _TAKE.get(type(change))) is not None:
                take(self, sid, change)
        self.heads[sid] = made.head
        self._add_columns(sid, made.head, before, after)

    def _note(self, sid: str, made: Decision) -> None:
        """Note what the feed will tell of."""
        last = made.events[-1]
        if sid in self._ends:
            self._ends[sid][2:] = last.seq, last.at
        else:
            self._ends[sid] = [made.head.environment, made.events[0].seq, last.seq, last.at]

    def _add_columns(self, sid: str, head: SessionHead, before: Columns | None, after: Columns) -> None:
        if before is None:
            self.sessions[sid] = [sid, head.environment, head.agent, head.key, *after]
        elif before != after and sid in self.sessions:
            self.sessions[sid][4:] = after
        elif before != after:
            self.columns[sid] = (sid, *after)

    def remember(self, scope: bytes, asked: bytes, receipt: bytes, environment: str, now: int) -> None:
        """Take over a receipt."""
        self.receipts.append((scope, asked, receipt, environment, now))

    def put_live(self, sid: str, change: rule.PutLive, now: int) -> None:
        """Take over a live slot."""
        self.slots[sid, change.slot] = (sid, change.slot, change.turn, now, change.content_json)
        self.live[sid] = True
        self.size += len(change.content_json)

    def clear_live(self, sid: str) -> None:
        """Take over that a session's live slots go."""
        for key in [key for key in self.slots if key[0] == sid]:
            del self.slots[key]
        self.cleared.add(sid)
        self.live[sid] = False

    def commits(self, mark: int) -> list[Statement]:
        """Return what puts all that was ever gathered here into the feed, and is to be written last."""
        made: list[Statement] = []
        for environment in {ends[0] for ends in self._ends.values()}:
            ranges = [(sid, *ends[1:]) for sid, ends in self._ends.items() if ends[0] == environment]
            *columns, at = zip(*ranges, strict=True)
            packed = [array(kind, column) for kind, column in zip(_RANGE, columns, strict=True)]
            made.append((sql("insert_commit"), (environment, mark, max(at), *packed)))
        return made

    def statements(self, has_live: Callable[[str], bool], mark: int) -> list[Statement]:
        """Return what writes all rows, and forget them. `has_live` tells which sessions have live slots now.

        `mark` is the least that this commit may have in the feed.

        Keys that others may be about to take come in one order everywhere, so that nobody waits in a circle. Raises
        ValueError and others for a value that its column cannot hold.
        """
        heads = [(sid, has_live(sid), pack_head(head), head.last_seq) for sid, head in self.heads.items()]
        made = [
            _table("insert_sessions", _SESSION, sorted(self.sessions.values(), key=_by_key)),
            _table("update_sessions", _COLUMNS, self.columns.values()),
            (sql("put_heads"), [*arrays(_HEAD, heads), mark]) if heads else None,
            _table("insert_events", _EVENT, self.events),
            _table("insert_turns", _TURN, self.turns.values()),
            _table("start_turns", _STARTED, self.started.values()),
            _table("end_turns", _ENDED, self.ended.values()),
            _cleared(self.cleared),
            _table("put_live", _LIVE, self.slots.values()),
            _table("insert_receipts", _RECEIPT, sorted(self.receipts)),
        ]
        found = [statement for statement in made if statement is not None] + self.others
        self.clear()
        return found


def _by_key(row: Sequence[Any]) -> tuple[str, str, str]:
    return row[1], row[3] or "", row[2]


def _table(name: str, kinds: Sequence[Kind], rows: Collection[Sequence[Any]]) -> Statement | None:
    return (sql(name), arrays(kinds, rows)) if rows else None


def _cleared(sessions: set[str]) -> Statement | None:
    return (sql("clear_live"), [array("uuid", sorted(sessions))]) if sessions else None


def _insert_turn(rows: Rows, sid: str, change: rule.InsertTurn) -> None:
    queued = [sid, change.number, change.id, "queued", change.queued_seq, change.created_at]
    rows.turns[sid, change.number] = [*queued, None, None, None, None, None]


def _start_turn(rows: Rows, sid: str, change: rule.TurnStarted) -> None:
    waiting = rows.turns.get((sid, change.number))
    if waiting is None:
        rows.started[sid, change.number] = (sid, change.number, change.run, change.at)
    else:
        waiting[3], waiting[6], waiting[7] = "running", change.run, change.at


def _end_turn(rows: Rows, sid: str, change: rule.TurnEnded) -> None:
    new = rows.turns.get((sid, change.number))
    ended = (change.ended_seq, change.at, change.reason)
    if new is None:
        rows.ended[sid, change.number] = (sid, change.number, change.status, *ended)
    else:
        new[3], new[8:] = change.status, ended


def _put_run(rows: Rows, sid: str, change: rule.PutRun) -> None:
    run = change.run
    uuid_bytes(run.id)
    row = (sid, run.number, run.id, run.recovery, run.deployment, run.started_at, run.ended_at, run.end_reason)
    rows.others.append((sql("put_run"), row))


def _end_run(rows: Rows, sid: str, change: rule.EndRun) -> None:
    rows.others.append((sql("end_run"), (sid, change.number, change.at, change.reason)))


def _put_hold(rows: Rows, sid: str, change: rule.PutHold) -> None:
    hold = change.hold
    uuid_bytes(hold.id)
    message = None if hold.message is None else hold.message.encode()
    row = (sid, hold.id, hold.reason, hold.issuer.kind, hold.issuer.id, message, hold.created_at, hold.released_at)
    rows.others.append((sql("put_hold"), row))


def _put_ask(rows: Rows, sid: str, change: rule.PutAsk) -> None:
    ask = change.ask
    uuid_bytes(ask.id)
    responder = (ask.responder.kind, ask.responder.id) if ask.responder else (None, None)
    row = (sid, ask.id, ask.turn, ask.status, ask.created_at, ask.ended_at, ask.response_id, *responder)
    rows.others.append((sql("put_ask"), (*row, ask.control_json, ask.prompt_json, ask.answer_json)))


def _end_ask(rows: Rows, sid: str, change: rule.EndAsk) -> None:
    rows.others.append((sql("end_ask"), (sid, change.id, change.at)))


def _put_message(rows: Rows, sid: str, change: rule.PutMessage) -> None:
    told = change.message
    uuid_bytes(told.id)
    row = (sid, told.id, told.turn, told.status, told.created_at, told.reason, told.content_json)
    rows.others.append((sql("put_message"), row))


def _end_message(rows: Rows, sid: str, change: rule.EndMessage) -> None:
    rows.others.append((sql("end_message"), (sid, change.id, change.reason)))


def _put_step(rows: Rows, sid: str, change: rule.PutStep) -> None:
    step = change.step
    row = (sid, step.turn, step.name.encode(), step.replay, step.status, step.request, step.run, step.attempts)
    rows.others.append((sql("put_step"), (*row, step.started_at, step.ended_seq)))


def _put_memo(rows: Rows, sid: str, change: rule.PutMemo) -> None:
    rows.others.append((sql("put_memo"), (sid, change.turn, change.name.encode(), change.value_json)))
    rows.size += len(change.value_json)


# Live slots are not here: they are the batch's business, which knows whether a session has any.
_TAKE: Final[dict[type, Callable[[Rows, str, Any], None]]] = {
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
