"""Replays seeds of the simulation: `python -m tests.simulation --seed N` tells all that happens in one."""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Sequence

from tests.simulation.world import run


def main(words: Sequence[str] | None = None) -> int:
    """Run what the command line says; returns 1 when something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this seed and tell what happens")
    parser.add_argument("--first", type=int, default=0, help="the first of many seeds")
    parser.add_argument("--count", type=int, default=500, help="how many seeds to run without --seed")
    parser.add_argument("--digest", action="store_true", help="print a digest of all that happened in many seeds")
    options = parser.parse_args(words)
    if options.digest:
        return _digest(options.first, options.count)
    return _replay(options.seed) if options.seed is not None else _run_many(options.first, options.count)


def _digest(first: int, count: int) -> int:
    told = hashlib.sha256()
    for seed in range(first, first + count):
        report = run(seed, traced=True)
        told.update("\n".join([*report.trace, *report.history]).encode())
    print(told.hexdigest())
    return 0


def _replay(seed: int) -> int:
    report = run(seed, traced=True)
    print("\n".join([*report.trace, "", *(report.problems or ["nothing is wrong"])]))
    return 1 if report.problems else 0


def _run_many(first: int, count: int) -> int:
    began, wrong = time.process_time(), 0
    for seed in range(first, first + count):
        if problems := run(seed).problems:
            wrong += 1
            print(f"seed {seed}: {problems[0][:500]}")
    spent = time.process_time() - began
    print(f"{count} seeds, {wrong} of them wrong, {spent:.1f} s of CPU, {1000 * spent / count:.1f} ms each")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
