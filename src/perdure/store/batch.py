"""Commands that share one commit: decided one after the other, each against what those before it did.

Deciding reads nothing from the database. A command that has to see something that is not in memory says so with
`MustRead`; the writer reads it, inside the same transaction, and the command is decided then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from perdure.crashpoints import CrashPointReached, reach
from perdure.errors import IdempotencyConflict, PerdureError, StoreError
from perdure.records.canonical import digest
from perdure.records.sessions import ActiveTurn, SessionHead
from perdure.rules.commands import Command, CreateSession
from perdure.rules.decide import decide
from perdure.rules.decision import ClearLive, Decision, Found, Needs, PutLive
from perdure.store.codec import columns
from perdure.store.port import Applied, Committed

Columns: TypeAlias = tuple[Any, ...]
Thing: TypeAlias = tuple[str, Any]
"""Something in the database: `("session", id)`, `("receipt", scope)`, `("key", …)` or a row that a rule needs."""


class MustRead(Exception):
    """Raised when a command cannot be decided before things are read."""

    def __init__(self, things: list[Thing]) -> None:
        super().__init__(things)
        self.things = things


class Entry(msgspec.Struct):
    """A session as the writer knows it: its key in the tables, head, indexed columns, and whether it has live slots."""

    sid: Any
    head: SessionHead
    columns: Columns
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


def _ended(before: Entry | None, after: SessionHead) -> ActiveTurn | None:
    active = before.head.active if before is not None else None
    return active if active is not None and (after.active is None or after.active.id != active.id) else None


class Gathering(Protocol):
    """Rows on their way into the database. `sid` is what an engine keeps a session's rows under."""

    size: int

    def add(self, sid: Any, made: Decision, before: Columns | None, after: Columns) -> None:
        """Take over what a decision writes, but for live slots; `before` and `after` are the indexed columns."""

    def remember(self, scope: bytes, asked: bytes, receipt: bytes, environment: str, now: int) -> None:
        """Take over a receipt."""

    def put_live(self, sid: Any, change: PutLive, now: int) -> None:
        """Take over a live slot."""

    def clear_live(self, sid: Any) -> None:
        """Take over that a session's live slots go."""


R = TypeVar("R", bound=Gathering)


class Batch(ABC, Generic[R]):
    """One transaction in the making. `entries` are the sessions as they will be when it is committed."""

    def __init__(self, known: Mapping[str, Entry], rows: R, clock: Callable[[], int]) -> None:
        self._known = known
        self._clock = clock
        self.rows = rows
        self.entries: dict[str, Entry] = {}
        self._read: dict[Thing, Any] = {}

    @abstractmethod
    def _new_sid(self, made: SessionHead, /) -> Any:
        """Return what a new session's rows are kept under."""

    def _columns(self, head: SessionHead) -> Columns:
        """Return the indexed columns of a session that change."""
        return columns(head)

    def add(self, request: Request) -> Outcome:
        """Decide one command and gather its rows; a refusal is an outcome and leaves no trace.

        Raises `MustRead` before anything has happened. After any other exception the batch is of no use any more.
        """
        try:
            self._check_read(request)
            reach("store.decide.before", request.label)
            return self._replayed(request) or self._decide(request)
        except PerdureError as refusal:
            return Outcome(refusal)
        except CrashPointReached as error:
            return Outcome(StoreError(f"{error}. Nothing was changed."))

    # --- what has to be in memory

    def _check_read(self, request: Request) -> None:
        if missing := self.missing(request):
            raise MustRead(missing)

    def missing(self, request: Request) -> list[Thing]:
        """Return what must be read before a command can be decided at all."""
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
        return missing

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
        self._remember(request, made, now)
        if not made.writes:
            return Outcome(Applied(made.receipt, made.head))
        live = self._write(entry, made, now)
        committed = Committed(made.head, command, made.events, made.started, live, _ended(entry, made.head))
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

    def _remember(self, request: Request, made: Decision, now: int) -> None:
        if request.digests is None:
            return
        receipt = made.receipt
        if not isinstance(receipt, bytes):
            raise TypeError(f"the receipt of {request.label} with an idempotency key is not bytes")
        scope, asked = request.digests
        self._read["receipt", scope] = (asked, receipt)
        self.rows.remember(scope, asked, receipt, made.head.environment, now)

    # --- writing

    def _write(self, entry: Entry | None, made: Decision, now: int) -> bool:
        """Gather the rows of a decision; returns whether live slots change."""
        head = made.head
        after = self._columns(head)
        if entry is None:
            sid = self._new_sid(head)
            self._read["key", (head.environment, head.agent, head.key)] = head.id
            self.rows.add(sid, made, None, after)
        else:
            sid = entry.sid
            self.rows.add(sid, made, entry.columns, after)
        had = entry is not None and entry.live
        has, changed = self._write_live(sid, made, now, had)
        self.entries[head.id] = Entry(sid, head, after, has)
        return changed

    def _write_live(self, sid: Any, made: Decision, now: int, has: bool) -> tuple[bool, bool]:
        changed = False
        for change in made.changes:
            if type(change) is PutLive:
                self.rows.put_live(sid, change, now)
                has = changed = True
            elif has and type(change) is ClearLive:
                self.rows.clear_live(sid)
                has, changed = False, True
        return has, changed
