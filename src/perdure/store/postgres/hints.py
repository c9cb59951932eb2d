"""Hints: which sessions others have just changed.

They are never needed for anything to be right, and lost whenever a connection is: whoever must not miss something reads
it in time. They are sent after the commits that they tell of, together for all that were made while the last ones were
on their way, and received on a connection of their own.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final

import psycopg

from perdure.errors import StoreError
from perdure.records.ids import new_id
from perdure.rules.dispatch import needs_owner
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
# Seconds after which something is said although nothing has changed, and within which it has to come back.
QUIET: Final = 5.0
ECHO: Final = 3.0

_log: Final = logging.getLogger("perdure.store")
_BEHIND_A_POOLER: Final = (
    "The store's address leads to a pooler, through which hints of the commits of others cannot be trusted to arrive: "
    "they are looked for instead, which takes longer. Say perdure_listen=postgresql://… to name PostgreSQL itself, "
    "perdure_hints=on if the pooler keeps sessions apart, or perdure_hints=off if this is as you want it."
)

LIVE: Final = 1
OWNERLESS: Final = 2
_MARKS: Final = "-+oO"

Changed = dict[str, int]
"""Sessions that have changed, and what of them: `LIVE` slots; `OWNERLESS` is one that needs an owner and has none."""


def pack(sender: str, changed: Mapping[str, int]) -> Iterator[str]:
    """Return what to send: the sender, then 32 digits for each session and a mark for what has changed."""
    parts = [f"{session.replace('-', '')}{_MARKS[what]}" for session, what in changed.items()]
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
            found[session] = max(_MARKS.find(mark), 0)
    return found


class Hints:
    """Sends what this process commits, and calls `heard` with what others have.

    What it sends comes back to itself like to everybody else. So it knows whether it hears: not when a connection is
    open, which may lead to a server that stands still or to a pooler, but when its own words come back.
    """

    def __init__(self, database: Database, heard: Callable[[Changed], Awaitable[None]]) -> None:
        self._database = database
        self._heard = heard
        self._sender: Final = new_id()
        self._to_send = _Gathered()
        self._to_tell = _Gathered()
        self._listens = False
        self._unanswered: float | None = None
        self.listening: Final = asyncio.Event()
        self._unfollow = metrics.HINTS_LISTENING.follow(self.listening.is_set)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(work) for work in (self._send_all(), self._tell_all(), self._listen_always())]

    def committed(self, news: Committed) -> None:
        """Note a commit of this process."""
        ownerless = news.head.run is None and needs_owner(news.head)
        self._to_send.add({news.head.id: LIVE * news.live | OWNERLESS * ownerless})

    def hear(self, changed: Changed) -> None:
        """Look at sessions as if others had just told of them."""
        self._to_tell.add(changed)

    async def close(self) -> None:
        """Stop. What was not sent yet is not."""
        self._unfollow()
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task

    # --- sending

    async def _send_all(self) -> None:
        while True:
            changed = await self._to_send.take(QUIET if self._listens else None)
            said = array("text", list(pack(self._sender, changed)) or [self._sender])
            before = self._unanswered
            if self._listens and before is None:
                self._unanswered = time.monotonic()
            try:
                await self._database.run(_sending(said))
            except StoreError:
                # The server is away, and who needed the hint will look by himself.
                self._unanswered = before
            await asyncio.sleep(PAUSE)

    # --- hearing

    async def _tell_all(self) -> None:
        while True:
            changed = await self._to_tell.take(None)
            # Who needed it will look by himself.
            with suppress(StoreError):
                await self._heard(changed)

    async def _listen_always(self) -> None:
        pause = PAUSE
        while True:
            try:
                connection = await self._database.connect_to_listen()
                # Not by its own context, which would end a transaction first, and leave open what cannot.
                try:
                    if not self._database.may_listen(connection):
                        _log.warning(_BEHIND_A_POOLER)
                        return
                    await connection.execute(sql("listen"))
                    await self._listen(connection)
                finally:
                    await connection.close()
                why = "what was said did not come back"
            except (psycopg.Error, OSError) as error:
                why = " ".join(str(error).split())
            self._listens = False
            if self.listening.is_set():
                self.listening.clear()
                pause = PAUSE
            if pause == PAUSE:
                _log.warning("Hints of the commits of others are not heard (%s); what they tell is looked for.", why)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _listen(self, connection: Connection) -> None:
        """Listen until the connection is lost, or nothing is heard although something was said."""
        self._listens, self._unanswered = True, None
        self._to_send.add({})
        while not self._is_deaf():
            async for hint in connection.notifies(timeout=ECHO / 3):
                self._take(hint.payload)

    def _is_deaf(self) -> bool:
        return self._unanswered is not None and time.monotonic() > self._unanswered + ECHO

    def _take(self, said: str) -> None:
        if said.startswith(self._sender):
            self._unanswered = None
            self.listening.set()
        elif changed := unpack(self._sender, said):
            notes.heard(len(changed))
            self._to_tell.add(changed)


class _Gathered:
    """Sessions that have changed, gathered until somebody has the time to take them."""

    def __init__(self) -> None:
        self._changed: Changed = {}
        self._some = asyncio.Event()

    def add(self, changed: Changed) -> None:
        """Add sessions; none is an occasion to take what is there."""
        for session, what in changed.items():
            self._changed[session] = what | self._changed.get(session, 0)
        self._some.set()

    async def take(self, patience: float | None) -> Changed:
        """Wait until there is something, but no longer than so many seconds, and return it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._some.wait()
        self._some.clear()
        changed, self._changed = self._changed, {}
        return changed


def _sending(said: object) -> Callable[[Connection], Awaitable[object]]:
    return lambda connection: trip(connection, [(sql("notify"), [said])])
