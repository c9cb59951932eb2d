"""A million sleeping sessions in one PostgreSQL beside ten thousand: does anything that runs grow with them?"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from bench import multiply, plans
from bench.drivers import Driver
from bench.installation import Installation
from bench.plans import Asked, Plan
from bench.report import number
from bench.stage import Stage, in_rounds
from bench.stats import Goal, Sample, across, compare

FEW = 10_000
MANY = int(os.environ.get("PERDURE_BENCH_SLEEPERS", "1000000"))
TITLE = f"{MANY:,} sleeping sessions on PostgreSQL beside {FEW:,}: plans, latency, size"
KEY = "user-0"
ROUNDS = 5
AWAKE_TURNS = 60
WOKEN = 20
AT_ONCE = 10
SECONDS = 1.5
TIMES = 3
"""How often each plan is run; the first time also reads pages from the disk."""


@dataclass(frozen=True)
class World:
    """One database with so many sessions that sleep."""

    name: str
    count: int
    seconds: float
    plans: dict[tuple[str, str], Plan]
    asked: list[Asked]
    scans: dict[str, frozenset[str]]
    before_statistics: list[str]
    sizes: dict[str, tuple[int, int]]

    def faults(self) -> list[str]:
        found = [
            f"{name}, generic: reads all of {table}"
            for name, tables in self.scans.items()
            for table in tables & multiply.GROWING
        ]
        for asked in self.asked:
            for mode in plans.ASKED_MODES:
                found += [f"{asked.title}: {fault}" for fault in self.plans[asked.title, mode].faults(asked)]
        return sorted(set(found))


def run(stage: Stage) -> None:
    installation = Installation(stage)
    few, many = (_world(installation, f"sleepers_{count}", count) for count in (FEW, MANY))
    for asked in many.asked:
        stage.report.rows.append(_row(asked, few, many))
    _plan_goals(stage, few, many)
    drivers = {world.count: _driver(installation, world) for world in (few, many)}
    _latencies(stage, drivers)
    _sizes(stage, many)


# --- making a world


def _world(installation: Installation, name: str, count: int) -> World:
    postgres, folder = installation.postgres, installation.stage.folder / name
    folder.mkdir()
    with Driver("ours", folder, postgres.new_database(name), "restless") as driver:
        driver.ask("hello")
        original = driver.ask("keyed", key=KEY)
        driver.ask("asleep")
    with postgres.connect(name) as connection:
        start = time.monotonic()
        multiply.multiply(connection, original, count)
        seconds = time.monotonic() - start
        early = _without_statistics(connection, count)
        connection.execute("VACUUM ANALYZE")
        sizes = multiply.sizes(connection)
        with plans.staged(connection, count):
            asked = plans.asked(count)
            found = {(one.title, mode): _best(connection, one, mode) for one in asked for mode in plans.ASKED_MODES}
            scans = {each: plans.shape(connection, each) for each in plans.all_statements()}
    return World(name, count, seconds, found, asked, scans, early, sizes)


def _without_statistics(connection: psycopg.Connection[Any], count: int) -> list[str]:
    """Statements whose plans would grow if nothing had been analysed yet, as just after a restore."""
    with plans.staged(connection, count, analyzed=False):
        asked = plans.asked(count)
        return [one.title for one in asked if plans.explain(connection, one, "custom").faults(one)]


def _best(connection: psycopg.Connection[Any], asked: Asked, mode: str) -> Plan:
    return min((plans.explain(connection, asked, mode) for _ in range(TIMES)), key=lambda plan: plan.ms)


# --- what the plans say


def _row(asked: Asked, few: World, many: World) -> dict[str, object]:
    small, large = (world.plans[asked.title, "settled"] for world in (few, many))
    return {
        "statement": asked.title,
        "things": asked.things,
        f"rows at {FEW:,}": small.rows,
        f"at {MANY:,}": large.rows,
        f"pages at {FEW:,}": small.pages,
        f" at {MANY:,}": large.pages,
        f"ms at {FEW:,}": small.ms,
        f"  at {MANY:,}": large.ms,
        "through": ", ".join(dict.fromkeys(large.indexes)) or "no index",
    }


def _plan_goals(stage: Stage, few: World, many: World) -> None:
    faults = many.faults()
    pages = [sum(world.plans[one.title, "settled"].pages for one in world.asked) for world in (few, many)]
    stage.report.goals += [
        Goal("statements with plans that grow with sleeping sessions", len(faults), 0, at_most=True, unit=""),
        Goal(f"pages of all statements together, {MANY:,} / {FEW:,}", pages[1] / pages[0], 1.5),
    ]
    stage.report.notes += [
        "each statement is run by EXPLAIN (ANALYZE, BUFFERS), with its plan for these values and with the one"
        " that PostgreSQL settles on when it is prepared (shown); what it changes is undone. things: what it is about",
        f"among the sleepers: {plans.OWNED} sessions that a worker has, {plans.FREE} that nobody has, {plans.ORPHANS}"
        f" of a dead worker, {plans.DUE} that are due",
        f"of all {len(many.scans)} statements but those that copy a whole store, the generic plans were looked at",
        *[f"GROWS at {MANY:,}: {fault}" for fault in faults],
        "before ANALYZE, with what statistics there were by then (none, as after a restore, or autovacuum's), these"
        f" would have grown as well: {', '.join(many.before_statistics) or 'none'}",
    ]


# --- what a turn takes


def _driver(installation: Installation, world: World) -> Driver:
    folder: Path = installation.stage.folder / world.name
    start = time.monotonic()
    driver = installation.stage.exits.enter_context(Driver("ours", folder, installation.postgres.url(world.name)))
    installation.stage.report.systems.setdefault("ours", driver.ask("hello"))
    seconds = time.monotonic() - start
    copies = {f"copy-{copy}": multiply.session(copy) for copy in range(1, ROUNDS * WOKEN + 1)}
    driver.ask("know", sessions=copies)
    driver.ask("turns", conversations=AT_ONCE, turns=40, seconds=0.5, tag="warm")
    rss = int(Path(f"/proc/{driver.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    installation.stage.report.notes.append(
        f"a worker beside {world.count:,} sleepers: started and ready after {seconds:.2f} s, {rss:.0f} MiB resident"
    )
    return driver


def _latencies(stage: Stage, drivers: dict[int, Driver]) -> None:
    names = [str(count) for count in drivers]
    alone = in_rounds(names, ROUNDS, lambda name, turn: _alone(stage, drivers[int(name)], turn))
    woken = in_rounds(names, ROUNDS, lambda name, turn: _woken(stage, drivers[int(name)], turn))
    busy = in_rounds(names, ROUNDS, lambda name, turn: _busy(stage, drivers[int(name)], turn))
    few, many = names
    for what, samples in (
        ("a turn awake", alone),
        ("the first turn of a sleeper", woken),
        (f"{AT_ONCE} at once", busy),
    ):
        shown = {name: [number(across(rounds, _p50)), number(across(rounds, _p99))] for name, rounds in samples.items()}
        ratio = compare(samples[many], samples[few], lambda s: s.p50)
        stage.report.notes.append(
            f"{what}: p50 {shown[few][0]} ms, p99 {shown[few][1]} ms beside {FEW:,};"
            f" p50 {shown[many][0]} ms, p99 {shown[many][1]} ms beside {MANY:,}"
        )
        stage.report.goals.append(Goal(f"p50 of {what}, {MANY:,} / {FEW:,}", ratio, 1.5))


def _p50(sample: Sample) -> float:
    return sample.p50 * 1e3


def _p99(sample: Sample) -> float:
    return sample.p99 * 1e3


def _alone(stage: Stage, driver: Driver, turn: int) -> Sample:
    return stage.measure(driver, "extend", conversation="awake", start=turn * AWAKE_TURNS, count=AWAKE_TURNS)


def _busy(stage: Stage, driver: Driver, turn: int) -> Sample:
    return stage.measure(driver, "turns", conversations=AT_ONCE, turns=40, seconds=SECONDS, tag=f"busy-{turn}")


def _woken(stage: Stage, driver: Driver, turn: int) -> Sample:
    """The first turns of copies: that they run proves that their heads and logs are whole."""
    stage.note_contention()
    latencies: list[float] = []
    for copy in range(turn * WOKEN + 1, (turn + 1) * WOKEN + 1):
        latencies += Sample.of(driver.ask("extend", conversation=f"copy-{copy}", start=1, count=1)).latencies
    return Sample(sum(latencies), 0.0, tuple(latencies))


# --- what one takes of the disk


def _sizes(stage: Stage, world: World) -> None:
    each = {name: (table / world.count, indexes / world.count) for name, (table, indexes) in world.sizes.items()}
    per_session = ("sessions", "heads", "events", "turns", "runs", "commits", "idempotency")
    told = ", ".join(
        f"{name} {number(sum(each[name]))} ({number(each[name][1])} of it indexes)" for name in per_session
    )
    total = _total(list(each.values()))
    stage.report.notes += [
        f"bytes on disk of a sleeping session with one turn behind it: {number(total)}: {told}",
        f"made from one that really ran, in {world.seconds:.0f} s by SQL; latencies are of real turns among them",
    ]
    stage.report.goals.append(Goal("bytes on disk of a sleeping session with one turn", total / 1e3, 8, unit="kB"))


def _total(sizes: Sequence[tuple[float, float]]) -> float:
    return sum(table + indexes for table, indexes in sizes)
