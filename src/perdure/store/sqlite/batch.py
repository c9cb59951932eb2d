"""Commands that share one commit: decided one after the other, each against what those before it did."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from perdure.crashpoints import CrashPointReached, reach
from perdure.errors import IdempotencyConflict, PerdureError, StoreError
from perdure.records.canonical import digest
from perdure.records.sessions import SessionHead
from perdure.rules.commands import Command, CreateSession, Idempotency
from perdure.rules.decide import decide
from perdure.rules.decision import ClearLive, Decision, Found, Needs, PutLive
from perdure.store.port import Applied, Committed
from perdure.store.sqlite.codec import pack_id, unpack_head
from perdure.store.sqlite.lookups import find_key, look_up
from perdure.store.sqlite.rows import Rows
from perdure.store.sqlite.statements import sql


class Entry(msgspec.Struct):
    """A session as the writer knows it: its number, its head, and whether it has live slots."""

    sid: int
    head: SessionHead
    live: bool


class Outcome(msgspec.Struct):
    """What becomes of one command once the commit that it shares is flushed."""

    answer: Applied | PerdureError
    committed: Committed | None = None


class Batch:
    """One transaction in the making. `entries` are the sessions as they will be when it is committed."""

    def __init__(
        self, database: sqlite3.Connection, known: Mapping[str, Entry], next_sid: int, clock: Callable[[], int]
    ) -> None:
        self._database = database
        self._known = known
        self._clock = clock
        self.next_sid = next_sid
        self.entries: dict[str, Entry] = {}
        self.rows = Rows()
        self._receipts: dict[bytes, tuple[bytes, bytes]] = {}
        self._keys: dict[Any, str] = {}

    def add(self, command: Command) -> Outcome:
        """Decide one command and gather its rows; a refusal is an outcome and leaves no trace."""
        label = type(command).__name__
        try:
            reach("store.decide.before", label)
            outcome = self._replayed(command) or self._decide(command)
        except PerdureError as refusal:
            return Outcome(refusal)
        except CrashPointReached as error:
            return Outcome(StoreError(f"{error}. Nothing was changed."))
        return outcome

    # --- idempotency

    def _replayed(self, command: Command) -> Outcome | None:
        if command.idempotency is None:
            return None
        scope, request = _digests(command.idempotency)
        first = self._receipts.get(scope) or self._database.execute(sql("find_receipt"), (scope,)).fetchone()
        if first is None:
            return None
        if first[0] != request:
            raise IdempotencyConflict(command.idempotency.key)
        entry = self._entry(command.session_id)
        return Outcome(Applied(first[1], entry.head if entry else None, replayed=True))

    def _remember(self, idempotency: Idempotency, receipt: Any) -> None:
        if not isinstance(receipt, bytes):
            raise TypeError(f"the receipt of a command with an idempotency key is bytes, not {type(receipt).__name__}")
        scope, request = _digests(idempotency)
        self._receipts[scope] = (request, receipt)
        self.rows.receipts.append((scope, request, receipt))

    # --- deciding

    def _decide(self, command: Command) -> Outcome:
        entry = None if isinstance(command, CreateSession) else self._entry(command.session_id)
        now = self._clock()
        made = self._ask_rule(entry, command, now)
        reach("store.decide.after", type(command).__name__)
        if command.idempotency is not None:
            self._remember(command.idempotency, made.receipt)
        if not made.writes:
            return Outcome(Applied(made.receipt, made.head))
        live = self._write(entry, made, now)
        committed = Committed(made.head, command, made.events, made.started, live)
        return Outcome(Applied(made.receipt, made.head), committed)

    def _ask_rule(self, entry: Entry | None, command: Command, now: int) -> Decision:
        found: Found = {}
        while True:
            try:
                return decide(entry.head if entry else None, command, now, found)
            except Needs as needs:
                found[needs.kind, needs.key] = self._look_up(entry, needs)

    def _look_up(self, entry: Entry | None, needs: Needs) -> Any:
        if needs.kind == "key":
            return self._keys.get(needs.key) or find_key(self._database, needs.key)
        assert entry is not None
        self.rows.write(self._database)
        return look_up(self._database, entry.head.id, entry.sid, needs.kind, needs.key)

    def _entry(self, session_id: str) -> Entry | None:
        return self.entries.get(session_id) or self._known.get(session_id) or self._load(session_id)

    def _load(self, session_id: str) -> Entry | None:
        row = self._database.execute(sql("load_head"), (pack_id(session_id),)).fetchone()
        if row is None:
            return None
        entry = Entry(row[0], unpack_head(row[1]), bool(row[2]))
        self.entries[session_id] = entry
        return entry

    # --- writing

    def _write(self, entry: Entry | None, made: Decision, now: int) -> bool:
        """Gather the rows of a decision; returns whether live slots change."""
        head = made.head
        if entry is None:
            sid, self.next_sid = self.next_sid, self.next_sid + 1
            if head.key is not None:
                self._keys[head.environment, head.agent, head.key] = head.id
        else:
            sid = entry.sid
        self.rows.add(sid, entry.head if entry else None, made)
        had = entry is not None and entry.live
        has, changed = self._write_live(sid, made, now, had)
        self.entries[head.id] = Entry(sid, head, has)
        return changed

    def _write_live(self, sid: int, made: Decision, now: int, has: bool) -> tuple[bool, bool]:
        changed = False
        for change in made.changes:
            if type(change) is PutLive:
                row = (sid, change.slot, change.turn, now, change.content_json)
                self.rows.others.append((sql("put_live"), row))
                has = changed = True
            elif type(change) is ClearLive and has:
                self.rows.others.append((sql("clear_live"), (sid,)))
                has, changed = False, True
        return has, changed


def _digests(idempotency: Idempotency) -> tuple[bytes, bytes]:
    return digest(idempotency.scope), digest(idempotency.request)
