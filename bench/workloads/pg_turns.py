"""Durable turns a second on PostgreSQL at 1, 10 and 50 conversations at once, and what each costs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from bench.installation import OURS, PARTED, SERVED, Installation, System, Taken
from bench.postgres import Counters, Postgres
from bench.report import Row
from bench.stage import Stage
from bench.stats import Goal, Sample, ratio_of_rounds

TITLE = "durable turns a second on one PostgreSQL (input admitted, one output, response: each committed)"
SYSTEMS = (OURS, SERVED, PARTED, "dbos", "langgraph", "restate", "ref")
PGBENCH = "pgbench"
AT_ONCE = (1, 10, 50)
ROUNDS = 3
SECONDS = 2
TURNS_EACH = 40
SCRIPT = "".join(
    f"INSERT INTO entry (kind, body) VALUES ('{kind}', repeat('x', {length}));\n"
    for kind, length in (("input", 200), ("output", 300), ("response", 300))
)


@dataclass(frozen=True)
class Count:
    """What one turn took of the database, and how many acknowledgements it waited for."""

    transactions: float
    syncs: float
    wal_bytes: float
    acknowledged: float | None


Rounds = dict[str, list[Taken]]
Counts = dict[tuple[int, str], Count]


def run(stage: Stage) -> None:
    installation = Installation(stage)
    bare = Bare(installation.postgres)
    systems = installation.start_all(SYSTEMS)
    counts: Counts = {}
    for at_once in AT_ONCE:
        for name, system in systems.items():
            if system.database is not None:
                counts[at_once, name] = _count(installation, system, at_once)
    taken = {at_once: _rounds(installation, bare, systems, at_once) for at_once in AT_ONCE}
    for at_once, rounds in taken.items():
        stage.report.rows += [_row(at_once, name, rounds, counts.get((at_once, name))) for name in rounds]
    stage.report.goals += _goals(taken, counts)
    stage.report.notes += NOTES


def _load(at_once: int, tag: str) -> dict[str, object]:
    return {"conversations": at_once, "turns": TURNS_EACH, "seconds": SECONDS, "tag": tag}


def _count(installation: Installation, system: System, at_once: int) -> Count:
    before = installation.settled(system, at_once)
    answer = system.driver.ask("turns", **_load(at_once, f"count-{at_once}"))
    done: Counters = installation.settled(system, at_once) - before
    # The short loads before the two readings were of one length, and count once.
    turns = len(answer["latencies_us"]) + at_once
    told = answer.get("acknowledged")
    acknowledged = None if told is None else told / len(answer["latencies_us"])
    return Count(done.transactions / turns, done.syncs / turns, done.wal_bytes / turns, acknowledged)


def _rounds(installation: Installation, bare: Bare, systems: dict[str, System], at_once: int) -> Rounds:
    """Every system once a round, none always first."""
    names, taken = [*systems, PGBENCH], dict[str, list[Taken]]()
    for number in range(ROUNDS):
        first = number % len(names)
        for name in [*names[first:], *names[:first]]:
            if name == PGBENCH:
                installation.stage.note_contention()
                one = bare.take(at_once)
            else:
                one = installation.take(systems[name], "turns", **_load(at_once, f"{at_once}-{number}"))
            taken.setdefault(name, []).append(one)
    return {name: taken[name] for name in names}


class Bare:
    """`pgbench`, a client in C that sends three bare commits a turn on a connection for each conversation."""

    def __init__(self, postgres: Postgres) -> None:
        self._postgres = postgres
        postgres.new_database("bare")
        postgres.sql("CREATE TABLE entry (id bigserial PRIMARY KEY, kind text, body text)", database="bare")
        self._script = postgres.folder / "turn.sql"
        self._script.write_text(SCRIPT)

    def take(self, at_once: int) -> Taken:
        before, logs = self._postgres.cpu(), self._postgres.folder / "turns"
        options = ["-n", "-M", "prepared", "-c", str(at_once), "-j", str(min(at_once, 2)), "-T", str(SECONDS), "-l"]
        where = ["-h", str(self._postgres.folder), "-U", "bench", "bare"]
        self._postgres.run("pgbench", *options, f"--log-prefix={logs}", "-f", str(self._script), *where)
        latencies: list[float] = []
        for log in self._postgres.folder.glob("turns.*"):
            latencies += [int(line.split()[2]) / 1e6 for line in log.read_text().splitlines()]
            log.unlink()
        return Taken(Sample(SECONDS, 0.0, tuple(latencies)), 0.0, self._postgres.cpu() - before)


def _median(rounds: Sequence[Taken], figure: Callable[[Taken], float]) -> float:
    return statistics.median(figure(taken) for taken in rounds)


def _row(at_once: int, name: str, rounds: Rounds, count: Count | None) -> Row:
    mine, database = rounds[name], name != "restate"
    return {
        "conversations": at_once,
        "system": name,
        "turns/s": _median(mine, lambda t: t.sample.rate),
        "p50 ms": _median(mine, lambda t: t.sample.p50 * 1e3),
        "p99 ms": _median(mine, lambda t: t.sample.p99 * 1e3),
        "own cpu ms/turn": _median(mine, lambda t: t.own_cpu / t.turns * 1e3) if name != PGBENCH else None,
        "db cpu ms/turn": _median(mine, lambda t: t.database_cpu / t.turns * 1e3) if database else None,
        "commits/turn": count and count.transactions,
        "syncs/turn": count and count.syncs,
        "WAL kB/turn": count and count.wal_bytes / 1e3,
        "acks/turn": count and count.acknowledged,
        "cpu/ours": _cpu_ratio(rounds, name),
        "ours/it": _against(rounds, OURS, name),
        "ours http/it": _against(rounds, SERVED, name),
    }


def _cpu_each(rounds: Sequence[Taken]) -> float:
    """CPU seconds a turn, the database's included: what contention bends least."""
    return _median(rounds, lambda t: (t.own_cpu + t.database_cpu) / t.turns)


def _cpu_ratio(rounds: Rounds, name: str) -> float | None:
    if name not in rounds or name == PGBENCH:
        return None
    return _cpu_each(rounds[name]) / _cpu_each(rounds[OURS])


def _against(rounds: Rounds, above: str, below: str) -> float | None:
    if above not in rounds or below not in rounds:
        return None
    rates = partial(map, lambda taken: taken.sample.rate)
    return ratio_of_rounds(list(rates(rounds[above])), list(rates(rounds[below])))


def _goals(taken: dict[int, Rounds], counts: Counts) -> list[Goal]:
    crowd = taken[AT_ONCE[-1]]
    asked = [counts[at_once, OURS].acknowledged for at_once in AT_ONCE]
    most = max((told for told in asked if told is not None), default=None)
    return [
        Goal("turns/s at 50, ours / DBOS", _against(crowd, OURS, "dbos"), 5, at_least=True),
        Goal("turns/s at 50, ours / LangGraph", _against(crowd, OURS, "langgraph"), 5, at_least=True),
        Goal("turns/s at 50, ours / Restate", _against(crowd, OURS, "restate"), 2, at_least=True),
        Goal(
            "turns/s at 50, ours over HTTP / Restate (over HTTP)", _against(crowd, SERVED, "restate"), 2, at_least=True
        ),
        *[
            Goal(
                f"CPU a turn at 50, {shown} / ours (bent least by others)",
                _cpu_ratio(crowd, name),
                bound,
                at_least=True,
            )
            for name, shown, bound in (("dbos", "DBOS", 5), ("langgraph", "LangGraph", 5), ("restate", "Restate", 2))
        ],
        Goal("durable acknowledgements a turn, ours", most, 3, at_most=True, unit="acks"),
        *[
            Goal(f"syncs a turn at {at_once}, ours", counts[at_once, OURS].syncs, 1, unit="syncs")
            for at_once in AT_ONCE[1:]
        ],
    ]


NOTES = [
    f"{ROUNDS} rounds of {SECONDS} s, systems in turn; {TURNS_EACH} turns a conversation; ratios are medians of rounds",
    "ours, dbos, langgraph and ref are called in process; ours http (perdure serve), ours parts (perdure serve"
    " --no-worker and perdure worker) and restate over HTTP, by a load in another process, whose CPU is not counted",
    "ours http and ours parts take two requests a turn (enqueue, wait for the end), restate one",
    "commits, syncs, WAL: from the server's own statistics, around one more load; acks: commands of ours, flushed",
    "pgbench: a client in C, three INSERTs a turn, a connection for each conversation, no group commit by the client",
    "restate keeps its data itself, not in PostgreSQL",
]
