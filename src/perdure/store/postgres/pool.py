"""A few connections, made when they are needed.

Not psycopg's own pool, because that connects in the background at its own pace and tells nobody why it cannot: here a
failed attempt is the caller's error at once, and the one place that tries again decides when.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, Generic, TypeVar

from psycopg import AsyncConnection
from psycopg.pq import TransactionStatus

from perdure.store.postgres.failures import AllBusy

C = TypeVar("C", bound=AsyncConnection[Any])

# Seconds; so that addresses that have moved, and servers that were added behind a balancer, are found in time.
LONGEST_LIFE: Final = 1800.0


class Pool(Generic[C]):
    """At most `size` connections; whoever comes then waits for one, but no longer than he can."""

    def __init__(self, connect: Callable[[], Awaitable[C]], size: int) -> None:
        self._connect = connect
        self._size = size
        self._room = asyncio.Semaphore(size)
        self._idle: list[C] = []
        self._born: dict[C, float] = {}

    @asynccontextmanager
    async def connection(self, deadline: float) -> AsyncIterator[C]:
        """Lend a connection that is in no transaction. Raises `AllBusy` after a deadline of `time.monotonic`, and what
        connecting raises."""
        await self._enter(deadline)
        try:
            connection = self._idle.pop() if self._idle else await self._new()
            try:
                yield connection
            finally:
                await self._take_back(connection)
        finally:
            self._room.release()

    async def _enter(self, deadline: float) -> None:
        if not self._room.locked():
            await self._room.acquire()
            return
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                await self._room.acquire()
        except TimeoutError:
            raise AllBusy(f"all {self._size} connections were in use") from None

    async def _new(self) -> C:
        connection = await self._connect()
        self._born[connection] = time.monotonic()
        return connection

    async def _take_back(self, connection: C) -> None:
        # One that drain() has dropped while it was lent has no birth any more.
        young = time.monotonic() - self._born.get(connection, 0.0) < LONGEST_LIFE and connection in self._born
        if young and connection.info.transaction_status == TransactionStatus.IDLE:
            self._idle.append(connection)
        else:
            self._born.pop(connection, None)
            await connection.close()

    async def drain(self) -> None:
        """Drop all connections: those that are lent are closed when they come back."""
        idle, self._idle = self._idle, []
        self._born.clear()
        for connection in idle:
            await connection.close()
