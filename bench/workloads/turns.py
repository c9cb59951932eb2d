"""Durable turns a second at 1, 10 and 50 conversations at once, and how long one takes."""

from __future__ import annotations

from functools import partial

from bench.report import Row
from bench.stage import Stage, in_rounds
from bench.stats import Goal, Sample, across, compare

TITLE = "durable turns a second (input admitted, one output, response: each committed)"
SYSTEMS = ("ours", "langgraph", "dbos", "ref")
AT_ONCE = (1, 10, 50)
ROUNDS = 3
SECONDS = 2.0
TURNS_EACH = 40
Samples = dict[int, dict[str, list[Sample]]]


def run(stage: Stage) -> None:
    drivers = stage.start_all(SYSTEMS)
    for driver in drivers.values():
        driver.ask("turns", conversations=10, turns=TURNS_EACH, seconds=0.5, tag="warm")

    def once(at_once: int, system: str, turn: int) -> Sample:
        load = {"conversations": at_once, "turns": TURNS_EACH, "seconds": SECONDS, "tag": f"{at_once}-{turn}"}
        return stage.measure(drivers[system], "turns", **load)

    samples = {at_once: in_rounds(list(drivers), ROUNDS, partial(once, at_once)) for at_once in AT_ONCE}
    stage.report.rows += [row for at_once, systems in samples.items() for row in _rows(at_once, systems)]
    stage.report.goals += _goals(samples)
    stage.report.notes.append(f"{ROUNDS} rounds of {SECONDS:g} s, systems in turn; {TURNS_EACH} turns a conversation")


def _rows(at_once: int, systems: dict[str, list[Sample]]) -> list[Row]:
    return [
        {
            "conversations": at_once,
            "system": name,
            "turns/s": across(rounds, lambda s: s.rate),
            "p50 ms": across(rounds, lambda s: s.p50 * 1e3),
            "p99 ms": across(rounds, lambda s: s.p99 * 1e3),
            "cpu ms/turn": across(rounds, lambda s: s.cpu_each * 1e3),
            "ours/it turns/s": _against(systems, name),
        }
        for name, rounds in systems.items()
    ]


def _against(systems: dict[str, list[Sample]], name: str) -> float | None:
    if "ours" not in systems or name not in systems:
        return None
    return compare(systems["ours"], systems[name], lambda s: s.rate)


def _goals(samples: Samples) -> list[Goal]:
    alone, crowd = samples[AT_ONCE[0]], samples[AT_ONCE[-1]]
    p50 = compare(alone["ours"], alone["ref"], lambda s: s.p50) if {"ours", "ref"} <= alone.keys() else None
    return [
        Goal("turns/s at 50, ours / LangGraph", _against(crowd, "langgraph"), 10, at_least=True),
        Goal("turns/s at 50, ours / bare reference", _against(crowd, "ref"), 1 / 8, at_least=True),
        Goal("turns/s at 50, ours / bare reference (aim)", _against(crowd, "ref"), 1 / 4, at_least=True),
        Goal("p50 at 1, ours / bare reference", p50, 4),
    ]
