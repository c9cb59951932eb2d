"""The bare limit on PostgreSQL: a turn is three rows, one commit after the other, and nothing else.

`python -m bench.peers.pgref.driver FOLDER postgresql://…`

Rows of many conversations that arrive while a commit is on its way share the next one, on two connections; each commit
is one statement and one round trip. No rules, no ids, no heads, no events, no fence, no idempotency.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from typing import Any

import psycopg

from bench import load, wire

LANES = 2
SCHEMA = """CREATE TABLE IF NOT EXISTS entry (
    conversation text NOT NULL, position integer NOT NULL, kind text NOT NULL, body text NOT NULL,
    PRIMARY KEY (conversation, position))"""
INSERT = "INSERT INTO entry SELECT * FROM unnest(%b::text[], %b::int[], %b::text[], %b::text[])"
Row = tuple[str, int, str, str]


class Log:
    """One table, appended to on a few connections."""

    def __init__(self) -> None:
        self._pending: list[tuple[Row, asyncio.Future[None]]] = []
        self._some = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, url: str) -> None:
        for _ in range(LANES):
            connection = await psycopg.AsyncConnection.connect(url, autocommit=True, prepare_threshold=0)
            await connection.execute(SCHEMA)
            self._tasks.append(asyncio.create_task(self._write(connection)))

    async def append(self, row: Row) -> None:
        flushed = asyncio.get_running_loop().create_future()
        self._pending.append((row, flushed))
        self._some.set()
        await flushed

    async def _write(self, connection: psycopg.AsyncConnection[Any]) -> None:
        while True:
            await self._some.wait()
            batch, self._pending = self._pending, []
            self._some.clear()
            if batch:
                await connection.execute(
                    INSERT, [list(column) for column in zip(*(row for row, _ in batch), strict=True)]
                )
            for _, flushed in batch:
                flushed.set_result(None)


async def turn(log: Log, conversation: str, index: int) -> None:
    at = index * 3
    await log.append((conversation, at, "input", load.INPUT))
    await log.append((conversation, at + 1, "output", load.OUTPUT))
    await log.append((conversation, at + 2, "response", load.RESPONSE))


async def hello() -> dict[str, Any]:
    return {
        "system": "ref",
        "versions": {"psycopg": psycopg.__version__},
        "durability": f"PostgreSQL, group commit on {LANES} connections; 3 bare rows a turn",
    }


async def main() -> None:
    answers, log = wire.take_stdout(), Log()
    await log.open(sys.argv[2])
    one = partial(turn, log)
    operations: dict[str, wire.Operation] = {
        "hello": hello,
        "turns": partial(load.converse, one),
        "create": partial(load.open_many, one),
    }
    await wire.serve(operations, answers)


if __name__ == "__main__":
    wire.run(main)
