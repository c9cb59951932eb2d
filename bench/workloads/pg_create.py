"""How fast sessions are made on PostgreSQL, each with its first turn."""

from __future__ import annotations

import statistics
import time
from functools import partial

from bench.installation import OURS, SERVED, Installation, Taken
from bench.stage import Stage
from bench.stats import Goal, ratio_of_rounds

TITLE = "sessions made a second on one PostgreSQL, each with its first durable turn"
MADE_A_ROUND = {OURS: 800, SERVED: 800, "dbos": 300, "langgraph": 100, "restate": 600, "ref": 3000}
AT_ONCE = 50
ROUNDS = 3
Rounds = dict[str, list[Taken]]


def run(stage: Stage) -> None:
    installation = Installation(stage)
    systems = installation.start_all(list(MADE_A_ROUND))
    names, rounds = list(systems), Rounds()
    before = {name: _size(installation, systems[name].database) for name in names}
    for number in range(ROUNDS):
        for name in [*names[number % len(names) :], *names[: number % len(names)]]:
            tag = f"made-{number}-{time.monotonic_ns()}"
            taken = installation.take(systems[name], "create", count=MADE_A_ROUND[name], at_once=AT_ONCE, tag=tag)
            rounds.setdefault(name, []).append(taken)
    for name in names:
        grown = _size(installation, systems[name].database) - before[name]
        stage.report.rows.append(_row(name, rounds, grown / (ROUNDS * MADE_A_ROUND[name])))
    against = partial(_against, rounds)
    stage.report.goals += [
        Goal("sessions made a second, ours / DBOS", against(OURS, "dbos"), 5, at_least=True),
        Goal("sessions made a second, ours / LangGraph", against(OURS, "langgraph"), 5, at_least=True),
        Goal("sessions made a second, ours http / Restate (http too)", against(SERVED, "restate"), 2, at_least=True),
    ]
    stage.report.notes += [
        f"{AT_ONCE} at a time, {ROUNDS} rounds, systems in turn; ours makes an addressable session with its turn,"
        " the peers a workflow (dbos), a thread (langgraph), a virtual object (restate)",
        "disk: growth of the database, as long as nothing was vacuumed, over the sessions made",
    ]


def _size(installation: Installation, database: str | None) -> float:
    if database is None:
        return 0.0
    ((size,),) = installation.postgres.sql("SELECT pg_database_size(%s)", (database,))
    return float(size)


def _row(name: str, rounds: Rounds, grown: float) -> dict[str, object]:
    mine = rounds[name]
    return {
        "system": name,
        "made/s": statistics.median(taken.sample.rate for taken in mine),
        "p50 ms": statistics.median(taken.sample.p50 * 1e3 for taken in mine),
        "p99 ms": statistics.median(taken.sample.p99 * 1e3 for taken in mine),
        "cpu ms each": statistics.median((taken.own_cpu + taken.database_cpu) / taken.turns * 1e3 for taken in mine),
        "disk kB each": grown / 1e3 or None,
        "ours/it": _against(rounds, OURS, name),
        "ours http/it": _against(rounds, SERVED, name),
    }


def _against(rounds: Rounds, above: str, below: str) -> float | None:
    if above not in rounds or below not in rounds:
        return None
    rates = {name: [taken.sample.rate for taken in rounds[name]] for name in (above, below)}
    return ratio_of_rounds(rates[above], rates[below])
