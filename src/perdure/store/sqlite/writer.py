"""The one writer: commands that arrive while a commit is being flushed share the next one.

Commands are decided and their rows written on the event loop, where no other thread competes for the interpreter; what
waits for the disk (reading what is not in memory, and the flush) is done by one thread meanwhile. The connection is
used by one side at a time: `_busy` says that a transaction is under way.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw

from perdure.crashpoints import reach
from perdure.errors import PerdureError
from perdure.rules.commands import Command
from perdure.store.batch import Entry, MustRead, Outcome
from perdure.store.port import Applied, Committed
from perdure.store.sqlite.batch import Batch
from perdure.store.sqlite.checkpoints import Checkpoints
from perdure.store.sqlite.database import PATIENCE_MS, Database, one
from perdure.store.sqlite.failures import closing, translate
from perdure.store.sqlite.feed import last_number
from perdure.store.sqlite.statements import sql
from perdure.store.waiting import Errors, Missing, Waiting, committed, decide_all, publish
from perdure.store.waiting import answer as answer_with
from perdure.telemetry import notes

T = TypeVar("T")

LARGEST_BATCH: Final = 128
LARGEST_BYTES: Final = 1024 * 1024
SMALLEST_SPLIT: Final = 8
HEADS: Final = 1_024


class Writer:
    """Owns the writing connection and its thread. Methods named `_in_thread_…` run there, the others on the loop."""

    def __init__(
        self, database: Database, file: Path, tell: Callable[[Committed], None], clock: Callable[[], int]
    ) -> None:
        self._database = database
        self._file = file
        self._tell = tell
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._known: dict[str, Entry] = {}
        self._next_sid: int = (one(database, sql("last_sid"))[0] or 0) + 1
        self._numbers = count(last_number(database) + 1)
        self._waiting: deque[Waiting] = deque()
        self._jobs: deque[Callable[[], None]] = deque()
        self._flushed = 0
        self._began = 0.0
        self._busy = False
        self._woken = False
        self._closing = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._checkpoints = Checkpoints(database, file, self._checkpoint_soon)
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._in_thread_serve, name="perdure-store-write", daemon=True)
        self._thread.start()

    # --- entrances

    def apply(self, command: Command) -> asyncio.Future[Applied]:
        """Queue a command; the future has its answer once the commit is flushed."""
        self._check_open()
        answer: asyncio.Future[Applied] = self._loop.create_future()
        self._waiting.append(Waiting(command, answer))
        self._wake()
        return answer

    def run(self, job: Callable[[Database], T], *, forgets: str | None = None) -> asyncio.Future[T]:
        """Run `job(connection)` in the thread, in a transaction of its own, after which a session may be no more."""
        self._check_open()
        answer: asyncio.Future[T] = self._loop.create_future()
        self._jobs.append(lambda: self._in_thread_job(job, answer, forgets))
        self._wake()
        return answer

    def known(self, session_id: str) -> Entry | None:
        """Return a session that is in memory."""
        return self._known.get(session_id)

    def refuse_more(self) -> None:
        """Take no more commands; those that were taken are finished."""
        self._closing = True

    async def close(self) -> None:
        """Finish the commits under way and close the connection."""
        self.refuse_more()
        await self._idle.wait()
        self._work.put(None)
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._checkpoints.close)
        self._database.close()

    def _check_open(self) -> None:
        if self._closing:
            raise closing()

    # --- the cycle: take what waits, decide it, flush it, tell

    def _wake(self) -> None:
        self._idle.clear()
        if not self._busy and not self._woken:
            # After the tasks that are ready now, so that their commands share the commit.
            self._woken = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._woken = False
        if self._busy:
            return
        if self._jobs:
            self._busy = True
            self._work.put(self._jobs.popleft())
        elif self._waiting:
            self._busy = True
            self._begin(self._take())
        else:
            self._idle.set()

    def _take(self) -> list[Waiting]:
        """Take commands for one commit: half of those in play, so that handlers run while the other half is flushed."""
        fair = max(SMALLEST_SPLIT, (len(self._waiting) + self._flushed + 1) // 2)
        count = min(len(self._waiting), fair, LARGEST_BATCH)
        return [self._waiting.popleft() for _ in range(count)]

    def _begin(self, taken: list[Waiting]) -> None:
        self._began = time.perf_counter()
        batch = Batch(self._known, self._next_sid, self._clock, self._numbers)
        try:
            self._database.execute("BEGIN IMMEDIATE")
        except Exception:
            self._work.put(lambda: self._in_thread_one_by_one(taken))
        else:
            self._decide(batch, taken, taken)

    def _decide(self, batch: Batch, taken: list[Waiting], pending: list[Waiting]) -> None:
        """Decide what is pending; go on with a read in the thread, or with the flush."""
        try:
            missing = self._add_all(batch, taken, pending)
            batch.rows.write(self._database)
        except Exception:
            self._work.put(lambda: self._in_thread_one_by_one(taken))
            return
        if missing:
            self._work.put(lambda: self._in_thread_read(batch, taken, missing))
        else:
            self._work.put(lambda: self._in_thread_commit(batch, taken))

    def _add_all(self, batch: Batch, taken: list[Waiting], pending: list[Waiting]) -> Missing:
        missing, left = decide_all(batch, pending, LARGEST_BYTES)
        self._put_back(taken, left)
        return missing

    def _put_back(self, taken: list[Waiting], rest: list[Waiting]) -> None:
        """Leave for the next commit what would make this one large."""
        self._waiting.extendleft(reversed(rest))
        for request in rest:
            request.found.clear()
            taken.remove(request)

    def _publish(self, batch: Batch, taken: list[Waiting], errors: Errors) -> None:
        notes.committed(len(taken), self._began)
        self._next_sid = batch.next_sid
        self._keep(batch)
        self._next(len(taken))
        publish(taken, errors, self._tell)

    def _keep(self, batch: Batch) -> None:
        """Keep the heads of the batch, and drop those that were committed to longest ago."""
        known = self._known
        for session_id, entry in batch.entries.items():
            known.pop(session_id, None)
            known[session_id] = entry
        while len(known) > HEADS:
            del known[next(iter(known))]

    def _fail(self, taken: list[Waiting], failure: PerdureError) -> None:
        for request in taken:
            self._known.pop(request.command.session_id, None)
        self._next(0)
        for request in taken:
            answer_with(request.answer, failure)

    def _done(self, answer: asyncio.Future[Any], result: object, forgets: str | None) -> None:
        if forgets is not None:
            self._known.pop(forgets, None)
        self._next(0)
        answer_with(answer, result)

    def _next(self, flushed: int) -> None:
        self._busy = False
        self._flushed = flushed
        self._pump()

    def _checkpoint_soon(self) -> None:
        """Have the thread finish a checkpoint between two commits; called from another thread."""
        self._loop.call_soon_threadsafe(self._checkpoint)

    def _checkpoint(self) -> None:
        if not self._closing:
            self._jobs.append(self._in_thread_checkpoint)
            self._wake()

    # --- in the thread

    def _in_thread_serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def _in_thread_read(self, batch: Batch, taken: list[Waiting], missing: Missing) -> None:
        try:
            for request, things in missing:
                batch.read(self._database, request, things)
        except Exception:
            self._in_thread_one_by_one(taken)
            return
        self._loop.call_soon_threadsafe(self._decide, batch, taken, [request for request, _ in missing])

    def _in_thread_commit(self, batch: Batch, taken: list[Waiting]) -> None:
        try:
            for request in taken:
                reach("store.commit.before", request.label)
            self._database.execute("COMMIT")
        except Exception as error:
            self._in_thread_fail(taken, error)
        else:
            errors = committed(taken)
            self._loop.call_soon_threadsafe(self._publish, batch, taken, errors)

    def _in_thread_fail(self, taken: list[Waiting], error: Exception) -> None:
        self._in_thread_roll_back()
        self._loop.call_soon_threadsafe(self._fail, taken, translate(error, self._file))

    def _in_thread_roll_back(self) -> None:
        # SQLite may have rolled back by itself; if neither can, the next BEGIN fails and says so to its callers.
        with suppress(apsw.Error):
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")

    def _in_thread_one_by_one(self, taken: list[Waiting]) -> None:
        """Start again with each command in a savepoint of its own, after one of them spoiled the batch."""
        batch = Batch(self._known, self._next_sid, self._clock, self._numbers)
        try:
            self._in_thread_roll_back()
            self._in_thread_begin()
            for request in taken:
                request.outcome = self._in_thread_alone(batch, request)
        except Exception as error:
            self._in_thread_fail(taken, error)
        else:
            self._in_thread_commit(batch, taken)

    def _in_thread_begin(self) -> None:
        """Begin a transaction, waiting for a lock of another program, as must not be done on the loop."""
        self._database.set_busy_timeout(PATIENCE_MS)
        try:
            self._database.execute("BEGIN IMMEDIATE")
        finally:
            self._database.set_busy_timeout(0)

    def _in_thread_alone(self, batch: Batch, request: Waiting) -> Outcome:
        before = batch.mark()
        self._database.execute("SAVEPOINT alone")
        try:
            outcome = self._in_thread_add(batch, request)
            batch.rows.write(self._database)
        except Exception as error:
            if not self._database.in_transaction:
                raise
            self._database.execute("ROLLBACK TO alone")
            batch.back_to(before)
            outcome = Outcome(translate(error, self._file))
        self._database.execute("RELEASE alone")
        return outcome

    def _in_thread_add(self, batch: Batch, request: Waiting) -> Outcome:
        request.found.clear()
        while True:
            try:
                return batch.add(request)
            except MustRead as must:
                batch.read(self._database, request, must.things)

    def _in_thread_job(self, job: Callable[[Database], T], answer: asyncio.Future[T], forgets: str | None) -> None:
        try:
            self._in_thread_begin()
            result: object = job(self._database)
            self._database.execute("COMMIT")
        except Exception as error:
            self._in_thread_roll_back()
            result = translate(error, self._file)
        self._loop.call_soon_threadsafe(self._done, answer, result, forgets)

    def _in_thread_checkpoint(self) -> None:
        self._checkpoints.finish(self._database)
        self._loop.call_soon_threadsafe(self._next, 0)
