"""`python -m bench [WORKLOAD ...] [--json] [--strict]`, from the root of the repository."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import time
import traceback
from typing import Any

from bench.environments import PeerUnavailable
from bench.report import Report
from bench.stage import staged
from bench.workloads import NAMES


def main() -> int:
    parser = _parser()
    arguments = parser.parse_args()
    if unknown := set(arguments.workloads) - set(NAMES):
        parser.error(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    outcomes = [_one(name, as_json=arguments.json) for name in arguments.workloads or NAMES]
    if arguments.json:
        print(json.dumps({"machine": _machine(), "workloads": [report.as_json() for report, _ in outcomes]}, indent=1))
    if not all(finished for _, finished in outcomes):
        return 2
    missed = any(goal.verdict != "met" for report, _ in outcomes for goal in report.goals)
    return 1 if arguments.strict and missed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Perdure beside its peers and the bare limit.")
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"{', '.join(NAMES)} (default: all)")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")
    parser.add_argument("--strict", action="store_true", help="exit status 1 if a goal is missed or was not measured")
    return parser


def _one(name: str, *, as_json: bool) -> tuple[Report, bool]:
    """Run a workload; one that breaks says so and does not take the others with it (exit status 2 in the end)."""
    workload: Any = importlib.import_module(f"bench.workloads.{name.replace('-', '_')}")
    report, finished, start = Report(name, workload.TITLE), True, time.monotonic()
    try:
        with staged(report) as stage:
            workload.run(stage)
    except PeerUnavailable as why:
        finished = False
        report.notes.append(f"NOT MEASURED: {why}")
    except Exception:
        finished = False
        report.notes.append(f"BROKE OFF: {traceback.format_exc()}")
    report.seconds = time.monotonic() - start
    if not as_json:
        print(report.as_text(), end="\n\n", flush=True)
    return report, finished


def _machine() -> dict[str, Any]:
    return {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}


if __name__ == "__main__":
    sys.exit(main())
