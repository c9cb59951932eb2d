"""A batch on PostgreSQL: what its commands need is locked and read in one round trip, what it writes is sent in one.

Nothing that is remembered from an earlier commit is trusted, since other processes write to the same sessions: the
heads are locked and read anew in the transaction that writes. What is remembered only tells what to read with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from perdure.records.sessions import SessionHead
from perdure.rules.commands import WorkerCommand
from perdure.store import batch
from perdure.store.batch import Columns, Entry, Request, Thing
from perdure.store.codec import columns, is_canonical, unpack_head
from perdure.store.postgres.arrays import array
from perdure.store.postgres.database import Connection, Row, Statement, trip
from perdure.store.postgres.leases import ANYWHERE
from perdure.store.postgres.lookups import look_up
from perdure.store.postgres.rows import Rows
from perdure.store.postgres.statements import sql

_Wanted = Sequence[tuple[Request, list[Thing]]]
_Take = Callable[[list[Row]], None]
_NOBODY: Final[dict[str, Entry]] = {}


class Batch(batch.Batch[Rows]):
    """One transaction in the making; `hints` are heads as they were at this process's newest commit to them."""

    def __init__(self, hints: Mapping[str, SessionHead], clock: Callable[[], int] | None) -> None:
        super().__init__(_NOBODY, Rows(), clock or self._database_now)
        self._hints = hints
        self._now = 0
        self._mark = 0

    def _database_now(self) -> int:
        return self._now

    def _new_sid(self, made: SessionHead, /) -> str:
        return made.id

    def _columns(self, head: SessionHead) -> Columns:
        worker = None if head.run is None else head.worker
        home = None if head.computer is None else head.computer.home
        return (*columns(head), head.ended_at, worker, home or ANYWHERE)

    async def begin(self, connection: Connection, opening: Sequence[Statement], requests: Sequence[Request]) -> None:
        """Begin the transaction, and lock and read what the commands need, in one round trip.

        The last of the opening statements returns the database's time, so it is sent last.
        """
        *first, clock = opening
        wanted = [(request, self.missing(request) + self._likely(request)) for request in requests]
        reads = self._reads(wanted)
        found = await trip(connection, [*first, *(statement for statement, _ in reads), clock])
        for (_, take), rows in zip(reads, found[len(first) : -1], strict=True):
            take(rows)
        self._now = found[-1][0][0]

    async def read_more(self, connection: Connection, wanted: _Wanted) -> bool:
        """Read what rules ask for, after writing what was gathered so far: a rule may look at what was just decided.

        Returns whether anything was written.
        """
        before = self._gathered()
        reads = self._reads(wanted)
        found = await trip(connection, [*before, *(statement for statement, _ in reads)])
        for (_, take), rows in zip(reads, found[len(before) :], strict=True):
            take(rows)
        return bool(before)

    def statements(self) -> list[Statement]:
        """Return what writes the rows that are left, and then all that was written into the feed."""
        return self._gathered() + self.rows.commits(self._mark)

    def _gathered(self) -> list[Statement]:
        return self.rows.statements(lambda sid: self.entries[sid].live, self._mark)

    def _likely(self, request: Request) -> list[Thing]:
        """Return what the rule will probably ask for: a turn's end starts the next one that waits."""
        head = self._hints.get(request.command.session_id)
        starts = isinstance(request.command, WorkerCommand) and request.command.start
        return [("queued", head.first_queued)] if head is not None and starts and head.queued else []

    # --- reading

    def _reads(self, wanted: _Wanted) -> list[tuple[Statement, _Take]]:
        """Return statements and who takes their rows: the locks first, so that all else is read under them."""
        things = {thing for _, asked in wanted for thing in asked}
        sessions = sorted(key for kind, key in things if kind == "session")
        reads = [
            self._heads(sessions),
            # Receipts last: whoever took a session key in the meantime has left his receipt too, and an operation that
            # was sent to two servers must see it rather than a conflict with itself.
            self._keys(sorted(key for kind, key in things if kind == "key")),
            self._receipts(sorted(key for kind, key in things if kind == "receipt")),
        ]
        return [read for read in reads if read is not None] + self._rows(wanted)

    def _heads(self, sessions: list[str]) -> tuple[Statement, _Take] | None:
        known = [session_id for session_id in sessions if is_canonical(session_id)]
        for session_id in sessions:
            self._read["session", session_id] = None
        return ((sql("lock_heads"), [array("uuid", known)]), self._take_heads) if known else None

    def _take_heads(self, rows: list[Row]) -> None:
        for session_id, body, live, mark in rows:
            head = unpack_head(body)
            # All that this commit has seen comes before it.
            self._mark = max(self._mark, mark + 1)
            self.entries[session_id] = Entry(session_id, head, self._columns(head), live)

    def _receipts(self, scopes: list[bytes]) -> tuple[Statement, _Take] | None:
        def take(rows: list[Row]) -> None:
            self._read.update({("receipt", scope): (asked, receipt) for scope, asked, receipt in rows})

        self._read.update({("receipt", scope): None for scope in scopes})
        return ((sql("find_receipts"), [array("bytea", scopes)]), take) if scopes else None

    def _keys(self, keys: list[tuple[str, str, str]]) -> tuple[Statement, _Take] | None:
        def take(rows: list[Row]) -> None:
            self._read.update({("key", tuple(scope)): found for *scope, found in rows})

        self._read.update({("key", key): None for key in keys})
        columns = zip(*keys, strict=True)
        return ((sql("find_keys"), [array("text", column) for column in columns]), take) if keys else None

    def _rows(self, wanted: _Wanted) -> list[tuple[Statement, _Take]]:
        return [
            read
            for request, things in wanted
            for thing in things
            if thing[0] not in ("session", "receipt", "key") and (read := self._row(request, thing)) is not None
        ]

    def _row(self, request: Request, thing: Thing) -> tuple[Statement, _Take] | None:
        look = look_up(request.command.session_id, *thing)

        def take(rows: list[Row]) -> None:
            request.found[thing] = look.result(rows)

        if look.statement is None:
            take([])
            return None
        return look.statement, take

    def _entry(self, session_id: str) -> Entry | None:
        return self.entries.get(session_id)
