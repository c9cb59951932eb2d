"""Commits: commands that arrive while others are being flushed share the next transaction.

A transaction takes two round trips: one locks the sessions and reads what their commands need, one writes and commits.
There are a few lanes, each with one transaction under way at a time; a session is in one lane at a time, so that its
commands are decided in the order in which they came.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import psycopg

from perdure.crashpoints import CrashPointReached, areach
from perdure.errors import PerdureError
from perdure.records.ids import new_id
from perdure.records.sessions import SessionHead
from perdure.rules.commands import Command
from perdure.store.batch import Entry
from perdure.store.port import Applied, Committed
from perdure.store.postgres.batch import Batch
from perdure.store.postgres.database import Connection, Database, Row, Statement, is_lost, roll_back, trip
from perdure.store.postgres.failures import Unsettled, is_ambiguous, is_value, translate, unsettled
from perdure.store.postgres.statements import sql
from perdure.store.waiting import Waiting, answer, committed, decide_all, publish
from perdure.telemetry import notes

LANES: Final = 2
LARGEST_BATCH: Final = 256
LARGEST_BYTES: Final = 1024 * 1024
HINTS: Final = 4_096
# A process that stands still in the middle of a transaction lets go of its locks after the first, and whoever waits for
# one looks again after the second.
STANDSTILL: Final = "5s"
LOCK_WAIT: Final = "3s"


class Lane:
    """One row of `writers`: what says, after a lost connection, whether a commit has happened."""

    def __init__(self, number: int) -> None:
        self.number: Final = number
        self.batch = 0


class Writer:
    """Gathers commands into transactions. `tell` is called for each that changed something, once it is flushed.

    `look_again` is given sessions whose news from others could not be told while this process committed to them.
    """

    def __init__(
        self,
        database: Database,
        tell: Callable[[Committed], None],
        clock: Callable[[], int] | None,
        look_again: Callable[[set[str]], None],
    ) -> None:
        self._database = database
        self._look_again = look_again
        self._tell = tell
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._id: Final = new_id()
        self._hints: dict[str, SessionHead] = {}
        self._waiting: deque[Waiting] = deque()
        self._free = [Lane(number) for number in range(LANES)]
        self._in_flight: set[str] = set()
        self._overtaken: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._woken = False
        self._idle = asyncio.Event()
        self._idle.set()

    # --- entrances

    def apply(self, command: Command) -> asyncio.Future[Applied]:
        """Queue a command; the future has its answer once the commit is flushed."""
        waiting: asyncio.Future[Applied] = self._loop.create_future()
        self._waiting.append(Waiting(command, waiting))
        self._wake()
        return waiting

    async def close(self) -> None:
        """Finish the commits under way, and forget that this process wrote."""
        await self._idle.wait()
        forget: Statement = (sql("forget_writer"), (self._id,))
        try:
            await self._database.run(lambda connection: trip(connection, [forget]), patience=0.0)
        except PerdureError:
            # The server is away. The rows are harmless, and some other process removes them in a week.
            return

    # --- the cycle: take what waits, commit it, tell

    def _wake(self) -> None:
        self._idle.clear()
        if self._free and not self._woken:
            # After the tasks that are ready now, so that their commands share the commit.
            self._woken = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._woken = False
        while self._free and (taken := self._take()):
            lane = self._free.pop()
            task = self._loop.create_task(self._serve(lane, taken))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if not self._waiting and len(self._free) == LANES:
            self._idle.set()

    def _take(self) -> list[Waiting]:
        """Take commands for one commit, but none of a session that another lane is busy with."""
        taken: list[Waiting] = []
        later: list[Waiting] = []
        while self._waiting and len(taken) < LARGEST_BATCH:
            request = self._waiting.popleft()
            (later if request.command.session_id in self._in_flight else taken).append(request)
        self._waiting.extendleft(reversed(later))
        return taken

    async def _serve(self, lane: Lane, taken: list[Waiting]) -> None:
        sessions = {request.command.session_id for request in taken}
        self._in_flight |= sessions
        try:
            await self._commit(lane, taken)
        finally:
            self._in_flight -= sessions
            if overtaken := self._overtaken & sessions:
                self._overtaken -= overtaken
                self._look_again(overtaken)
            self._free.append(lane)
            self._pump()

    async def _commit(self, lane: Lane, taken: list[Waiting]) -> None:
        began = time.perf_counter()
        try:
            await self._settle(lane, taken)
        except Exception as error:
            if len(taken) > 1 and _may_be_one_commands_fault(error):
                for request in taken:
                    await self._commit(lane, [request])
            else:
                self._fail(taken, translate(error))
        else:
            notes.committed(len(taken), began)
            self._publish(taken)

    def _fail(self, taken: list[Waiting], failure: PerdureError) -> None:
        for request in taken:
            answer(request.answer, failure)

    def _publish(self, taken: list[Waiting]) -> None:
        publish(taken, committed(taken), self._tell)

    # --- one commit

    async def _settle(self, lane: Lane, taken: list[Waiting]) -> None:
        """Commit, as often as it takes; never again what may have happened, before it was read whether it has."""
        while True:
            try:
                await self._database.attempt(lambda connection: self._transaction(connection, lane, taken))
                return
            except Unsettled:
                if await self._happened(lane):
                    return

    async def _happened(self, lane: Lane) -> bool:
        """Return whether the lane's newest commit is in the database, once it cannot get there any more."""
        look = [_BEGIN, _BOUNDS, (sql("newest_batch"), (self._id, lane.number)), _COMMIT]

        async def work(connection: Connection) -> list[list[Row]]:
            try:
                return await _acknowledged(connection, look)
            except BaseException:
                await roll_back(connection)
                raise

        try:
            found = await self._database.run(work)
        except (PerdureError, Unsettled) as error:
            raise unsettled() from error
        newest: int = found[2][0][0]
        return newest == lane.batch

    async def _transaction(self, connection: Connection, lane: Lane, taken: list[Waiting]) -> None:
        batch = Batch(self._hints, self._clock)
        lane.batch += 1
        for request in taken:
            request.found.clear()
        try:
            mark = (sql("mark_batch"), (self._id, lane.number, lane.batch))
            await batch.begin(connection, [_BEGIN, _BOUNDS, mark], taken)
            wrote = await self._decide(connection, batch, taken)
            writes = batch.statements()
            for request in taken:
                await areach("store.commit.before", request.label)
            await _finish(connection, [*writes, _COMMIT if writes or wrote else _ROLLBACK])
        except BaseException:
            await roll_back(connection)
            raise
        self._remember(batch.entries)

    async def _decide(self, connection: Connection, batch: Batch, taken: list[Waiting]) -> bool:
        """Decide all, reading what rules ask for; returns whether rows were written meanwhile."""
        wrote = False
        pending: Sequence[Waiting] = tuple(taken)
        while pending:
            missing, left = decide_all(batch, pending, LARGEST_BYTES)
            self._put_back(taken, left)
            pending = [request for request, _ in missing]
            if pending:
                wrote = await batch.read_more(connection, missing) or wrote
        return wrote

    def _put_back(self, taken: list[Waiting], left: list[Waiting]) -> None:
        """Leave for the next commit what would make this one large."""
        self._waiting.extendleft(reversed(left))
        for request in left:
            taken.remove(request)

    def learn(self, head: SessionHead) -> bool:
        """Take note of a head that another process has committed; returns whether it is news.

        Of a session that this process is just committing to, nothing is news before that is told: the head may hold it
        already. It is looked at again then.
        """
        if head.id in self._in_flight:
            self._overtaken.add(head.id)
            return False
        known = self._hints.get(head.id)
        if known is not None and (head.fence, head.last_seq) < (known.fence, known.last_seq):
            return False
        self._hints[head.id] = head
        return True

    def _remember(self, entries: dict[str, Entry]) -> None:
        hints = self._hints
        for session_id, entry in entries.items():
            hints.pop(session_id, None)
            hints[session_id] = entry.head
        while len(hints) > HINTS:
            del hints[next(iter(hints))]


_BEGIN: Final[Statement] = (sql("begin"), ())
_COMMIT: Final[Statement] = (sql("commit"), ())
_ROLLBACK: Final[Statement] = (sql("rollback"), ())
_BOUNDS: Final[Statement] = (sql("bounds"), (STANDSTILL, LOCK_WAIT))


async def _finish(connection: Connection, statements: list[Statement]) -> None:
    try:
        await _acknowledged(connection, statements)
    except Exception as error:
        if is_lost(connection) or is_ambiguous(error):
            raise Unsettled from error
        raise


async def _acknowledged(connection: Connection, statements: list[Statement]) -> list[list[Row]]:
    """Make a round trip that commits, and mistrust an acknowledgement that comes with a warning.

    A commit whose wait for the standby was broken off by an administrator is acknowledged like any other.
    """
    connection.trips.warned = False
    found = await trip(connection, statements)
    if connection.trips.warned:
        raise Unsettled
    return found


def _may_be_one_commands_fault(error: Exception) -> bool:
    machine = isinstance(error, psycopg.Error | PerdureError | CrashPointReached | Unsettled | OSError)
    return is_value(error) or not machine
