"""One of two workers on PostgreSQL goes with 100 turns in flight, killed or told to stop: when does the other go on?"""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.drivers import Driver
from bench.httpline import Line
from bench.installation import Installation
from bench.ours import server
from bench.ours.parts import Server, Worker
from bench.stage import Stage
from bench.stats import Goal

TITLE = "one of two workers is killed, or stops, with 100 turns in flight and an input behind each"
IN_FLIGHT = 100
CONNECTIONS = 10
KILLED = (2, 2, 15)
"""Lengths of the lease, in seconds, in the rounds with `kill -9`."""
STOPPED = (15, 15)
"""The same in those with SIGTERM: a lease that is given back need not run out."""
STILL_RUNNING = 0.2
"""For how many seconds turns go on after the SIGTERM."""
THERE = "/"
Receipts = list[tuple[dict[str, Any], dict[str, Any]]]


def run(stage: Stage) -> None:
    installation = Installation(stage)
    killed = [_round(installation, lease, number, kill=True) for number, lease in enumerate(KILLED)]
    stopped = [_round(installation, lease, number, kill=False) for number, lease in enumerate(STOPPED)]
    stage.report.rows += [*killed, *stopped]
    for peer in ("dbos", "langgraph", "restate"):
        stage.report.rows += _peer(installation, peer)
    beyond = max(row["all went on s"] - lease for row, lease in zip(killed, KILLED, strict=True))
    behind = max(row["all went on s"] - STILL_RUNNING for row in stopped)
    stage.report.goals += [
        Goal(f"kill -9: all {IN_FLIGHT} settled and gone on, beyond the lease, slowest round", beyond, 3, unit="s"),
        Goal(f"SIGTERM: all {IN_FLIGHT} ended and gone on, beyond their running, slowest round", behind, 3, unit="s"),
    ]
    stage.report.notes += [
        f"the first of two workers has {IN_FLIGHT} sessions, each with a turn that runs and an input behind it; the"
        " second has none; a turn that ends against the rule (killed: interrupted, stopped: completed) breaks the run",
        f"SIGTERM: the turns run for another {STILL_RUNNING:g} s and may finish; kill -9: they would never end",
        "from the signal to the commit of the last end, on this machine's clock (seen: as a client hears it); a lease"
        " is renewed three times in its length, so after a kill two thirds to all of it pass before anybody acts",
        "peers run the turns again: from the start of the next process, imports included (dbos, langgraph: on the same"
        " PostgreSQL; restate: only its service is killed, its server goes on)",
    ]


def _round(installation: Installation, lease: int, number: int, *, kill: bool) -> dict[str, Any]:
    name, length = f"{'killed' if kill else 'stopped'}{number}", f"{lease}s"
    url, folder = installation.postgres.new_database(name), installation.stage.folder
    gate = folder / f"{name}-gate"
    with Server(folder, f"{name}-server", url) as api, Worker(folder, f"{name}-first", url, lease=length) as first:
        api.deploy()
        sessions = asyncio.run(_made(api.port))
        with Worker(folder, f"{name}-second", url, lease=length):
            receipts = asyncio.run(_put_in_flight(api.port, sessions, gate))
            installation.stage.note_contention()
            at = time.time()
            if kill:
                first.kill()
            else:
                first.terminate()
                time.sleep(STILL_RUNNING)
                gate.touch()
            turns = asyncio.run(_settled(api.port, receipts))
            seen = time.time()
    _check([turn for turn, _ in turns], "interrupted" if kill else "completed")
    _check([behind for _, behind in turns], "completed")
    return {
        "system": f"ours, {'kill -9' if kill else 'SIGTERM'}",
        "lease s": lease,
        "turns": len(turns),
        "all settled s": max(_ended(turn) for turn, _ in turns) - at,
        "all went on s": max(_ended(behind) for _, behind in turns) - at,
        "all seen s": seen - at,
    }


def _check(turns: list[dict[str, Any]], status: str) -> None:
    wrong = [turn for turn in turns if turn["status"] != status]
    assert not wrong, f"{len(wrong)} turns were not {status}, such as {wrong[0]}"


def _ended(turn: dict[str, Any]) -> float:
    return datetime.fromisoformat(turn["ended_at"]).timestamp()


async def _made(port: int) -> list[str]:
    """Sessions that the only worker has, with a first turn behind them."""

    async def some(line: Line) -> list[str]:
        receipts = [await server.create(line, "waiting", THERE) for _ in range(IN_FLIGHT // CONNECTIONS)]
        return [(await server.settled(line, receipt))["session_id"] for receipt in receipts]

    return [session for sessions in await server.on_lines(port, CONNECTIONS, some) for session in sessions]


async def _put_in_flight(port: int, sessions: list[str], gate: Path) -> Receipts:
    waiting = _shares(sessions)

    async def some(line: Line) -> Receipts:
        mine = waiting.pop()
        running = [await server.enqueue(line, session, str(gate)) for session in mine]
        behind = [await server.enqueue(line, session, THERE) for session in mine]
        for receipt in running:
            await server.output_of(line, receipt["session_id"], turn=receipt["turn_id"])
        return list(zip(running, behind, strict=True))

    return [pair for pairs in await server.on_lines(port, CONNECTIONS, some) for pair in pairs]


async def _settled(port: int, receipts: Receipts) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each turn and the one behind it, as they ended."""
    waiting = _shares(receipts)

    async def some(line: Line) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        mine = waiting.pop()
        return [(await server.settled(line, turn), await server.settled(line, behind)) for turn, behind in mine]

    return [pair for pairs in await server.on_lines(port, CONNECTIONS, some) for pair in pairs]


def _shares(things: list[Any]) -> list[list[Any]]:
    return [things[start::CONNECTIONS] for start in range(CONNECTIONS)]


def _peer(installation: Installation, peer: str) -> list[dict[str, Any]]:
    """The same of a peer, once."""
    if peer == "restate":
        system = installation.start(peer)
        seconds = None if system is None else system.driver.ask("crash", count=IN_FLIGHT)
    else:
        seconds = _restarted(installation, peer)
    return [] if seconds is None else [{"system": peer, "turns": IN_FLIGHT, "all seen s": seconds}]


def _restarted(installation: Installation, peer: str) -> float | None:
    system = installation.start(peer)
    if system is None:
        return None
    system.driver.ask("hold", count=IN_FLIGHT)
    system.driver.kill()
    start = time.monotonic()
    with Driver(peer, installation.stage.folder, installation.postgres.url(peer)) as second:
        second.ask("recover", count=IN_FLIGHT)
        return time.monotonic() - start
