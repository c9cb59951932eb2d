"""Does a turn cost the same at turn 10,000 as at turn 10, in time and in bytes?"""

from __future__ import annotations

from dataclasses import dataclass

from bench.drivers import Driver
from bench.load import PAYLOAD_BYTES
from bench.stage import Stage, in_rounds
from bench.stats import Goal, Sample, across, compare

TITLE = "cost of a turn in a short and in a long session"
YOUNG_SESSIONS, YOUNG_FROM, YOUNG_TO = 10, 6, 15
OLD_TURNS = 100


@dataclass(frozen=True)
class History:
    """How long the long session gets before it is measured; LangGraph's bytes grow with the square of it."""

    system: str
    turns: int
    rounds: int


HISTORIES = (History("ours", 10_000, 9), History("ref", 10_000, 5), History("langgraph", 300, 3))


def run(stage: Stage) -> None:
    for history in HISTORIES:
        driver = stage.start(history.system)
        if driver is not None:
            _measure(stage, driver, history)
            driver.stop()
    stage.report.notes.append(
        f"young: turns {YOUNG_FROM} to {YOUNG_TO} of new sessions, between stretches of the old one"
    )
    stage.report.notes.append(f"payload of a turn: {PAYLOAD_BYTES} bytes; stored: the database with its log folded in")


def _measure(stage: Stage, driver: Driver, history: History) -> None:
    length = history.turns
    early, late = _grow(driver, length)
    total = (early + late) / 2
    ages = in_rounds(["young", "old"], history.rounds, lambda age, turn: _sample(stage, driver, length, age, turn))
    slower = compare(ages["old"], ages["young"], lambda s: s.p50)
    stage.report.rows.append(
        {
            "system": driver.system,
            "turns": length,
            "p50 ms at 10": across(ages["young"], lambda s: s.p50 * 1e3),
            "p50 ms at the end": across(ages["old"], lambda s: s.p50 * 1e3),
            "end / 10": slower,
            "bytes/turn": total,
            "first half": early,
            "second half": late,
            "bytes/payload": total / PAYLOAD_BYTES,
        }
    )
    if driver.system == "ours":
        stage.report.goals += [
            Goal("p50 of a turn, at 10,000 turns / at 10", slower, 1.2),
            Goal("stored bytes / payload bytes", total / PAYLOAD_BYTES, 2),
            Goal("bytes of a turn, second half / first half (linear)", late / early, 1.2),
        ]


def _grow(driver: Driver, length: int) -> tuple[float, float]:
    """Bytes that a turn took in the first half of the history, and in the second."""
    half, sizes = length // 2, [driver.ask("stored")]
    for start in (0, half):
        driver.ask("extend", conversation="old", start=start, count=half)
        sizes.append(driver.ask("stored"))
    empty, middle, end = sizes
    return (middle - empty) / half, (end - middle) / half


def _sample(stage: Stage, driver: Driver, length: int, age: str, turn: int) -> Sample:
    if age == "old":
        return stage.measure(driver, "extend", conversation="old", start=length + turn * OLD_TURNS, count=OLD_TURNS)
    latencies: list[float] = []
    for number in range(YOUNG_SESSIONS):
        young = stage.measure(driver, "extend", conversation=f"young-{turn}-{number}", start=0, count=YOUNG_TO)
        latencies += young.latencies[YOUNG_FROM - 1 :]
    return Sample(sum(latencies), 0.0, tuple(latencies))
