"""Counters, gauges and histograms: plain numbers in memory, written from one event loop, read at any time."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

SERIES: Final = 500
"""How many combinations of labels an instrument keeps apart; what comes then is counted under `OTHER`."""
OTHER: Final = "other"

Labels: TypeAlias = tuple[str, ...]


class _Switch:
    __slots__ = ("on",)

    def __init__(self) -> None:
        self.on = False


_switch: Final = _Switch()


def recording(on: bool) -> None:
    """Begin or stop to record, for all instruments of this process."""
    _switch.on = on


def is_recording() -> bool:
    """Whether what instruments are told is kept; ask before work that is done for them alone."""
    return _switch.on


class Instrument:
    """What all kinds have: a name, a meaning, and the names of the labels."""

    def __init__(self, name: str, meaning: str, *labels: str) -> None:
        self.name: Final = name
        self.meaning: Final = meaning
        self.labels: Final = labels
        self._others: Final = (OTHER,) * len(labels)


class Counter(Instrument):
    """A number that only grows."""

    def __init__(self, name: str, meaning: str, *labels: str) -> None:
        super().__init__(name, meaning, *labels)
        self._series: dict[Labels, list[float]] = {} if labels else {(): [0.0]}

    def add(self, *labels: str, by: float = 1) -> None:
        """Count `by` more under the labels' values."""
        if _switch.on:
            cell = self._series.get(labels)
            if cell is None:
                cell = self._new(labels)
            cell[0] += by

    def _new(self, labels: Labels) -> list[float]:
        return self._series.setdefault(labels if len(self._series) < SERIES else self._others, [0.0])

    def samples(self) -> list[tuple[Labels, float]]:
        """Return the values by labels; one without labels is there from the beginning."""
        return [(labels, cell[0]) for labels, cell in list(self._series.items())]


class Gauge(Instrument):
    """A number that is asked for when it is read: the sum of what all sources say now."""

    def __init__(self, name: str, meaning: str) -> None:
        super().__init__(name, meaning)
        self._sources: dict[object, Callable[[], float]] = {}

    def follow(self, source: Callable[[], float]) -> Callable[[], None]:
        """Ask `source` from now on; returns what ends that."""
        key = object()
        self._sources[key] = source
        return lambda: self._sources.pop(key, None) and None

    def samples(self) -> list[tuple[Labels, float]]:
        """Return the value now; none where nobody has one."""
        sources = list(self._sources.values())
        return [((), float(sum(source() for source in sources)))] if sources else []


class Distribution:
    """Of how many values how many fell into each bucket, and their sum."""

    __slots__ = ("buckets", "sum")

    def __init__(self, bounds: int) -> None:
        self.buckets = [0] * (bounds + 1)
        self.sum = 0.0


class Histogram(Instrument):
    """How values are spread. `bounds` are the buckets' upper ends, rising; there is one more for what is above."""

    def __init__(self, name: str, meaning: str, *labels: str, bounds: tuple[float, ...]) -> None:
        super().__init__(name, meaning, *labels)
        self.bounds: Final = bounds
        self._series: dict[Labels, Distribution] = {}

    def observe(self, value: float, *labels: str) -> None:
        """Note a value under the labels' values."""
        if _switch.on:
            found = self._series.get(labels)
            if found is None:
                found = self._new(labels)
            found.buckets[bisect_left(self.bounds, value)] += 1
            found.sum += value

    def _new(self, labels: Labels) -> Distribution:
        labels = labels if len(self._series) < SERIES else self._others
        return self._series.setdefault(labels, Distribution(len(self.bounds)))

    def samples(self) -> Iterator[tuple[Labels, list[int], float]]:
        """Yield labels, counts of the buckets (each with those below it), and the sum."""
        for labels, found in list(self._series.items()):
            total, rising = 0, []
            for count in found.buckets:
                total += count
                rising.append(total)
            yield labels, rising, found.sum
