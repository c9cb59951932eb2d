"""What a chaos run has to say, for people."""

from __future__ import annotations

import platform
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from tests.chaos.checker import RULES
from tests.chaos.nemeses import NEMESES
from tests.chaos.run import Outcome

_INTRODUCTION = """\
# Chaos report

Written by `make chaos`: three workers, two servers and a PostgreSQL primary with a synchronous standby are broken in
every way below, first in turn and then by chance, while clients talk to agents. Afterwards three witnesses that know
nothing of each other are compared: what clients asked, were told and were shown; what handlers noted outside of the
database; and what the store holds.
"""


def write(outcome: Outcome) -> str:
    """Return the report as Markdown."""
    parts = [
        _INTRODUCTION,
        _verdict(outcome),
        "## The run\n",
        _table(("what", "value"), _facts(outcome)),
        "## What was broken\n",
        _table(
            ("what", "times", "broken for, median", "work under way had ended after, median", "longest"),
            _kinds(outcome),
        ),
        *_notes(outcome),
        "## What happened meanwhile\n",
        _table(("what", "count"), _counts(outcome)),
        "## What was checked\n",
        _table(("rule", "what holds", "broken"), _rules(outcome)),
        "## When\n",
        _table(("at", "what", "whom", "for", "work under way had ended after"), _times(outcome)),
    ]
    return "\n".join(parts)


def _verdict(outcome: Outcome) -> str:
    if not outcome.problems:
        return f"**Verdict: every promise was kept** in {outcome.lasted / 60:.1f} minutes.\n"
    lines = [f"- {problem}" for problem in outcome.problems[:50]]
    return "\n".join([f"**Verdict: {len(outcome.problems)} promises were broken.**\n", *lines, ""])


def _facts(outcome: Outcome) -> list[tuple[object, ...]]:
    options = outcome.options
    return [
        ("when", f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"),
        ("length", f"{outcome.lasted:.0f} s"),
        ("seed", options.seed),
        ("lease of a worker", f"{options.lease:g} s"),
        ("conversations at once", options.at_once),
        ("partitions by", outcome.network),
        ("Perdure", f"{version('perdure')}, commit {_commit()}"),
        ("Python", sys.version.split()[0]),
        ("PostgreSQL", outcome.database),
        ("system", f"{platform.system()} {platform.release()}, {platform.machine()}"),
    ]


def _commit() -> str:
    words = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def _kinds(outcome: Outcome) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for kind in NEMESES:
        found = [injection for injection in outcome.injections if injection.kind == kind]
        settled = [each.settled for each in found if each.settled is not None]
        lasted = [each.healed - each.began for each in found]
        rows.append((kind, len(found), _median(lasted), _median(settled), _seconds(max(settled, default=None))))
    return rows


def _notes(outcome: Outcome) -> list[str]:
    notes = [f"- `{kind}` was not done: {why}." for kind, why in outcome.missing.items()]
    failed = [each for each in outcome.injections if each.error]
    notes += [f"- `{each.kind}` of {each.target} could not be done or undone: {each.error}" for each in failed]
    late = [each for each in outcome.injections if each.settled is None]
    notes += [f"- work under way at {each.began:.0f} s (`{each.kind}`) took more than a minute." for each in late]
    ends = [end for end in outcome.ends if not end.wanted]
    notes += [f"- {end.node} ended by itself with {end.code} after {end.lived:.0f} s." for end in ends]
    return ["\n".join(notes), ""] if notes else []


def _counts(outcome: Outcome) -> list[tuple[object, ...]]:
    evidence = outcome.evidence
    answered = [asked for asked in evidence.asked if asked.answers]
    whats = Counter(asked.what for asked in answered)
    ends = Counter(turn["status"] for history in evidence.histories.values() for turn in history.turns)
    events = sum(len(history.events) for history in evidence.histories.values())
    seen = sum(len(connection.seen) for reading in evidence.readings for connection in reading.connections)
    latencies = sorted(latency for _, latency in outcome.latencies)
    return [
        ("sessions", len(evidence.histories)),
        ("runs of sessions", sum(len(history.runs) for history in evidence.histories.values())),
        ("events in logs", events),
        *((f"turns {status}", count) for status, count in sorted(ends.items())),
        *((f"acknowledged: {what}", count) for what, count in sorted(whats.items())),
        ("refused", sum(asked.refused is not None for asked in evidence.asked)),
        ("given up without an answer", sum(not (asked.answers or asked.refused) for asked in evidence.asked)),
        ("times that clients asked again", outcome.retries),
        ("repeats that got the first receipt", sum(len(asked.answers) - 1 for asked in answered)),
        ("connections of readers", sum(len(reading.connections) for reading in evidence.readings)),
        ("events that readers saw", seen),
        ("events that the reader of the feed saw", len(evidence.feed)),
        ("notes in the ledger", len(evidence.ledger)),
        ("a turn, from queued to ended as a reader heard it: median", _seconds(_at(latencies, 0.5))),
        ("the same: 99 of 100", _seconds(_at(latencies, 0.99))),
        ("the same: longest", _seconds(_at(latencies, 1.0))),
    ]


def _rules(outcome: Outcome) -> list[tuple[object, ...]]:
    broken: dict[str, int] = defaultdict(int)
    for problem in outcome.problems:
        broken[problem.rule] += 1
    return [(name, (rule.__doc__ or "").strip(), broken[name]) for name, rule in RULES.items()]


def _times(outcome: Outcome) -> list[tuple[object, ...]]:
    return [
        (f"{each.began:.1f} s", each.kind, each.target, _seconds(each.healed - each.began), _seconds(each.settled))
        for each in outcome.injections
    ]


def _at(ordered: Sequence[float], part: float) -> float | None:
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else None


def _median(values: Sequence[float]) -> str:
    return _seconds(statistics.median(values)) if values else "-"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines) + "\n"
