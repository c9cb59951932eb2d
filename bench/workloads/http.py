"""One session over HTTP on a kept connection, next to the same turn in process."""

from __future__ import annotations

import asyncio
from typing import Any

from bench import load
from bench.httpline import Line
from bench.ours import server
from bench.stage import Stage, in_rounds
from bench.stats import Goal, Sample, across, compare

TITLE = "one session over HTTP keep-alive (enqueue, then wait), next to in-process"
ROUNDS = 5
TURNS = 150


def run(stage: Stage) -> None:
    inside = stage.require("ours")
    with server.serving(stage.folder / "served") as served, asyncio.Runner() as runner:
        line = runner.run(Line.open(served.port))
        first = runner.run(server.create(line, "plain"))

        async def turn(conversation: str, index: int) -> None:
            await server.settled(line, await server.enqueue(line, first["session_id"]))

        def once(name: str, number: int) -> Sample:
            stretch: dict[str, Any] = {"conversation": "one", "start": number * TURNS, "count": TURNS}
            if name == "in process":
                return stage.measure(inside, "extend", **stretch)
            stage.note_contention()
            return Sample.of(runner.run(load.extend(turn, **stretch)))

        samples = in_rounds(["in process", "http"], ROUNDS, once)
        runner.run(line.close())
    _tell(stage, samples)


def _tell(stage: Stage, samples: dict[str, list[Sample]]) -> None:
    for name, rounds in samples.items():
        row = {
            "way": name,
            "p50 ms": across(rounds, lambda s: s.p50 * 1e3),
            "p99 ms": across(rounds, lambda s: s.p99 * 1e3),
        }
        stage.report.rows.append(row)
    ratio = compare(samples["http"], samples["in process"], lambda s: s.p50)
    stage.report.goals.append(Goal("p50 of a turn, HTTP / in process", ratio, 5))
    stage.report.notes.append("a turn over HTTP is two requests on one connection; the client is a bare socket")
