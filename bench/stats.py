"""The harness's arithmetic: percentiles, medians of rounds, ratios within one run, goals."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["met", "MISSED", "not measured"]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0 to 1) of the values do not exceed (nearest rank).

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("no values, so no percentile")
    ordered = sorted(values)
    rank = -(-len(ordered) * round(share * 1000) // 1000)
    return ordered[max(rank, 1) - 1]


def ratio_of_rounds(above: Sequence[float], below: Sequence[float]) -> float:
    """Median of the ratios of each round: both sides of one round ran next to each other, so that noise cancels.

    Raises:
        ValueError: no rounds, or not the same number on both sides.
    """
    if not above:
        raise ValueError("no rounds, so no ratio")
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def contention() -> float:
    """Wall over CPU time of a short spin: 1.0 = a whole core is ours, 2.0 = others take half of it."""
    wall, cpu = time.perf_counter(), time.process_time()
    while time.process_time() - cpu < 0.05:
        sum(range(1000))
    return (time.perf_counter() - wall) / (time.process_time() - cpu)


@dataclass(frozen=True)
class Sample:
    """What one system did in one round: seconds of wall and CPU time, latencies in seconds."""

    wall: float
    cpu: float
    latencies: tuple[float, ...]

    @classmethod
    def of(cls, answer: dict[str, Any]) -> Sample:
        """From a driver's answer."""
        latencies = tuple(us / 1e6 for us in answer["latencies_us"])
        return cls(answer.get("wall", sum(latencies)), answer.get("cpu", 0.0), latencies)

    @property
    def rate(self) -> float:
        """Completed per second."""
        return len(self.latencies) / self.wall

    @property
    def p50(self) -> float:
        return percentile(self.latencies, 0.50)

    @property
    def p99(self) -> float:
        return percentile(self.latencies, 0.99)

    @property
    def cpu_each(self) -> float:
        """CPU seconds of the system's process for each: hardly touched by contention."""
        return self.cpu / len(self.latencies)


def across(rounds: Sequence[Sample], figure: Callable[[Sample], float]) -> float:
    """The median over the rounds of one figure of a round."""
    return statistics.median(figure(sample) for sample in rounds)


def compare(above: Sequence[Sample], below: Sequence[Sample], figure: Callable[[Sample], float]) -> float:
    """How one system's figure stands to another's, round by round."""
    return ratio_of_rounds([figure(s) for s in above], [figure(s) for s in below])


@dataclass(frozen=True)
class Goal:
    """A promise about one number, a ratio or an amount with its unit; `value` is None where it was not measured."""

    what: str
    value: float | None
    bound: float
    at_least: bool = False
    unit: str = "x"
    at_most: bool = False
    """The bound itself is good enough."""

    @property
    def verdict(self) -> Verdict:
        if self.value is None:
            return "not measured"
        if self.at_least:
            met = self.value >= self.bound
        else:
            met = self.value <= self.bound if self.at_most else self.value < self.bound
        return "met" if met else "MISSED"

    @property
    def sign(self) -> str:
        if self.at_least:
            return ">="
        return "<=" if self.at_most else "<"

    def as_json(self) -> dict[str, Any]:
        value = None if self.value is None else round(self.value, 4)
        return {"goal": self.what, "value": value, "unit": self.unit, "bound": f"{self.sign} {self.bound:g}"} | {
            "verdict": self.verdict
        }
