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
BARE, APART, BURST = "bare fork+connect", "one now and then", "back to back"
PAUSES = {APART: 0.3, BURST: 0.0}
"""Seconds between two starts: the host keeps one forked process ready, and makes the next one when it has a moment."""
PATIENCE = 30.0
MIB = 1 << 20


def run(stage: Stage) -> None:
    turns: list[dict[str, Any]] = []
    with server.serving(stage.folder / "served") as served:

        def once(name: str, number: int) -> Sample:
            stage.note_contention()
            if name == BARE:
                return forkhost.sample(FORKS_A_ROUND)
            fresh = asyncio.run(_start_some(served.port, PAUSES[name]))
            turns.extend(fresh)
            return Sample.of({"latencies_us": [_start_us(turn) for turn in fresh]})

        asyncio.run(_start_some(served.port, 0.0, 1))  # the fork server itself starts with the first
        samples = in_rounds([APART, BARE, BURST], ROUNDS, once)
        weights = [_pss(turn["result"]["pid"]) for turn in turns]
        asyncio.run(_end_all(served.port))
    _tell(stage, samples, weights)


def _tell(stage: Stage, samples: dict[str, list[Sample]], weights: list[float]) -> None:
    for name, rounds in samples.items():
        p50, slowest = across(rounds, lambda s: s.p50 * 1e3), max(s.p99 for s in rounds) * 1e3
        stage.report.rows.append({"starts": name, "p50 ms": p50, "slowest ms": slowest})
    stage.report.rows.append({"starts": f"({len(weights)} idle processes)", "PSS MiB each": statistics.median(weights)})
    for name in PAUSES:
        ratio = compare(samples[name], samples[BARE], lambda s: s.p50)
        stage.report.goals.append(Goal(f"accepted input to running handler / bare fork+connect, {name}", ratio, 5))
    stage.report.goals += [
        Goal("PSS of an idle session process", statistics.median(weights), 6, unit="MiB"),
    ]
    stage.report.notes += [
        "from the turn's created_at (its commit) to the handler's first line, both on the wall clock of this machine",
        "one now and then: 0.3 s apart, so that the host has a forked process ready; back to back it has not",
        f"PSS counts shared pages in shares: it was read with {len(weights)} such processes alive",
    ]


async def _start_some(port: int, pause: float, count: int = SESSIONS_A_ROUND) -> list[dict[str, Any]]:
    """New sessions one after the other, each in a new process: their settled turns."""
    line, turns = await Line.open(port), []
    for _ in range(count):
        await asyncio.sleep(pause)
        turns.append(await server.settled(line, await server.create(line, "hosted")))
    await line.close()
    assert all(turn["status"] == "completed" for turn in turns), turns
    return turns


async def _end_all(port: int) -> None:
    """End the sessions and see their processes gone: a server that stops leaves them running, to be taken back."""
    line = await Line.open(port)
    open_ones = (await line.request("GET", "/v1/sessions?agent=hosted&status=open&limit=100"))["sessions"]
    for session in open_ones:
        await line.request("POST", f"/v1/sessions/{session['id']}/cancel", {})
    async with asyncio.timeout(PATIENCE):
        for session in open_ones:
            while (await line.request("GET", f"/v1/sessions/{session['id']}"))["run"] is not None:
                await asyncio.sleep(0.05)
    await line.close()


def _start_us(turn: dict[str, Any]) -> float:
    accepted = datetime.fromisoformat(turn["created_at"]).timestamp() * 1e6
    return float(turn["result"]["running_at_us"] - accepted)


def _pss(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024 / MIB
    raise AssertionError(f"process {pid} has no Pss")
