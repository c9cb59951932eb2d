"""LangGraph, a thread a conversation, SQLite or Postgres checkpointer, `durability="sync"`.

`python -m bench.peers.langgraph.driver FOLDER [postgresql://…]`

The graph has two nodes, so that a turn has the three durable points of ours: the checkpoint of the input, the one after
the node that makes the output, the one after the node that makes the response. Messages are plain dicts under
`operator.add` (the cheap reducer; `add_messages` costs more).
"""

from __future__ import annotations

import asyncio
import operator
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from bench import disk, load, wire


class State(TypedDict):
    messages: Annotated[list[dict[str, str]], operator.add]


gate = load.Gate()


async def work(state: State) -> dict[str, Any]:
    await gate.enter()
    return {"messages": [{"role": "tool", "content": load.OUTPUT}]}


async def respond(state: State) -> dict[str, Any]:
    return {"messages": [{"role": "assistant", "content": load.RESPONSE}]}


def build(saver: BaseCheckpointSaver[Any]) -> Any:
    graph = StateGraph(State)
    graph.add_node("work", work)
    graph.add_node("respond", respond)
    graph.add_edge(START, "work")
    graph.add_edge("work", "respond")
    graph.add_edge("respond", END)
    return graph.compile(checkpointer=saver)


async def turn(graph: Any, conversation: str, index: int) -> None:
    message = {"role": "user", "content": load.INPUT}
    where = {"configurable": {"thread_id": conversation}}
    await graph.ainvoke({"messages": [message]}, where, durability="sync")


async def recover(graph: Any, count: int) -> int:
    """Finish turns that were in flight when the process before this one died.

    LangGraph has no list of them: the application must know each thread and invoke it again.
    """
    threads = [{"configurable": {"thread_id": f"stuck-{number}"}} for number in range(count)]
    ended = await asyncio.gather(*[graph.ainvoke(None, where, durability="sync") for where in threads])
    assert all(state["messages"][-1]["content"] == load.RESPONSE for state in ended)
    return count


async def pragma(saver: AsyncSqliteSaver, name: str) -> Any:
    async with saver.conn.execute(f"PRAGMA {name}") as cursor:
        row = await cursor.fetchone()
        assert row is not None
        return row[0]


async def hello(saver: AsyncSqliteSaver | AsyncPostgresSaver) -> dict[str, Any]:
    package, store = "langgraph-checkpoint-postgres", "PostgreSQL, a pool of 10 to 20 connections"
    if isinstance(saver, AsyncSqliteSaver):
        journal, sync = await pragma(saver, "journal_mode"), await pragma(saver, "synchronous")
        package, store = "langgraph-checkpoint-sqlite", f"SQLite journal_mode={journal}, synchronous={sync} (2 = FULL)"
    return {
        "system": "langgraph",
        "versions": {name: version(name) for name in ("langgraph", package)},
        "durability": f"{store}, durability=sync",
    }


async def stored(path: Path) -> int:
    """Bytes of the database file with its log folded in."""
    return await asyncio.to_thread(disk.stored, path)


@asynccontextmanager
async def saving(path: Path, url: str | None) -> AsyncIterator[AsyncSqliteSaver | AsyncPostgresSaver]:
    """The checkpointer, set up."""
    if url is None:
        async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
            await saver.setup()
            yield saver
        return
    # As its documentation has it, and prepared from the first use on.
    settings: dict[str, Any] = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(url, min_size=10, max_size=20, kwargs=settings) as pool:
        postgres = AsyncPostgresSaver(pool)
        await postgres.setup()
        yield postgres


async def main() -> None:
    answers = wire.take_stdout()
    path = Path(sys.argv[1]) / "langgraph.db"
    async with saving(path, sys.argv[2] if len(sys.argv) > 2 else None) as saver:
        one = partial(turn, build(saver))
        await wire.serve(
            {
                "hello": partial(hello, saver),
                "turns": partial(load.converse, one),
                "create": partial(load.open_many, one),
                "extend": partial(load.extend, one),
                "hold": partial(gate.hold, one),
                "recover": partial(recover, build(saver)),
                "stored": partial(stored, path),
            },
            answers,
        )


if __name__ == "__main__":
    wire.run(main)
