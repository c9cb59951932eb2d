"""The process host: from accepted input to a handler running in a new process, and what an idle process weighs."""

from __future__ import annotations

import asyncio
import statistics
from datetime import datetime
from pathlib import Path
from typing import Any

from bench import forkhost
from bench.httpline import Line
from bench.ours import server
from bench.stage import Stage, in_rounds
from bench.stats import Goal, Sample, across, compare

TITLE = "a session's own process: start, and memory when idle"
ROUNDS = 4
SESSIONS_A_ROUND = 5
FORKS_A_ROUND = 50
MIB = 1 << 20


def run(stage: Stage) -> None:
    turns: list[dict[str, Any]] = []
    with server.serving(stage.folder / "served") as served:

        def once(name: str, number: int) -> Sample:
            stage.note_contention()
            if name == "bare fork+connect":
                return forkhost.sample(FORKS_A_ROUND)
            fresh = asyncio.run(_start_some(served.port))
            turns.extend(fresh)
            return Sample.of({"latencies_us": [_start_us(turn) for turn in fresh]})

        asyncio.run(_start_some(served.port, 1))  # the fork server itself starts with the first
        samples = in_rounds(["process host", "bare fork+connect"], ROUNDS, once)
        weights = [_pss(turn["result"]["pid"]) for turn in turns]
    _tell(stage, samples, weights)


def _tell(stage: Stage, samples: dict[str, list[Sample]], weights: list[float]) -> None:
    for name, rounds in samples.items():
        p50, slowest = across(rounds, lambda s: s.p50 * 1e3), max(s.p99 for s in rounds) * 1e3
        stage.report.rows.append({"what": name, "p50 ms": p50, "slowest ms": slowest})
    stage.report.rows.append({"what": f"{len(weights)} idle processes", "PSS MiB each": statistics.median(weights)})
    ratio = compare(samples["process host"], samples["bare fork+connect"], lambda s: s.p50)
    stage.report.goals += [
        Goal("accepted input to running handler / bare fork+connect", ratio, 5),
        Goal("PSS of an idle session process", statistics.median(weights), 6, unit="MiB"),
    ]
    stage.report.notes += [
        "from the turn's created_at (its commit) to the handler's first line, both on the wall clock of this machine",
        f"PSS counts shared pages in shares: it was read with {len(weights)} such processes alive",
    ]


async def _start_some(port: int, count: int = SESSIONS_A_ROUND) -> list[dict[str, Any]]:
    """New sessions one after the other, each in a new process: their settled turns."""
    line = await Line.open(port)
    turns = [await server.settled(line, await server.create(line, "hosted")) for _ in range(count)]
    await line.close()
    assert all(turn["status"] == "completed" for turn in turns), turns
    return turns


def _start_us(turn: dict[str, Any]) -> float:
    accepted = datetime.fromisoformat(turn["created_at"]).timestamp() * 1e6
    return float(turn["result"]["running_at_us"] - accepted)


def _pss(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / MIB
    raise AssertionError(f"process {pid} has no Pss")
