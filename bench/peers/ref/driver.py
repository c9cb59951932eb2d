"""The bare limit: a turn is three rows committed one after the other to one SQLite database, and nothing else.

WAL, `synchronous=FULL`, one writer thread, group commit: rows of many conversations that arrive while a commit is being
flushed share the next one. A caller goes on after the flush. No rules, no ids, no events, no idempotency: a durable
turn in Python on SQLite cannot be cheaper than this.
"""

from __future__ import annotations

import asyncio
import platform
import queue
import sqlite3
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

from bench import disk, load, wire

SCHEMA = """CREATE TABLE IF NOT EXISTS entry (
    conversation TEXT NOT NULL, position INTEGER NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (conversation, position)) WITHOUT ROWID"""
INSERT = "INSERT INTO entry VALUES (?, ?, ?, ?)"
BATCH = 256
Row = tuple[str, int, str, str]


class Log:
    """One table, appended to by one thread."""

    def __init__(self, path: Path) -> None:
        self._pending: queue.SimpleQueue[tuple[Row, asyncio.Future[None]]] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", SCHEMA):
            self._database.execute(statement)
        threading.Thread(target=self._write, daemon=True).start()

    async def append(self, row: Row) -> None:
        flushed = self._loop.create_future()
        self._pending.put((row, flushed))
        await flushed

    def _write(self) -> None:
        while True:
            batch = [self._pending.get()]
            while len(batch) < BATCH and not self._pending.empty():
                batch.append(self._pending.get_nowait())
            failure = self._commit([row for row, _ in batch])
            self._loop.call_soon_threadsafe(_release, [flushed for _, flushed in batch], failure)

    def _commit(self, rows: list[Row]) -> sqlite3.Error | None:
        try:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany(INSERT, rows)
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            self._database.rollback()
            return error
        return None


def _release(waiting: list[asyncio.Future[None]], failure: sqlite3.Error | None) -> None:
    for flushed in waiting:
        if failure is None:
            flushed.set_result(None)
        else:
            flushed.set_exception(failure)


async def turn(log: Log, conversation: str, index: int) -> None:
    at = index * 3
    await log.append((conversation, at, "input", load.INPUT))
    await log.append((conversation, at + 1, "output", load.OUTPUT))
    await log.append((conversation, at + 2, "response", load.RESPONSE))


async def stored(path: Path) -> int:
    """Bytes of the database file with its log folded in."""
    return await asyncio.to_thread(disk.stored, path)


async def hello() -> dict[str, Any]:
    return {
        "system": "ref",
        "versions": {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version},
        "durability": "SQLite WAL, synchronous=FULL, group commit; 3 bare rows a turn",
    }


async def main() -> None:
    answers = wire.take_stdout()
    path = Path(sys.argv[1]) / "ref.db"
    one = partial(turn, Log(path))
    await wire.serve(
        {
            "hello": hello,
            "turns": partial(load.converse, one),
            "create": partial(load.open_many, one),
            "extend": partial(load.extend, one),
            "stored": partial(stored, path),
        },
        answers,
    )


if __name__ == "__main__":
    wire.run(main)
