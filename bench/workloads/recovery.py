"""`kill -9` of a real server with 100 inline turns in flight: how long after its successor is ready are all settled?"""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.drivers import Driver
from bench.httpline import Line
from bench.ours import server
from bench.stage import Stage
from bench.stats import Goal

TITLE = "kill -9 of the server with 100 inline turns in flight"
IN_FLIGHT = 100
ROUNDS = 3
CONNECTIONS = 10


def run(stage: Stage) -> None:
    folder = stage.folder / "served"
    rounds = [_once(stage, folder, number) for number in range(ROUNDS)]
    stage.report.rows += rounds
    stage.report.rows += [row for peer in ("dbos", "langgraph") for row in _peer(stage, peer)]
    worst = max(row["seen settled after ready s"] for row in rounds)
    stage.report.goals.append(Goal(f"all {IN_FLIGHT} settled after readiness, slowest round", worst, 1, unit="s"))
    stage.report.notes += [
        "settled by their rule: interrupted, as their process is gone; a turn settled otherwise breaks the run off",
        "a peer runs the turns in flight again (LangGraph: only those that its application asks it for)",
        "seen = a client found every turn ended by asking for each; recorded = the server's own time of the last end",
    ]


def _once(stage: Stage, folder: Path, number: int) -> dict[str, Any]:
    stage.note_contention()
    first = server.Server(folder)
    try:
        receipts = asyncio.run(_put_in_flight(first.port))
    finally:
        first.kill()
    with server.serving(folder) as second:
        turns = asyncio.run(_settle(second.port, receipts))
        seen = time.time()
    last = max(datetime.fromisoformat(turn["ended_at"]).timestamp() for turn in turns)
    return {
        "system": f"ours, round {number + 1}",
        "turns": len(turns),
        "start to ready s": second.ready_at - second.started_at,
        "start to recorded settled s": last - second.started_at,
        "recorded settled after ready s": max(0.0, last - second.ready_at),
        "seen settled after ready s": seen - second.ready_at,
        "start to all seen settled s": seen - second.started_at,
    }


def _peer(stage: Stage, peer: str) -> list[dict[str, Any]]:
    """The same of a peer, once, for its total: no peer says when it is ready."""
    driver = stage.start(peer)
    if driver is None:
        return []
    driver.ask("hold", count=IN_FLIGHT)
    driver.kill()
    start = time.monotonic()
    with Driver(peer, stage.folder) as second:
        second.ask("recover", count=IN_FLIGHT)
        total = time.monotonic() - start
    return [{"system": peer, "turns": IN_FLIGHT, "start to all seen settled s": total}]


async def _put_in_flight(port: int) -> list[dict[str, Any]]:
    """Sessions whose one turn runs and has committed its output."""

    async def some(line: Line) -> list[dict[str, Any]]:
        receipts = [await server.create(line, "stuck") for _ in range(IN_FLIGHT // CONNECTIONS)]
        for receipt in receipts:
            await server.output_of(line, receipt["session_id"])
        return receipts

    return [receipt for receipts in await server.on_lines(port, CONNECTIONS, some) for receipt in receipts]


async def _settle(port: int, receipts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    share = len(receipts) // CONNECTIONS
    waiting = [receipts[start : start + share] for start in range(0, len(receipts), share)]

    async def some(line: Line) -> list[dict[str, Any]]:
        return [await server.settled(line, receipt) for receipt in waiting.pop()]

    turns = [turn for turns in await server.on_lines(port, CONNECTIONS, some) for turn in turns]
    wrong = [turn for turn in turns if (turn["status"], turn["reason"]) != ("interrupted", "process_lost")]
    assert not wrong, f"{len(wrong)} turns settled otherwise, such as {wrong[0]}"
    return turns
