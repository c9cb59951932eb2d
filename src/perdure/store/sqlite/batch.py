"""Commands that share one commit: decided one after the other, each against what those before it did.

Deciding reads nothing from the disk. A command that has to see something that is not in memory says so with `MustRead`;
the writer reads it in its thread, inside the same transaction, and the command is decided then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from perdure.crashpoints import CrashPointReached, reach
from perdure.errors import IdempotencyConflict, PerdureError, StoreError
from perdure.records.canonical import digest
from perdure.records.sessions import SessionHead
from perdure.rules.commands import Command, CreateSession
from perdure.rules.decide import decide
from perdure.rules.decision import ClearLive, Decision, Found, Needs, PutLive
from perdure.store.port import Applied, Committed
from perdure.store.sqlite.codec import pack_id, unpack_head
from perdure.store.sqlite.database import Database, Row, one
from perdure.store.sqlite.lookups import find_key, look_up
from perdure.store.sqlite.rows import Rows, columns
from perdure.store.sqlite.statements import sql

_PUT_LIVE: Final = sql("put_live")
_CLEAR_LIVE: Final = sql("clear_live")
_FIND_RECEIPT: Final = sql("find_receipt")
_LOAD_HEAD: Final = sql("load_head")

Thing: TypeAlias = tuple[str, Any]
"""Something in the database: `("session", id)`, `("receipt", scope)`, `("key", …)` or a row that a rule needs."""


Mark: TypeAlias = tuple[dict[str, "Entry"], dict[Thing, Any], int]


class MustRead(Exception):
    """Raised when a command cannot be decided before things are read."""

    def __init__(self, things: list[Thing]) -> None:
        super().__init__(things)
        self.things = things


class Entry(msgspec.Struct):
    """A session as the writer knows it: its number, head and indexed columns, and whether it has live slots."""

    sid: int
    head: SessionHead
    columns: Row
    live: bool


class Outcome(msgspec.Struct):
    """What becomes of one command once the commit that it shares is flushed."""

    answer: Applied | PerdureError
    committed: Committed | None = None


class Request:
    """A command on its way through a batch, with the rows that its rule asked for."""

    __slots__ = ("command", "digests", "found", "label")

    def __init__(self, command: Command) -> None:
        self.command = command
        self.label = type(command).__name__
        self.found: Found = {}
        identity = command.idempotency
        self.digests = None if identity is None else (digest(identity.scope), digest(identity.request))


class Batch:
    """One transaction in the making. `entries` are the sessions as they will be when it is committed."""

    def __init__(self, known: Mapping[str, Entry], next_sid: int, clock: Callable[[], int]) -> None:
        self._known = known
        self._clock = clock
        self.next_sid = next_sid
        self.entries: dict[str, Entry] = {}
        self.rows = Rows()
        self._read: dict[Thing, Any] = {}

    def add(self, request: Request) -> Outcome:
        """Decide one command and gather its rows; a refusal is an outcome and leaves no trace.

        Raises `MustRead` before anything has happened.
        """
        try:
            self._check_read(request)
            reach("store.decide.before", request.label)
            return self._replayed(request) or self._decide(request)
        except PerdureError as refusal:
            return Outcome(refusal)
        except CrashPointReached as error:
            return Outcome(StoreError(f"{error}. Nothing was changed."))

    def mark(self) -> Mark:
        """Return what `back_to` needs to take back commands that are added from here on."""
        return self.entries.copy(), self._read.copy(), self.next_sid

    def back_to(self, mark: Mark) -> None:
        """Take back the commands since a mark."""
        self.entries, self._read, self.next_sid = mark[0].copy(), mark[1].copy(), mark[2]
        self.rows = Rows()

    # --- what has to be in memory

    def _check_read(self, request: Request) -> None:
        command = request.command
        missing: list[Thing] = []
        if request.digests is not None and ("receipt", request.digests[0]) not in self._read:
            missing.append(("receipt", request.digests[0]))
        if not isinstance(command, CreateSession):
            session_id = command.session_id
            if session_id not in self.entries and session_id not in self._known:
                missing += [thing for thing in [("session", session_id)] if thing not in self._read]
        elif command.key is not None:
            key = (command.environment, command.agent, command.key)
            missing += [thing for thing in [("key", key)] if thing not in self._read]
        if missing:
            raise MustRead(missing)

    def read(self, database: Database, request: Request, things: list[Thing]) -> None:
        """Read things for a command. Rows gathered so far must have been written."""
        for thing in things:
            kind, key = thing
            if kind == "receipt":
                self._read[thing] = one(database, _FIND_RECEIPT, (key,))
            elif kind == "key":
                self._read[thing] = find_key(database, key)
            elif kind == "session":
                self._load(database, key)
            else:
                entry = self._entry(request.command.session_id)
                assert entry is not None
                request.found[thing] = look_up(database, entry.head.id, entry.sid, kind, key)

    def _load(self, database: Database, session_id: str) -> None:
        row = one(database, _LOAD_HEAD, (pack_id(session_id),))
        if row is None:
            self._read["session", session_id] = None
        elif session_id not in self.entries:
            head = unpack_head(row[1])
            self.entries[session_id] = Entry(row[0], head, columns(head), bool(row[2]))

    def _entry(self, session_id: str) -> Entry | None:
        return self.entries.get(session_id) or self._known.get(session_id)

    # --- deciding

    def _replayed(self, request: Request) -> Outcome | None:
        if request.digests is None:
            return None
        scope, asked = request.digests
        first = self._read["receipt", scope]
        if first is None:
            return None
        if first[0] != asked:
            assert request.command.idempotency is not None
            raise IdempotencyConflict(request.command.idempotency.key)
        entry = self._entry(request.command.session_id)
        return Outcome(Applied(first[1], entry.head if entry else None, replayed=True))

    def _decide(self, request: Request) -> Outcome:
        command = request.command
        entry = None if isinstance(command, CreateSession) else self._entry(command.session_id)
        now = self._clock()
        made = self._ask_rule(entry, request, now)
        reach("store.decide.after", request.label)
        self._remember(request, made.receipt)
        if not made.writes:
            return Outcome(Applied(made.receipt, made.head))
        live = self._write(entry, made, now)
        committed = Committed(made.head, command, made.events, made.started, live)
        return Outcome(Applied(made.receipt, made.head), committed)

    def _ask_rule(self, entry: Entry | None, request: Request, now: int) -> Decision:
        found = request.found
        if isinstance(request.command, CreateSession):
            key = (request.command.environment, request.command.agent, request.command.key)
            found["key", key] = self._read.get(("key", key))
        try:
            return decide(entry.head if entry else None, request.command, now, found)
        except Needs as needs:
            raise MustRead([(needs.kind, needs.key)]) from None

    def _remember(self, request: Request, receipt: Any) -> None:
        if request.digests is None:
            return
        if not isinstance(receipt, bytes):
            raise TypeError(f"the receipt of {request.label} with an idempotency key is not bytes")
        scope, asked = request.digests
        self._read["receipt", scope] = (asked, receipt)
        self.rows.receipts.append((scope, asked, receipt))

    # --- writing

    def _write(self, entry: Entry | None, made: Decision, now: int) -> bool:
        """Gather the rows of a decision; returns whether live slots change."""
        head = made.head
        after = columns(head)
        if entry is None:
            sid, self.next_sid = self.next_sid, self.next_sid + 1
            self._read["key", (head.environment, head.agent, head.key)] = head.id
            self.rows.add(sid, made, None, after)
        else:
            sid = entry.sid
            self.rows.add(sid, made, entry.columns, after)
        had = entry is not None and entry.live
        has, changed = self._write_live(sid, made, now, had)
        self.entries[head.id] = Entry(sid, head, after, has)
        return changed

    def _write_live(self, sid: int, made: Decision, now: int, has: bool) -> tuple[bool, bool]:
        changed = False
        for change in made.changes:
            if type(change) is PutLive:
                row = (sid, change.slot, change.turn, now, change.content_json)
                self.rows.others.append((_PUT_LIVE, row))
                self.rows.size += len(change.content_json)
                has = changed = True
            elif has and type(change) is ClearLive:
                self.rows.others.append((_CLEAR_LIVE, (sid,)))
                has, changed = False, True
        return has, changed
