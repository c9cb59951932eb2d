"""What is in this engine's database, as rows that are the same for every engine; see `perdure.store.moving`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any, Final

from perdure.errors import BadRequest
from perdure.store.codec import columns, unpack_head
from perdure.store.moving import COUNTS, Row, Source, Target, page_of
from perdure.store.sqlite import schema
from perdure.store.sqlite.codec import (
    STATUS_NUMBERS,
    TURN_STATUSES,
    TYPE_NUMBERS,
    number_of,
    pack_id,
    position,
    unpack_id,
    unpack_known,
    unpack_type,
)
from perdure.store.sqlite.database import Database, one, open_reader, open_writer
from perdure.store.sqlite.failures import translate
from perdure.store.sqlite.feed import last_number, pack_ranges, unpack_ranges
from perdure.store.sqlite.folder import DataFolder
from perdure.store.sqlite.statements import sql

_MANY: Final = 500


class _Side:
    """What is the same for a store that is read from and for one that was written to."""

    database: Database | None = None

    def __init__(self, folder: str | Path) -> None:
        self.folder = DataFolder(Path(folder))
        self.where = str(self.folder.path)

    @property
    def _open(self) -> Database:
        assert self.database is not None
        return self.database

    async def close(self) -> None:
        """Undo what was not committed."""
        if self.database is not None:
            if self.database.in_transaction:
                self.database.execute("ROLLBACK")
            self.database.close()
            self.database = None
        self.folder.unlock()

    async def pages(self, kind: str) -> AsyncIterator[list[Row]]:
        """Yield all rows of a kind."""
        rows = _ROWS[kind](self._open)
        while page := list(islice(rows, page_of(kind))):
            yield page

    async def count(self, kind: str) -> int:
        """Return how many rows of a kind there are."""
        return sum(1 for _ in _commits(self._open)) if kind == "commits" else int(one(self._open, sql(COUNTS[kind]))[0])


class SqliteSource(_Side, Source):
    """A data folder that is read from. `alone`: nobody else may have it open."""

    def __init__(self, folder: str | Path, *, alone: bool = True) -> None:
        super().__init__(folder)
        self._alone = alone

    async def open(self) -> None:
        if not self.folder.database.exists():
            raise BadRequest(f"There is no store in {self.folder.path}. Nothing was changed; give its data folder.")
        schema.check_version(self.folder.database)
        if self._alone:
            self.folder.lock(None)
        try:
            if self._alone:
                migrating = open_writer(self.folder.database)
                schema.migrate(migrating)
                migrating.close()
            self.database = open_reader(self.folder.database)
            self.database.execute("BEGIN")
            schema.check_is_newest(self.database, self.folder.database)
        except Exception as error:
            await self.close()
            raise translate(error, self.folder.database) from error

    async def columns(self) -> AsyncIterator[list[Row]]:
        rows = _columns(self._open)
        while page := list(islice(rows, _MANY)):
            yield page


class SqliteTarget(_Side, Target):
    """A data folder that is written to, in one transaction."""

    def __init__(self, folder: str | Path) -> None:
        super().__init__(folder)
        self._sids: dict[str, int] = {}

    async def open(self) -> None:
        self.folder.lock(None)
        try:
            schema.check_version(self.folder.database)
            self.database = open_writer(self.folder.database)
            schema.migrate(self.database)
            # One transaction may be larger than the memory of the machine.
            self.database.execute("PRAGMA cache_spill = 1").fetchall()
            self.database.execute("BEGIN IMMEDIATE")
            self._next = count(1)
            self._numbers = count(last_number(self.database) + 1)
        except Exception as error:
            await self.close()
            raise translate(error, self.folder.database) from error

    async def put(self, kind: str, rows: Sequence[Row]) -> None:
        try:
            if kind == "sessions":
                self._put_sessions(rows)
            elif kind == "commits":
                self._put_commits(rows)
            else:
                name, pack = _PUTS[kind]
                self._open.executemany(sql(name), [pack(self._sids, row) for row in rows])
        except Exception as error:
            raise translate(error, self.folder.database) from error

    def _put_sessions(self, rows: Sequence[Row]) -> None:
        for session_id, body in rows:
            head = unpack_head(body)
            sid = self._sids[session_id] = next(self._next)
            values = (sid, pack_id(head.id), head.environment, head.agent, head.key, *columns(head), head.ended_at)
            self._open.execute(sql("insert_session"), values)
            self._open.execute(sql("put_head"), (sid, body))

    def _put_commits(self, rows: Sequence[Row]) -> None:
        for environment, at, ranges in rows:
            packed = pack_ranges((self._sids[session], first, last) for session, first, last in ranges)
            self._open.execute(sql("put_commit"), (environment, next(self._numbers), at, packed))

    async def commit(self) -> None:
        try:
            self._open.execute("COMMIT")
        except Exception as error:
            raise translate(error, self.folder.database) from error


# --- reading


def _keyed(name: str, first: Any, make: Callable[[Row], Row]) -> Callable[[Database], Iterator[Row]]:
    """Return a reader of a table by the first column, which is its key."""

    def read(database: Database) -> Iterator[Row]:
        after = first
        while page := _all(database, name, (after, page_of(name.removeprefix("move_")))):
            after = page[-1][0]
            yield from map(make, page)

    return read


def _all(database: Database, name: str, values: Row = ()) -> list[Row]:
    rows: list[Any] = database.execute(sql(name), values).fetchall()
    return rows


def _of_sessions(name: str, make: Callable[[Row], Row]) -> Callable[[Database], Iterator[Row]]:
    """Return a reader of what sessions have, in order of their ids."""

    def read(database: Database) -> Iterator[Row]:
        for session_id, _, sid in _sessions(database):
            for row in database.execute(sql(name), (sid,)):
                yield session_id, *make(row)

    return read


def _sessions(database: Database) -> Iterator[Row]:
    # Text sorts before bytes.
    after: bytes | str = ""
    while page := _all(database, "move_sessions", (after, _MANY)):
        after = page[-1][0]
        yield from ((unpack_id(found), body, sid) for found, body, sid in page)


def _columns(database: Database) -> Iterator[Row]:
    after: bytes | str = ""
    while page := _all(database, "move_columns", (after, _MANY)):
        after = page[-1][0]
        yield from ((unpack_id(row[0]), *row[1:]) for row in page)


def _logs(database: Database) -> Iterator[Row]:
    run: bytes | str = ""
    start = -1
    while page := _all(database, "move_logs", (run, start, page_of("logs"))):
        run, start, _ = page[-1]
        yield from ((unpack_id(row[0]), *row[1:]) for row in page)


def _commits(database: Database) -> Iterator[Row]:
    environment, number = "", 0
    while page := _all(database, "move_commits", (environment, number, _MANY)):
        environment, number = page[-1][:2]
        for row in page:
            known = ((one(database, sql("session_id"), (sid,)), *ends) for sid, *ends in unpack_ranges(row[3]))
            if ranges := tuple((unpack_id(found[0]), *ends) for found, *ends in known if found is not None):
                yield row[0], row[2], ranges


def _turn(row: Row) -> Row:
    pos, turn_id, status, *rest = row
    return number_of(pos), unpack_id(turn_id), TURN_STATUSES[status], *rest


def _run(row: Row) -> Row:
    pos, run_id, recovery, deployment, *rest = row
    return number_of(pos), unpack_id(run_id), recovery, unpack_id(deployment), *rest


def _by_id(row: Row) -> Row:
    return unpack_id(row[0]), *row[1:]


_ROWS: Final[dict[str, Callable[[Database], Iterator[Row]]]] = {
    "environments": lambda database: (
        (row[0], unpack_known(row[1]), *row[2:]) for row in _all(database, "move_environments")
    ),
    "deployments": _keyed("move_deployments", "", lambda row: (unpack_id(row[0]), *row[1:5], bool(row[5]), row[6])),
    "archives": _keyed("move_archives", "", tuple),
    "api_keys": _keyed("move_api_keys", "", tuple),
    "receipts": _keyed("move_receipts", b"", tuple),
    "sessions": lambda database: (row[:2] for row in _sessions(database)),
    "events": _of_sessions("move_events", lambda row: (number_of(row[0]), unpack_type(row[1]), *row[2:])),
    "turns": _of_sessions("move_turns", _turn),
    "runs": _of_sessions("move_runs", _run),
    "holds": _of_sessions("move_holds", _by_id),
    "asks": _of_sessions("move_asks", _by_id),
    "messages": _of_sessions("move_messages", _by_id),
    "steps": _of_sessions("move_steps", lambda row: (number_of(row[0]), *row[1:])),
    "memos": _of_sessions("move_memos", lambda row: (number_of(row[0]), *row[1:])),
    "live": _of_sessions("move_live", tuple),
    "logs": _logs,
    "commits": _commits,
}


# --- writing

_Sids = dict[str, int]


def _plain(_: _Sids, row: Row) -> Row:
    return row


def _put_environment(_: _Sids, row: Row) -> Row:
    return row[0], None if row[1] is None else pack_id(row[1]), *row[2:]


def _put_first_id(_: _Sids, row: Row) -> Row:
    return pack_id(row[0]), *row[1:]


def _put_event(sids: _Sids, row: Row) -> Row:
    session, seq, kind, *rest = row
    return position(sids[session], seq), TYPE_NUMBERS.get(kind, kind), *rest


def _put_turn(sids: _Sids, row: Row) -> Row:
    session, number, turn_id, status, *rest = row
    return position(sids[session], number), pack_id(turn_id), STATUS_NUMBERS[status], *rest


def _put_run(sids: _Sids, row: Row) -> Row:
    session, number, run_id, recovery, deployment, *rest = row
    return position(sids[session], number), pack_id(run_id), recovery, pack_id(deployment), *rest


def _put_of_turn(sids: _Sids, row: Row) -> Row:
    session, turn, *rest = row
    return position(sids[session], turn), *rest


def _put_by_id(sids: _Sids, row: Row) -> Row:
    session, found, *rest = row
    return sids[session], pack_id(found), *rest


_PUTS: Final[dict[str, tuple[str, Callable[[_Sids, Row], Row]]]] = {
    "environments": ("insert_moved_environment", _put_environment),
    "deployments": ("insert_deployment", _put_first_id),
    "archives": ("insert_archive", _plain),
    "api_keys": ("put_api_key", _plain),
    "receipts": ("insert_receipt", _plain),
    "events": ("insert_event", _put_event),
    "turns": ("insert_moved_turn", _put_turn),
    "runs": ("put_run", _put_run),
    "holds": ("put_hold", _put_by_id),
    "asks": ("put_ask", _put_by_id),
    "messages": ("put_message", _put_by_id),
    "steps": ("put_step", _put_of_turn),
    "memos": ("put_memo", _put_of_turn),
    "live": ("put_live", lambda sids, row: (sids[row[0]], *row[1:])),
    "logs": ("append_log", _put_first_id),
}
