"""Connections: a pool, a pipeline for each round trip, and the one place where what passes by itself is tried again."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool

from perdure.errors import PerdureError
from perdure.store.postgres.address import Address
from perdure.store.postgres.arrays import register
from perdure.store.postgres.failures import Unsettled, is_passing, leads_nowhere, translate
from perdure.store.postgres.statements import sql

Row: TypeAlias = tuple[Any, ...]
Connection: TypeAlias = AsyncConnection[Row]
Cursor: TypeAlias = AsyncRawCursor[Row]
Values: TypeAlias = Sequence[Any]
Statement: TypeAlias = tuple[str, Values]
T = TypeVar("T")

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0
_NO_VALUES: Final[Values] = ()


class Database:
    """Runs work on pooled connections. Work is tried again after failures that pass, until `patience` has run out."""

    def __init__(self, address: Address) -> None:
        self._patience = address.patience
        settings = {"autocommit": True, "cursor_factory": AsyncRawCursor, **address.settings}
        self._pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            address.conninfo,
            kwargs=settings,
            min_size=1,
            max_size=address.connections,
            open=False,
            configure=_configure,
            reset=_reset,
            timeout=address.patience,
            reconnect_timeout=address.patience,
        )

    async def open(self) -> None:
        """Let the pool connect; whether the server answers is found out by the first work."""
        await self._pool.open()

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.close()

    async def run(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Return `work(connection)`. It must be work that can be done again, since it may be.

        Raises `PerdureError`s as they are, `Unsettled` as it is, and all else in our words.
        """
        try:
            return await self.attempt(work)
        except (PerdureError, Unsettled):
            raise
        except Exception as error:
            raise translate(error) from error

    async def attempt(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """As `run`, but with PostgreSQL's own errors."""
        deadline = time.monotonic() + self._patience
        pause = _FIRST_PAUSE
        while True:
            try:
                async with self._connection(deadline) as connection:
                    return await work(connection)
            except Exception as error:
                if not is_passing(error) or time.monotonic() + pause > deadline:
                    raise
                if leads_nowhere(error):
                    await self._pool.drain()
            # Jitter, lest all who waited for the same server or row come back at once.
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, _LONGEST_PAUSE)

    @asynccontextmanager
    async def _connection(self, deadline: float) -> AsyncIterator[Connection]:
        connection = await self._pool.getconn(timeout=max(deadline - time.monotonic(), 0.05))
        try:
            yield connection
        finally:
            await self._pool.putconn(connection)


async def _configure(connection: Connection) -> None:
    register(connection)


async def _reset(connection: Connection) -> None:
    if connection.info.transaction_status != TransactionStatus.IDLE:
        await connection.rollback()


async def trip(connection: Connection, statements: Sequence[Statement]) -> list[list[Row]]:
    """Run statements in one round trip and return the rows of each; none runs after one that fails."""
    async with connection.pipeline():
        cursors = [await _send(connection, statement, values) for statement, values in statements]
    return [await cursor.fetchall() if cursor.description else [] for cursor in cursors]


async def _send(connection: Connection, statement: str, values: Values) -> Any:
    return await connection.execute(statement, values, binary=True)


async def all_rows(connection: Connection, statement: str, *values: Any) -> list[Row]:
    """Return all rows of one statement."""
    cursor = await connection.execute(statement, values, binary=True)
    return await cursor.fetchall()


async def one_row(connection: Connection, statement: str, *values: Any) -> Row | None:
    """Return the first row of one statement."""
    rows = await all_rows(connection, statement, *values)
    return rows[0] if rows else None


async def read_together(connection: Connection, *statements: Statement) -> list[list[Row]]:
    """Run statements that see one instant, in one round trip."""
    begin, commit = (sql("begin_reading"), _NO_VALUES), (sql("commit"), _NO_VALUES)
    return (await trip(connection, [begin, *statements, commit]))[1:-1]


async def roll_back(connection: Connection) -> None:
    """End a transaction without a trace; a connection that is lost has done so already."""
    if connection.info.transaction_status != TransactionStatus.IDLE:
        with suppress(psycopg.Error):
            await connection.rollback()


def is_lost(connection: Connection) -> bool:
    """Whether the connection is of no use any more."""
    return connection.closed or connection.broken
