"""`python -m tests.chaos`: break everything, for as long as is asked, and say whether every promise was kept."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from tests.chaos.nemeses import NEMESES
from tests.chaos.report import write
from tests.chaos.run import Options, run, seed_of


def main() -> int:
    """Run as the command line says; returns 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", help="a number; the same one makes the same choices")
    parser.add_argument("--minutes", type=float, default=0.0, help="how long to break by chance, after all in turn")
    parser.add_argument("--kinds", default=",".join(NEMESES), help="what to break: " + ", ".join(NEMESES))
    parser.add_argument("--lease", type=float, default=3.0, help="seconds of a worker's lease")
    parser.add_argument("--at-once", type=int, default=16, help="conversations at once")
    parser.add_argument("--report", type=Path, help="where to write the report")
    given = parser.parse_args()
    options = Options(
        seed_of(given.seed),
        seconds=given.minutes * 60,
        kinds=[kind for kind in given.kinds.split(",") if kind],
        lease=given.lease,
        at_once=given.at_once,
        say=lambda text: print(text, flush=True),
    )
    print(f"seed {options.seed}", flush=True)
    outcome = asyncio.run(run(options))
    report = write(outcome)
    if given.report is None:
        print(report)
    else:
        given.report.write_text(report)
    for problem in outcome.problems:
        print(problem)
    where = f"; what nodes said is in {outcome.folder}" if outcome.problems else ""
    print(f"{len(outcome.problems)} promises broken in {outcome.lasted:.0f} s{where}")
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
