"""Connections: what is known of each, a pool of them, and the one place where what passes by itself is tried again."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor
from psycopg.pq import TransactionStatus

from perdure.errors import PerdureError
from perdure.store.postgres import trips
from perdure.store.postgres.address import Address
from perdure.store.postgres.arrays import register
from perdure.store.postgres.failures import CannotConnect, Unsettled, is_passing, leads_nowhere, sqlstate, translate
from perdure.store.postgres.pool import Pool
from perdure.store.postgres.statements import sql
from perdure.telemetry import notes

Row: TypeAlias = trips.Row
Statement: TypeAlias = trips.Statement
T = TypeVar("T")

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0
# For how many seconds an answer is waited for at least, since a commit may have to wait for a slow disk.
_SHORTEST_PATIENCE: Final = 5.0
_NO_VALUES: Final[trips.Values] = ()


class Connection(AsyncConnection[Row]):
    """A connection of psycopg's, and the quick way to make round trips on it.

    `is_direct`: whether it leads to the server itself, and not to a pooler that may give each transaction another one.
    """

    trips: trips.Trips
    is_direct = True


class Database:
    """Runs work on pooled connections. Work is tried again after failures that pass, until `patience` has run out."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._pool: Pool[Connection] = Pool(self.connect, address.connections)

    async def connect(self) -> Connection:
        """Return a new connection, which is the caller's. Raises `CannotConnect`, and what a round trip raises."""
        return await self._connect(self._address.conninfo)

    async def connect_to_listen(self) -> Connection:
        """Return a new connection like `connect`, to where hints are to be had."""
        return await self._connect(self._address.listen or self._address.conninfo)

    def may_listen(self, connection: Connection) -> bool:
        """Whether hints can be heard on a connection, for all that can be known."""
        return connection.is_direct or bool(self._address.hints)

    async def _connect(self, conninfo: str) -> Connection:
        address = self._address
        try:
            connection = await Connection.connect(
                conninfo, autocommit=True, cursor_factory=AsyncRawCursor, **address.settings
            )
        except (psycopg.OperationalError, OSError) as error:
            raise CannotConnect(str(error)) from error
        register(connection)
        # Half of the patience, so that there is time for another try on another connection.
        connection.trips = trips.Trips(connection, max(address.patience / 2, _SHORTEST_PATIENCE))
        try:
            ((process,),) = await all_rows(connection, sql("who_serves"))
        except BaseException:
            await connection.close()
            raise
        connection.is_direct = process == connection.info.backend_pid
        connection.trips.prepares = connection.is_direct if address.prepare is None else address.prepare
        return connection

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.drain()

    async def run(self, work: Callable[[Connection], Awaitable[T]], patience: float | None = None) -> T:
        """Return `work(connection)`. It must be work that can be done again, since it may be.

        `patience`: for how many seconds it is tried again, if not for as long as the store's address says. Raises
        `PerdureError`s as they are, `Unsettled` as it is, and all else in our words.
        """
        try:
            return await self.attempt(work, patience)
        except (PerdureError, Unsettled):
            raise
        except Exception as error:
            raise translate(error) from error

    async def attempt(self, work: Callable[[Connection], Awaitable[T]], patience: float | None = None) -> T:
        """As `run`, but with PostgreSQL's own errors."""
        deadline = time.monotonic() + (self._address.patience if patience is None else patience)
        pause = _FIRST_PAUSE
        while True:
            try:
                async with self._pool.connection(deadline) as connection:
                    return await work(connection)
            except Exception as error:
                if not is_passing(error) or time.monotonic() + pause > deadline:
                    raise
                notes.retried(sqlstate(error))
                if leads_nowhere(error):
                    await self._pool.drain()
            # Jitter, lest all who waited for the same server or row come back at once.
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, _LONGEST_PAUSE)


async def trip(connection: Connection, statements: Sequence[Statement]) -> list[list[Row]]:
    """Run statements in one round trip and return the rows of each; none runs after one that fails."""
    return await connection.trips.trip(statements)


async def all_rows(connection: Connection, statement: str, *values: Any) -> list[Row]:
    """Return all rows of one statement."""
    return (await connection.trips.trip([(statement, values)]))[0]


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
    if connection.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
        with suppress(psycopg.Error):
            await trip(connection, [(sql("rollback"), _NO_VALUES)])


def is_lost(connection: Connection) -> bool:
    """Whether the connection is of no use any more."""
    return connection.closed or connection.broken
