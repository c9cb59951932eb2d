"""10,000 sleeping sessions: what they cost in memory, and how fast they are made."""

from __future__ import annotations

import asyncio
import time

from bench.drivers import Driver
from bench.httpline import Line
from bench.ours import server
from bench.stage import Stage, in_rounds
from bench.stats import Goal, Sample, across, compare

TITLE = "10,000 sleeping sessions, each made with one turn"
SESSIONS = 10_000
CONNECTIONS = 20
ROUNDS = 3
MADE_A_ROUND = {"ours": 1500, "dbos": 200, "langgraph": 200, "ref": 3000}
AT_ONCE = 10
MIB = 1 << 20
PATIENCE = 100.0
"""Seconds for the server to put its last sessions to sleep; it keeps a few awake for a minute after their last turn."""


def run(stage: Stage) -> None:
    drivers = stage.start_all(list(MADE_A_ROUND))
    samples = in_rounds(list(drivers), ROUNDS, lambda name, turn: _make(stage, drivers[name], turn))
    for name, rounds in samples.items():
        stage.report.rows.append({"system": name, "made/s": across(rounds, lambda s: s.rate)})
    stage.exits.close()
    stage.report.goals += [_rate_goal(samples), asyncio.run(_memory_goal(stage))]
    stage.report.notes.append(f"made in process, {AT_ONCE} at a time, one durable turn in each")


def _make(stage: Stage, driver: Driver, turn: int) -> Sample:
    return stage.measure(driver, "create", count=MADE_A_ROUND[driver.system], at_once=AT_ONCE, tag=f"s{turn}")


def _rate_goal(samples: dict[str, list[Sample]]) -> Goal:
    both = {"ours", "dbos"} <= samples.keys()
    ratio = compare(samples["ours"], samples["dbos"], lambda s: s.rate) if both else None
    return Goal("sessions made a second, ours / DBOS", ratio, 10, at_least=True)


async def _memory_goal(stage: Stage) -> Goal:
    """Memory of a real server process, made to hold SESSIONS over HTTP, above that of the same server when empty."""
    with server.serving(stage.folder / "served") as served:
        empty, start = served.rss() / MIB, time.perf_counter()
        stage.note_contention()
        newest = await _fill(served.port)
        rate, awake = SESSIONS / (time.perf_counter() - start), served.rss() / MIB
        await _until_asleep(served.port, newest)
        asleep = served.rss() / MIB
    row = {"system": "ours, over HTTP", "made/s": rate, "RSS empty MiB": empty}
    row |= {"RSS just made MiB": awake, "RSS all asleep MiB": asleep}
    stage.report.rows.append(row)
    return Goal(f"memory of {SESSIONS:,} sleeping sessions above an empty server", asleep - empty, 20, unit="MiB")


async def _fill(port: int) -> list[str]:
    """Make the sessions; returns the ids of the last ones."""
    remaining = iter(range(SESSIONS))

    async def some(line: Line) -> str:
        newest = ""
        for _ in remaining:
            turn = await server.settled(line, await server.create(line, "plain"))
            newest = turn["session_id"]
        return newest

    return await server.on_lines(port, CONNECTIONS, some)


async def _until_asleep(port: int, sessions: list[str]) -> None:
    line = await Line.open(port)
    async with asyncio.timeout(PATIENCE):
        for session in sessions:
            while (await line.request("GET", f"/v1/sessions/{session}"))["run"] is not None:
                await asyncio.sleep(0.5)
    await line.close()
