"""The parts of the bench harness that look at costs: CPU time of others, plans, and the calculation that is printed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from bench import cpu, multiply
from bench.installation import Taken
from bench.plans import Asked, Plan
from bench.postgres import Counters
from bench.stats import Goal, Sample
from bench.workloads import pg_scale
from bench.workloads.pg_scale import Split, Statement

SPIN = "import time\nwhile time.process_time() < {seconds}: pass\n"
PARENT = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {SPIN.format(seconds=0.3)!r}])
print(flush=True)
input()
"""


def test_cpu_time_of_descendants_that_have_ended_is_counted() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        assert cpu.spent([parent.pid]) >= 0.29
        parent.communicate("\n")
    assert cpu.spent([parent.pid]) == 0


def test_a_process_is_counted_once_whoever_asks_for_it() -> None:
    own = os.getpid()
    once, twice = cpu.spent([own]), cpu.spent([own, own])
    assert twice - once < 0.2
    assert once > 0


def plan(*, scanned: str = "", rows: int = 1, pages: int = 4) -> Plan:
    return Plan(frozenset([scanned] if scanned else []), (), rows, pages, 0.1)


@pytest.mark.parametrize(
    ("found", "faults"),
    [
        (plan(), 0),
        (plan(scanned="leases"), 0),
        (plan(scanned="heads"), 1),
        (plan(rows=20), 0),
        (plan(rows=21), 1),
        (plan(pages=24 * 5), 0),
        (plan(pages=24 * 5 + 1), 1),
        (plan(scanned="events", rows=10_000, pages=10_000), 3),
    ],
)
def test_what_a_plan_may_touch_goes_with_what_it_is_asked_for(found: Plan, faults: int) -> None:
    assert len(found.faults(Asked("head", (), 1))) == faults


def test_ids_of_copies_are_ids() -> None:
    assert multiply.session(1_000_000) == "01900000-0000-7000-8000-0000000f4240"
    assert len({multiply.session(number) for number in range(1000)}) == 1000


@pytest.mark.parametrize(("value", "verdict"), [(3.0, "met"), (3.01, "MISSED"), (None, "not measured")])
def test_a_bound_that_may_be_reached(value: float | None, verdict: str) -> None:
    goal = Goal("acknowledgements", value, 3, at_most=True)
    assert goal.verdict == verdict
    assert goal.as_json()["bound"] == "<= 3"


def split(*, database: float, worker: float, server: float) -> Split:
    """A load of 1,000 turns in a second with these CPU seconds."""
    taken = Taken(Sample(1.0, 0.0, (0.01,) * 1000), 0.0, database)
    heard = Statement(f"{pg_scale.HEARD}($1::uuid[])", 10, 4_000, 5.0)
    return Split(taken, server, worker, (heard, Statement("COMMIT", 1000, 0, 10.0)))


def test_the_calculation_takes_the_dearest_costs() -> None:
    rounds = {1: [split(database=0.5, worker=0.6, server=0.3)], 4: [split(database=1.0, worker=0.5, server=0.3)]}
    first, small, *_ = pg_scale._calculation(rounds, (Counters(0, 0, 6_000_000), 1000))
    assert "1.00 ms of CPU of the database, 0.60 of workers and 0.30 of servers" in first
    # 4 cores at 60 %, 1 ms a turn: 2,400 turns/s, of 6 kB each; 2,400 x 0.6 ms are 1.44 cores, at 60 % 2.4.
    assert "4 cores: 2,400 turns/s of this size, 14.40 MB/s of WAL, workers on 2.40 cores" in small


def test_what_was_heard_of_is_told_apart() -> None:
    one = split(database=1.0, worker=1.0, server=1.0)
    assert one.looked_at == 4_000
    assert one.executing == pytest.approx(0.015)
