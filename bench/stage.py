"""What every workload needs: its data folder, its drivers, fair rounds, and a report that knows the conditions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.drivers import Driver, data_folder
from bench.environments import PeerUnavailable
from bench.report import Report
from bench.stats import Sample, contention


class Stage:
    """One workload's run: starts drivers, measures them, ends them all."""

    def __init__(self, report: Report, folder: Path, exits: contextlib.ExitStack) -> None:
        self.report = report
        self.folder = folder
        self.exits = exits

    def start(self, system: str, *extra: str) -> Driver | None:
        """The system's driver, warmed by its `hello`; None with a note in the report if it cannot be had here."""
        try:
            driver = self.exits.enter_context(Driver(system, self.folder, *extra))
        except PeerUnavailable as why:
            self.report.notes.append(f"{system} not measured: {why}")
            return None
        self.report.systems[system] = driver.ask("hello")
        return driver

    def require(self, system: str, *extra: str) -> Driver:
        """The driver of a system without which the workload makes no sense."""
        driver = self.start(system, *extra)
        assert driver is not None, f"{system} needs no packages of its own, so it can be had everywhere"
        return driver

    def start_all(self, systems: Sequence[str]) -> dict[str, Driver]:
        """Those of the systems that can be had here."""
        started = {system: self.start(system) for system in systems}
        return {system: driver for system, driver in started.items() if driver is not None}

    def measure(self, driver: Driver, operation: str, **arguments: Any) -> Sample:
        """One sample, with the machine's contention just before it noted."""
        self.note_contention()
        return Sample.of(driver.ask(operation, **arguments))

    def note_contention(self) -> None:
        self.report.contention.append(contention())


@contextlib.contextmanager
def staged(report: Report) -> Iterator[Stage]:
    """A stage whose drivers and data are gone when the workload is over."""
    with data_folder() as folder, contextlib.ExitStack() as exits:
        yield Stage(report, folder, exits)


def in_rounds(names: Sequence[str], rounds: int, once: Callable[[str, int], Sample]) -> dict[str, list[Sample]]:
    """A B C, B C A, C A B: every system once a round, next to each other, none always first."""
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in [*names[first:], *names[:first]]:
            samples[name].append(once(name, turn))
    return samples
