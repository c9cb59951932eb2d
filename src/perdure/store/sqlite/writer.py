"""The one writer: commands that arrive while a commit is being flushed share the next one."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from perdure.crashpoints import CrashPointReached, reach
from perdure.errors import PerdureError, StoreError, Unavailable
from perdure.rules.commands import Command
from perdure.store.port import Applied, Committed
from perdure.store.sqlite.batch import Batch, Entry, Outcome
from perdure.store.sqlite.failures import translate
from perdure.store.sqlite.rows import Rows

LARGEST_BATCH: Final = 256
T = TypeVar("T")
Waiting = tuple[Command, "asyncio.Future[Applied]"]


def _closing() -> Unavailable:
    return Unavailable("The store is closing. Nothing was changed; try again when the server is back.")


class Writer:
    """Owns the writing connection and its thread. All methods but `_serve` and what it calls run on the loop."""

    def __init__(
        self, database: sqlite3.Connection, file: Path, tell: Callable[[Committed], None], clock: Callable[[], int]
    ) -> None:
        self._database = database
        self._file = file
        self._tell = tell
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._known: dict[str, Entry] = {}
        (last,) = database.execute("SELECT max(sid) FROM sessions").fetchone()
        self._next_sid: int = (last or 0) + 1
        self._waiting: deque[Waiting] = deque()
        self._jobs: deque[Callable[[], None]] = deque()
        self._busy = False
        self._closing = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="perdure-store-write", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    async def apply(self, command: Command) -> Applied:
        """Decide and commit a command."""
        if self._closing:
            raise _closing()
        answer: asyncio.Future[Applied] = self._loop.create_future()
        self._waiting.append((command, answer))
        self._idle.clear()
        if len(self._waiting) == 1 and not self._busy:
            self._loop.call_soon(self._pump)
        return await answer

    def _pump(self) -> None:
        if self._busy:
            return
        if self._jobs:
            self._busy = True
            self._work.put(self._jobs.popleft())
            return
        if not self._waiting:
            self._idle.set()
            return
        taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), LARGEST_BATCH))]
        self._busy = True
        self._work.put(lambda: self._commit(taken))

    async def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Return `job(connection)`, run in the thread in a transaction of its own."""
        if self._closing:
            raise _closing()
        answer: asyncio.Future[T] = self._loop.create_future()
        self._jobs.append(lambda: self._do(job, answer))
        self._idle.clear()
        self._pump()
        return await answer

    def known(self, session_id: str) -> Entry | None:
        """Return a session that the cache has."""
        return self._known.get(session_id)

    # --- in the thread

    def _commit(self, taken: list[Waiting]) -> None:
        commands = [command for command, _ in taken]
        try:
            batch, outcomes = self._transact(commands)
        except BaseException as error:
            failure = translate(error, self._file)
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            self._loop.call_soon_threadsafe(self._fail, taken, failure)
        else:
            self._loop.call_soon_threadsafe(self._publish, taken, batch, outcomes)

    def _transact(self, commands: list[Command]) -> tuple[Batch, list[Outcome]]:
        self._database.execute("BEGIN IMMEDIATE")
        batch = self._new_batch()
        try:
            outcomes = [batch.add(command) for command in commands]
            batch.rows.write(self._database)
        except Exception:
            if not self._database.in_transaction:
                raise
            self._database.execute("ROLLBACK")
            self._database.execute("BEGIN IMMEDIATE")
            batch = self._new_batch()
            outcomes = [self._alone(batch, command) for command in commands]
        for command in commands:
            reach("store.commit.before", type(command).__name__)
        self._database.execute("COMMIT")
        return batch, outcomes

    def _new_batch(self) -> Batch:
        return Batch(self._database, self._known, self._next_sid, self._clock)

    def _alone(self, batch: Batch, command: Command) -> Outcome:
        """Decide and write a command in a savepoint of its own, after a group that one of them spoiled."""
        before = batch.entries.copy()
        self._database.execute("SAVEPOINT alone")
        try:
            outcome = batch.add(command)
            batch.rows.write(self._database)
        except Exception as error:
            if not self._database.in_transaction:
                raise
            self._database.execute("ROLLBACK TO alone")
            batch.rows = Rows()
            batch.entries = before
            outcome = Outcome(translate(error, self._file))
        self._database.execute("RELEASE alone")
        return outcome

    def _do(self, job: Callable[[sqlite3.Connection], T], answer: asyncio.Future[T]) -> None:
        try:
            self._database.execute("BEGIN IMMEDIATE")
            result = job(self._database)
            self._database.execute("COMMIT")
        except BaseException as error:
            if self._database.in_transaction:
                self._database.execute("ROLLBACK")
            self._loop.call_soon_threadsafe(self._done, answer, None, translate(error, self._file))
        else:
            self._loop.call_soon_threadsafe(self._done, answer, result, None)

    # --- back on the loop

    def _done(self, answer: asyncio.Future[Any], result: object, failure: PerdureError | None) -> None:
        if not answer.done():
            if failure is None:
                answer.set_result(result)
            else:
                answer.set_exception(failure)
        self._next()

    def _fail(self, taken: list[Waiting], failure: PerdureError) -> None:
        for command, answer in taken:
            self._known.pop(command.session_id, None)
            if not answer.done():
                answer.set_exception(failure)
        self._next()

    def _publish(self, taken: list[Waiting], batch: Batch, outcomes: list[Outcome]) -> None:
        self._known.update(batch.entries)
        self._next_sid = batch.next_sid
        for outcome in outcomes:
            if outcome.committed is not None:
                self._tell(outcome.committed)
        for (command, answer), outcome in zip(taken, outcomes, strict=True):
            self._answer(command, answer, outcome)
        self._next()

    def _answer(self, command: Command, answer: asyncio.Future[Applied], outcome: Outcome) -> None:
        if answer.done():
            return
        try:
            for point in ("store.commit.after", "store.publish.before"):
                reach(point, type(command).__name__)
        except CrashPointReached as error:
            answer.set_exception(StoreError(f"{error}. The command was committed; read the state."))
            return
        if isinstance(outcome.answer, PerdureError):
            answer.set_exception(outcome.answer)
        else:
            answer.set_result(outcome.answer)

    def _next(self) -> None:
        self._busy = False
        self._pump()

    async def close(self) -> None:
        """Finish the commits under way and close the connection."""
        self._closing = True
        await self._idle.wait()
        self._work.put(None)
        await asyncio.to_thread(self._thread.join)
        self._database.close()
