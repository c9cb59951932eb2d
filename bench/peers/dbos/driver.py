"""DBOS on its SQLite system database, or on PostgreSQL, called in process: a turn is one workflow with one step.

`python -m bench.peers.dbos.driver FOLDER [postgresql://…]`

The three durable points: the workflow's row with its input, the step's recorded output, the workflow's recorded result.
DBOS does not order the turns of a conversation; here the load does, which is the cheapest way to have them ordered.
"""

from __future__ import annotations

import sqlite3
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dbos import DBOS, SetWorkflowID

from bench import load, wire

gate = load.Gate()


@DBOS.step()
async def work(text: str) -> str:
    await gate.enter()
    return load.OUTPUT


@DBOS.workflow()
async def respond(text: str) -> str:
    await work(text)
    return load.RESPONSE


async def turn(conversation: str, index: int) -> None:
    with SetWorkflowID(f"{conversation}-{index}"):
        await respond(load.INPUT)


async def recover(count: int) -> int:
    """Wait for turns that were in flight when the process before this one died; DBOS restarts them by itself."""
    for number in range(count):
        handle = await DBOS.retrieve_workflow_async(f"stuck-{number}-0")
        assert await handle.get_result(polling_interval_sec=0.01) == load.RESPONSE
    return count


def journal_mode(path: Path) -> str:
    """As stored in the file, if it is WAL; otherwise a rollback journal, SQLite's default."""
    with sqlite3.connect(path) as database:
        return str(database.execute("PRAGMA journal_mode").fetchone()[0])


async def hello(path: Path | None) -> dict[str, Any]:
    sqlite = f"SQLite journal_mode={journal_mode(path)}, synchronous: SQLite's default, FULL" if path else None
    return {
        "system": "dbos",
        "versions": {"dbos": version("dbos"), "sqlalchemy": version("sqlalchemy")},
        "durability": sqlite or "PostgreSQL, its own pool and settings",
    }


async def main() -> None:
    answers = wire.take_stdout()
    path = Path(sys.argv[1]) / "dbos.db" if len(sys.argv) == 2 else None
    DBOS(
        config={
            "name": "bench",
            "system_database_url": f"sqlite:///{path}" if path else sys.argv[2],
            "log_level": "ERROR",
            "run_admin_server": False,
            "application_version": "1",
            "executor_id": "bench",
        }
    )
    DBOS.launch()
    await wire.serve(
        {
            "hello": partial(hello, path),
            "turns": partial(load.converse, turn),
            "create": partial(load.open_many, turn),
            "extend": partial(load.extend, turn),
            "hold": partial(gate.hold, turn),
            "recover": recover,
        },
        answers,
    )


if __name__ == "__main__":
    wire.run(main)
