"""Hints: which sessions others have just changed.

They are never needed for anything to be right, and lost whenever a connection is: whoever must not miss something reads
it in time. They are sent after the commits that they tell of, together for all that were made while the last ones were
on their way, and received on a connection of their own.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final

import psycopg

from perdure.errors import StoreError
from perdure.records.ids import new_id
from perdure.store.codec import is_canonical
from perdure.store.port import Committed
from perdure.store.postgres.arrays import array
from perdure.store.postgres.database import Connection, Database, trip
from perdure.store.postgres.statements import sql
from perdure.telemetry import metrics, notes

# A notification has less than 8000 bytes; each session takes 33 of them.
A_MESSAGE: Final = 240
# Seconds between two sendings, so that a busy process costs the others a hundred small messages a second at most.
PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 2.0

Changed = dict[str, bool]
"""Sessions that have changed, and whether their live slots have."""


def pack(sender: str, changed: Mapping[str, bool]) -> Iterator[str]:
    """Return what to send: the sender, then 32 digits for each session and a mark for its live slots."""
    parts = [f"{session.replace('-', '')}{'+' if live else '-'}" for session, live in changed.items()]
    for start in range(0, len(parts), A_MESSAGE):
        yield sender + "".join(parts[start : start + A_MESSAGE])


def unpack(sender: str, said: str) -> Changed:
    """Return what others have changed. What cannot be understood is from another version, and is left out."""
    if said.startswith(sender):
        return {}
    parts = said[len(sender) :]
    found: Changed = {}
    for start in range(0, len(parts), 33):
        digits, mark = parts[start : start + 32], parts[start + 32 : start + 33]
        session = f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
        if is_canonical(session):
            found[session] = mark == "+"
    return found


class Hints:
    """Sends what this process commits, and calls `heard` with what others have."""

    def __init__(self, database: Database, heard: Callable[[Changed], Awaitable[None]]) -> None:
        self._database = database
        self._heard = heard
        self._sender: Final = new_id()
        self._changed: Changed = {}
        self._looks: set[asyncio.Task[None]] = set()
        self._some = asyncio.Event()
        self.listening: Final = asyncio.Event()
        self._unfollow = metrics.HINTS_LISTENING.follow(self.listening.is_set)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._send_all()), loop.create_task(self._listen_always())]

    def committed(self, news: Committed) -> None:
        """Note a commit of this process."""
        session = news.head.id
        self._changed[session] = news.live or self._changed.get(session, False)
        self._some.set()

    def hear(self, changed: Changed) -> None:
        """Look at sessions as if others had just told of them."""
        task = asyncio.get_running_loop().create_task(self._hear(changed))
        self._looks.add(task)
        task.add_done_callback(self._looks.discard)

    async def _hear(self, changed: Changed) -> None:
        # Who needed it will look by himself.
        with suppress(StoreError):
            await self._heard(changed)

    async def close(self) -> None:
        """Stop. What was not sent yet is not."""
        self._unfollow()
        tasks = [*self._tasks, *self._looks]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task

    async def _send_all(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            changed, self._changed = self._changed, {}
            said = array("text", list(pack(self._sender, changed)))
            # The server is away, and who needed the hint will look by himself.
            with suppress(StoreError):
                await self._database.run(_sending(said))
            await asyncio.sleep(PAUSE)

    async def _listen_always(self) -> None:
        pause = PAUSE
        while True:
            with suppress(psycopg.Error, OSError, StoreError):
                async with await self._database.connect() as connection:
                    await connection.execute(sql("listen"))
                    pause = PAUSE
                    self.listening.set()
                    await self._listen(connection)
            self.listening.clear()
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _listen(self, connection: Connection) -> None:
        async for hint in connection.notifies():
            if changed := unpack(self._sender, hint.payload):
                notes.heard(len(changed))
                await self._heard(changed)


def _sending(said: object) -> Callable[[Connection], Awaitable[object]]:
    return lambda connection: trip(connection, [(sql("notify"), [said])])
