"""What is in this engine's database, as rows that are the same for every engine; see `perdure.store.moving`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import count
from typing import Any, Final

from perdure.errors import StoreError, StoreInUse
from perdure.store.codec import columns, unpack_head
from perdure.store.moving import COUNTS, Row, Source, Target, page_of
from perdure.store.postgres import address, schema
from perdure.store.postgres.arrays import Kind, arrays
from perdure.store.postgres.database import Connection, Database, all_rows
from perdure.store.postgres.failures import translate
from perdure.store.postgres.leases import ANYWHERE
from perdure.store.postgres.statements import sql

_MANY: Final = 500
_FAREWELL: Final = 2.0
_LOOK: Final = 0.02
_NO_ID: Final = "00000000-0000-0000-0000-000000000000"


class _Side:
    """What is the same for a store that is read from and for one that is written to."""

    def __init__(self, url: str) -> None:
        parsed = address.parse(url)
        self.where = address.safe(url)
        self._database = Database(parsed)
        self._connection: Connection | None = None

    @property
    def _open(self) -> Connection:
        assert self._connection is not None
        return self._connection

    async def _begin(self, *statements: str) -> None:
        """Connect and begin a transaction that no limit of the server's ends because it takes long."""
        self._connection = await self._database.connect()
        for statement in statements:
            await self._open.execute(sql(statement))

    async def _rows(self, name: str, *values: Any) -> list[Row]:
        try:
            return await all_rows(self._open, sql(name), *values)
        except Exception as error:
            raise translate(error) from error

    async def _check_alone(self) -> None:
        # A process that has ended is connected for a moment yet.
        deadline = time.monotonic() + _FAREWELL
        while users := [who for (who,) in await self._rows("in_use_by")]:
            if time.monotonic() > deadline:
                raise StoreInUse(
                    f"{self.where} is in use by {', '.join(users[:5])}. Nothing was changed; stop all servers and "
                    "workers first."
                )
            await asyncio.sleep(_LOOK)

    async def close(self) -> None:
        """Undo what was not committed."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None
        await self._database.close()

    async def pages(self, kind: str) -> AsyncIterator[list[Row]]:
        """Yield all rows of a kind."""
        make = _MAKES.get(kind, tuple)
        first = _FIRST[kind]
        key, size = first, page_of(kind)
        while rows := await self._rows(_MOVES[kind], *key, size):
            key = rows[-1][: len(first)]
            yield [made for row in rows if (made := make(row)) is not None]

    async def count(self, kind: str) -> int:
        """Return how many rows of a kind there are."""
        if kind == "commits":
            return sum([len(page) async for page in self.pages(kind)])
        return int((await self._rows(COUNTS[kind]))[0][0])


class PostgresSource(_Side, Source):
    """A database that is read from. `alone`: nobody else may use it, and nobody can until it is closed."""

    def __init__(self, url: str, *, alone: bool = True) -> None:
        super().__init__(url)
        self._alone = alone

    async def open(self) -> None:
        try:
            done = await self._database.run(schema.applied)
            await self._database.close()
            if missing := {step.key for step in schema.migrations() if step.phase == "pre"} - done:
                raise StoreError(
                    f"{self.where} has no store, or one that lacks the migrations {sorted(missing)}. Nothing was "
                    f"changed; see perdure store migrate."
                )
            if not self._alone:
                await self._begin("begin_reading")
                return
            await self._begin()
            await self._check_alone()
            await self._open.execute(sql("begin"))
            await self._open.execute(sql("patient"))
            await self._rows("lock_all")
        except Exception as error:
            await self.close()
            raise translate(error) from error

    async def columns(self) -> AsyncIterator[list[Row]]:
        after: str | None = None
        while rows := await self._rows("move_columns", after, _MANY):
            after = rows[-1][0]
            yield rows


class PostgresTarget(_Side, Target):
    """A database that is written to, in one transaction."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._marks = count(1)

    async def open(self) -> None:
        try:
            await schema.open_schema(self._database)
            await self._database.close()
            await self._begin()
            await self._check_alone()
            await self._open.execute(sql("begin"))
            await self._open.execute(sql("patient"))
        except Exception as error:
            await self.close()
            raise translate(error) from error

    async def put(self, kind: str, rows: Sequence[Row]) -> None:
        try:
            if kind == "sessions":
                await self._put_sessions(rows)
            elif kind == "commits":
                await self._put_commits(rows)
            else:
                name, kinds, pack = _PUTS[kind]
                await self._run(name, *arrays(kinds, [pack(row) for row in rows]))
        except Exception as error:
            raise translate(error) from error

    async def _run(self, name: str, *values: Any) -> None:
        await self._open.execute(sql(name), values)

    async def _put_sessions(self, rows: Sequence[Row]) -> None:
        heads = [unpack_head(body) for _, body in rows]
        homes = [None if head.computer is None else head.computer.home for head in heads]
        made = [
            # Whoever owned it is gone: any worker may claim it.
            (head.id, head.environment, head.agent, head.key, *columns(head), head.ended_at, None, home or ANYWHERE)
            for head, home in zip(heads, homes, strict=True)
        ]
        await self._run("insert_sessions", *arrays(_SESSION, made))
        bodies = [(head.id, False, body, head.last_seq) for head, (_, body) in zip(heads, rows, strict=True)]
        await self._run("put_heads", *arrays(("uuid", "bool", "bytea", "int8"), bodies), 0)

    async def _put_commits(self, rows: Sequence[Row]) -> None:
        for environment, at, ranges in rows:
            packed = arrays(("uuid", "int8", "int8"), ranges)
            await self._run("insert_moved_commit", environment, next(self._marks), at, *packed)

    async def commit(self) -> None:
        try:
            await self._open.execute(sql("mark_live"))
            await self._open.execute(sql("commit"))
        except Exception as error:
            raise translate(error) from error
        await self._open.execute(sql("analyze"))


# --- reading


def _commit(row: Row) -> Row | None:
    environment, _, _, at, known, sessions, firsts, lasts = row
    there = set(known)
    ranges = tuple(each for each in zip(sessions, firsts, lasts, strict=True) if each[0] in there)
    return (environment, at, ranges) if ranges else None


def _hold(row: Row) -> Row:
    return *row[:5], None if row[5] is None else row[5].decode(), *row[6:]


_MAKES: Final[dict[str, Callable[[Row], Row | None]]] = {
    "api_keys": lambda row: (row[0], row[1].decode(), *row[2:]),
    "holds": _hold,
    "steps": lambda row: (*row[:2], bytes(row[2]).decode(), *row[3:]),
    "memos": lambda row: (*row[:2], bytes(row[2]).decode(), *row[3:]),
    "commits": _commit,
}
# What comes before the first key of each kind.
_FIRST: Final[dict[str, Row]] = {
    **dict.fromkeys(("environments", "deployments", "archives", "api_keys", "receipts", "sessions"), (None,)),
    **dict.fromkeys(("events", "logs"), (_NO_ID, -1)),
    **dict.fromkeys(("turns", "runs"), (_NO_ID, -1)),
    **dict.fromkeys(("holds", "asks", "messages"), (_NO_ID, _NO_ID)),
    **dict.fromkeys(("steps", "memos"), (_NO_ID, -1, b"")),
    "live": (_NO_ID, ""),
    "commits": ("", 0, 0),
}
_MOVES: Final = {
    "environments": "move_environments",
    "deployments": "move_deployments",
    "archives": "move_archives",
    "api_keys": "move_api_keys",
    "receipts": "move_receipts",
    "sessions": "move_sessions",
    "events": "move_events",
    "turns": "move_turns",
    "runs": "move_runs",
    "holds": "move_holds",
    "asks": "move_asks",
    "messages": "move_messages",
    "steps": "move_steps",
    "memos": "move_memos",
    "live": "move_live",
    "logs": "move_logs",
    "commits": "move_commits",
}


# --- writing

_SESSION: Final[tuple[Kind, ...]] = (
    "uuid", "text", "text", "text", "text", "int8", "bool", "int8", "text", "text"
)  # fmt: skip
_EVENT: Final[tuple[Kind, ...]] = ("uuid", "int8", "text", "int8", "int4", "int4", "int4", "bytea")
_TURN: Final[tuple[Kind, ...]] = (
    "uuid", "int4", "uuid", "text", "int8", "int8", "int4", "int8", "int8", "int8", "text"
)  # fmt: skip
_ASK: Final[tuple[Kind, ...]] = (
    "uuid", "uuid", "int4", "text", "int8", "int8", "text", "text", "text", "bytea", "bytea", "bytea"
)  # fmt: skip
_PUTS: Final[dict[str, tuple[str, tuple[Kind, ...], Callable[[Row], Row]]]] = {
    "environments": ("insert_moved_environments", ("text", "uuid", "int8", "int8", "int8", "int8"), tuple),
    "deployments": (
        "insert_moved_deployments",
        ("uuid", "text", "text", "int8", "text", "bool", "bytea"),
        tuple,
    ),
    "archives": ("insert_moved_archives", ("text", "bytea"), tuple),
    "api_keys": (
        "insert_moved_api_keys",
        ("text", "bytea", "text", "int8", "int8"),
        lambda row: (row[0], row[1].encode(), *row[2:]),
    ),
    "receipts": ("insert_receipts", ("bytea", "bytea", "bytea", "text", "int8"), tuple),
    "events": ("insert_events", _EVENT, lambda row: row),
    "turns": ("insert_turns", _TURN, tuple),
    "runs": ("insert_moved_runs", ("uuid", "int4", "uuid", "text", "text", "int8", "int8", "text"), tuple),
    "holds": (
        "insert_moved_holds",
        ("uuid", "uuid", "text", "text", "text", "bytea", "int8", "int8"),
        lambda row: (*row[:5], None if row[5] is None else row[5].encode(), *row[6:]),
    ),
    "asks": ("insert_moved_asks", _ASK, tuple),
    "messages": ("insert_moved_messages", ("uuid", "uuid", "int4", "text", "int8", "text", "bytea"), tuple),
    "steps": (
        "insert_moved_steps",
        ("uuid", "int4", "bytea", "text", "text", "bytea", "int4", "int4", "int8", "int8"),
        lambda row: (*row[:2], row[2].encode(), *row[3:]),
    ),
    "memos": (
        "insert_moved_memos",
        ("uuid", "int4", "bytea", "bytea"),
        lambda row: (*row[:2], row[2].encode(), *row[3:]),
    ),
    "live": ("put_live", ("uuid", "text", "int4", "int8", "bytea"), tuple),
    "logs": ("insert_moved_logs", ("uuid", "int8", "bytea"), tuple),
}
