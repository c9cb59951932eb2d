"""1, 2 and 4 workers beside one server on one PostgreSQL: turns a second, and what a turn costs each of them.

On two cores the rate says little about more workers; the cost of a turn, in CPU time of each part, says what larger
machines carry. The calculation is printed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench import cpu
from bench.installation import Installation, System, Taken
from bench.postgres import Counters
from bench.report import number
from bench.stage import Stage
from bench.stats import Goal, ratio_of_rounds

TITLE = "1, 2 and 4 workers, one server, one PostgreSQL, 50 conversations over HTTP"
WORKERS = (1, 2, 4)
AT_ONCE = 50
ROUNDS = 3
SECONDS = 3
TURNS_EACH = 40
USED = 0.6
"""Which share of a machine's cores may be used in the calculation: the rest is for peaks and vacuum."""
CORES = (4, 16, 64)
HEARD = "SELECT body FROM perdure.heads WHERE session = ANY"
SHOWN = 6
"""Statements of a turn that are named with their cost."""


@dataclass(frozen=True)
class Statement:
    """One statement of the store's: how often it ran in a sample, the rows of it, milliseconds by the clock."""

    text: str
    calls: int
    rows: int
    ms: float


@dataclass(frozen=True)
class Split:
    """One sample: its load, the CPU seconds of the server and of the workers, and what the database says of itself."""

    taken: Taken
    server_cpu: float
    worker_cpu: float
    statements: tuple[Statement, ...]

    @property
    def executing(self) -> float:
        return sum(statement.ms for statement in self.statements) / 1e3

    @property
    def looked_at(self) -> int:
        """Heads that were read because another process told of a commit."""
        return sum(statement.rows for statement in self.statements if statement.text.startswith(HEARD))

    def each(self, seconds: float) -> float:
        """Milliseconds a turn."""
        return seconds / self.taken.turns * 1e3


def run(stage: Stage) -> None:
    installation = Installation(stage)
    systems = {count: installation.parts(f"workers {count}", count) for count in WORKERS}
    for system in systems.values():
        system.warm()
    rounds: dict[int, list[Split]] = {count: [] for count in WORKERS}
    for turn in range(ROUNDS):
        for count in [*WORKERS[turn % len(WORKERS) :], *WORKERS[: turn % len(WORKERS)]]:
            rounds[count].append(_sample(installation, systems[count], f"{count}-{turn}"))
    counted = {count: _count(installation, systems[count]) for count in WORKERS}
    for count in WORKERS:
        stage.report.rows.append(_row(count, rounds, counted[count]))
    four = ratio_of_rounds(_database(rounds[4]), _database(rounds[1]))
    stage.report.goals.append(Goal("database CPU a turn, 4 workers / 1", four, 2))
    stage.report.notes += [*NOTES, *_statements(rounds[1][-1]), *_calculation(rounds, counted[1])]


def _database(rounds: Sequence[Split]) -> list[float]:
    return [split.taken.database_cpu / split.taken.turns for split in rounds]


def _sample(installation: Installation, system: System, tag: str) -> Split:
    assert system.database is not None
    postgres, (api, *workers) = installation.postgres, system.pids
    postgres.sql("SELECT pg_stat_statements_reset()", database=system.database)
    server_cpu, worker_cpu = cpu.spent([api]), cpu.spent(workers)
    load = {"conversations": AT_ONCE, "turns": TURNS_EACH, "seconds": SECONDS, "tag": tag}
    taken = installation.take(system, "turns", **load)
    server_cpu, worker_cpu = cpu.spent([api]) - server_cpu, cpu.spent(workers) - worker_cpu
    told = postgres.sql(STATEMENTS, (system.database,), database=system.database)
    return Split(taken, server_cpu, worker_cpu, tuple(Statement(*row) for row in told))


STATEMENTS = """
SELECT regexp_replace(left(query, 60), '\\s+', ' ', 'g'), calls, rows, total_exec_time + total_plan_time
FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
WHERE d.datname = %s AND query NOT LIKE '%%pg_stat_statements%%'
ORDER BY 4 DESC"""


def _count(installation: Installation, system: System) -> tuple[Counters, int]:
    """The server's counters around one more load, and its turns."""
    before = installation.settled(system, AT_ONCE)
    load = {"conversations": AT_ONCE, "turns": TURNS_EACH, "seconds": SECONDS, "tag": "count"}
    turns = len(system.driver.ask("turns", **load)["latencies_us"]) + AT_ONCE
    return installation.settled(system, AT_ONCE) - before, turns


def _median(rounds: Sequence[Split], figure: Callable[[Split], float]) -> float:
    return statistics.median(figure(split) for split in rounds)


def _row(count: int, rounds: dict[int, list[Split]], counted: tuple[Counters, int]) -> dict[str, object]:
    mine, (counters, turns) = rounds[count], counted
    rates = {workers: [split.taken.sample.rate for split in splits] for workers, splits in rounds.items()}
    return {
        "workers": count,
        "turns/s": statistics.median(rates[count]),
        "it/1 worker": ratio_of_rounds(rates[count], rates[1]),
        "p50 ms": _median(mine, lambda s: s.taken.sample.p50 * 1e3),
        "p99 ms": _median(mine, lambda s: s.taken.sample.p99 * 1e3),
        "db cpu ms/turn": _median(mine, lambda s: s.each(s.taken.database_cpu)),
        "db executing ms/turn": _median(mine, lambda s: s.each(s.executing)),
        "workers cpu ms/turn": _median(mine, lambda s: s.each(s.worker_cpu)),
        "server cpu ms/turn": _median(mine, lambda s: s.each(s.server_cpu)),
        "heads looked at/turn": _median(mine, lambda s: s.looked_at / s.taken.turns),
        "commits/turn": counters.transactions / turns,
        "syncs/turn": counters.syncs / turns,
        "WAL kB/turn": counters.wal_bytes / turns / 1e3,
    }


NOTES = [
    f"{ROUNDS} rounds of {SECONDS} s, {AT_ONCE} conversations, installations in turn, all on one machine with the load:"
    " with two cores the rate cannot double, so look at the costs",
    "db cpu: user and system time of all processes of PostgreSQL; db executing: planning and execution by"
    " pg_stat_statements, by the clock, waits for locks and for a core included, the flush of a commit not",
]


def _statements(split: Split) -> list[str]:
    shown = [
        f"{found.text.strip()}…: {found.calls / split.taken.turns:.2f} times, {split.each(found.ms / 1e3):.3f} ms"
        for found in split.statements[:SHOWN]
    ]
    return ["where a turn's executing goes (1 worker, last round): " + "; ".join(shown)]


def _calculation(rounds: dict[int, list[Split]], counted: tuple[Counters, int]) -> list[str]:
    """What larger machines carry, if a turn costs them the CPU time that it costs here at most."""
    costs = [_costs(splits) for splits in rounds.values()]
    database, worker, server = (max(column) for column in zip(*costs, strict=True))
    log = counted[0].wal_bytes / counted[1]
    dear = f"{database:.2f} ms of CPU of the database, {worker:.2f} of workers and {server:.2f} of servers"
    lines = [f"calculation: at its dearest above, a turn takes {dear}; {USED:.0%} of all cores used"]
    for cores in CORES:
        rate = cores * USED * 1e3 / database
        carried = f"{number(rate)} turns/s of this size, {number(rate * log / 1e6)} MB/s of WAL"
        hands = f"workers on {number(rate * worker / 1e3 / USED)} cores (a process uses one)"
        doors = f"servers on {number(rate * server / 1e3 / USED)}"
        lines.append(f"calculation: a database with {cores} cores: {carried}, {hands}, {doors}")
    return [*lines, UNCOUNTED]


UNCOUNTED = (
    "calculation: not in it: locks and caches of a larger machine, full-page writes after checkpoints, the way to a"
    " standby, hints to more processes than these (heads looked at/turn should be the same in all rows)"
)


def _costs(rounds: Sequence[Split]) -> tuple[float, float, float]:
    """Milliseconds of CPU a turn: of the database, of the workers, of the server."""
    return (
        _median(rounds, lambda s: s.each(s.taken.database_cpu)),
        _median(rounds, lambda s: s.each(s.worker_cpu)),
        _median(rounds, lambda s: s.each(s.server_cpu)),
    )
