"""One session over HTTP on a kept connection, next to the same turn in process."""

from __future__ import annotations

import asyncio
from typing import Any

import perdure
from bench import load
from bench.httpline import Line
from bench.ours import server
from bench.stage import Stage, in_rounds
from bench.stats import Goal, Sample, across, compare

TITLE = "one session over HTTP keep-alive (enqueue, then wait), next to in-process"
ROUNDS = 5
TURNS = 150
INSIDE, BARE, TYPED = "in process", "http", "http, perdure.AsyncClient"


def run(stage: Stage) -> None:
    inside = stage.require("ours")
    with server.serving(stage.folder / "served") as served, asyncio.Runner() as runner:
        line = runner.run(Line.open(served.port))
        session = runner.run(server.create(line, "plain"))["session_id"]
        client = perdure.AsyncClient(f"http://127.0.0.1:{served.port}")
        turns = {BARE: _bare_turn(line, session), TYPED: _typed_turn(client, session)}

        def once(way: str, number: int) -> Sample:
            stretch: dict[str, Any] = {"conversation": "one", "start": number * TURNS, "count": TURNS}
            if way == INSIDE:
                return stage.measure(inside, "extend", **stretch)
            stage.note_contention()
            return Sample.of(runner.run(load.extend(turns[way], **stretch)))

        samples = in_rounds([INSIDE, BARE, TYPED], ROUNDS, once)
        runner.run(line.close())
        runner.run(client.close())
    _tell(stage, samples)


def _bare_turn(line: Line, session: str) -> load.Turn:
    async def turn(conversation: str, index: int) -> None:
        await server.settled(line, await server.enqueue(line, session))

    return turn


def _typed_turn(client: perdure.AsyncClient, session: str) -> load.Turn:
    handle = client.session(session)

    async def turn(conversation: str, index: int) -> None:
        receipt = await handle.enqueue(text=load.INPUT)
        assert receipt.turn_id is not None
        await handle.turn(receipt.turn_id).wait()

    return turn


def _tell(stage: Stage, samples: dict[str, list[Sample]]) -> None:
    for way, rounds in samples.items():
        row = {
            "way": way,
            "p50 ms": across(rounds, lambda s: s.p50 * 1e3),
            "p99 ms": across(rounds, lambda s: s.p99 * 1e3),
            "it/in process p50": compare(rounds, samples[INSIDE], lambda s: s.p50),
        }
        stage.report.rows.append(row)
    ratio = compare(samples[BARE], samples[INSIDE], lambda s: s.p50)
    stage.report.goals.append(Goal("p50 of a turn, HTTP / in process", ratio, 5))
    stage.report.notes.append(
        "a turn over HTTP is two requests on one kept connection; the goal is held against a client that costs next to"
        " nothing, the last row is our typed client"
    )
