"""What a workload has to say, as JSON or as a table for a person."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.stats import Goal

Row = Mapping[str, object]
TOO_BUSY = 1.5
"""Median contention from which on ratios of systems with and without threads of their own are bent."""


@dataclass
class Report:
    """One workload's outcome. `rows` are the table, `notes` what a reader must know to read it."""

    workload: str
    title: str
    rows: list[Row] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    systems: dict[str, dict[str, Any]] = field(default_factory=dict)
    contention: list[float] = field(default_factory=list)
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "workload": self.workload,
            "title": self.title,
            "systems": self.systems,
            "contention": [round(x, 2) for x in self.contention],
            "seconds": round(self.seconds, 1),
            "rows": [dict(row) for row in self.rows],
            "goals": [goal.as_json() for goal in self.goals],
            "notes": self.notes,
        }

    def as_text(self) -> str:
        blocks = [f"== {self.workload}: {self.title}", table(self.rows), *_goal_lines(self.goals)]
        blocks += [f"  {name}: {_versions(hello)}; {hello['durability']}" for name, hello in self.systems.items()]
        blocks += [f"  note: {note}" for note in self.notes]
        return "\n".join(block for block in [*blocks, self._closing()] if block)

    def _closing(self) -> str:
        if not self.contention:
            return f"  took {self.seconds:.0f} s"
        low, high, usual = min(self.contention), max(self.contention), statistics.median(self.contention)
        took = (
            f"  took {self.seconds:.0f} s; contention {low:.2f} to {high:.2f}, median {usual:.2f} (1.0 = a free core)"
        )
        return f"{took}; TOO BUSY: run again on a quieter machine" if usual > TOO_BUSY else took


def _versions(hello: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in hello["versions"].items())


def _goal_lines(goals: Sequence[Goal]) -> list[str]:
    lines = []
    for goal in goals:
        value = "-" if goal.value is None else f"{number(goal.value)} {goal.unit}"
        lines.append(f"  goal {goal.verdict:>12}: {goal.what}: {value} (wanted {goal.sign} {goal.bound:g} {goal.unit})")
    return lines


def number(value: object) -> str:
    """A measured number with about three digits, a whole one as it is; text as it is; nothing as a dash."""
    if value is None:
        return "-"
    if not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int) or value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{2 if abs(value) >= 1 else 3}f}"


def table(rows: Sequence[Row]) -> str:
    """Columns in the order in which they first appear, the first one to the left, the others to the right."""
    if not rows:
        return ""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *[[number(row.get(name)) for name in names] for row in rows]]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    return "\n".join(_line(line, widths) for line in cells)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    rest = [text.rjust(width) for text, width in others]
    return "  " + "  ".join([first[0].ljust(first[1]), *rest]).rstrip()
