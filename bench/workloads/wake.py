"""The first turn of a sleeping session with 1,000 turns behind it, next to its turns when awake."""

from __future__ import annotations

from bench.drivers import Driver
from bench.stage import Stage, in_rounds
from bench.stats import Goal, Sample, across, compare

TITLE = "first turn of a sleeping session with 1,000 turns behind it"
SESSIONS = 10
HISTORY = 1000
ROUNDS = 5
AWAKE_TURNS = 10


def run(stage: Stage) -> None:
    driver = stage.require("ours", "restless")
    driver.ask("grow", conversations=SESSIONS, turns=HISTORY, tag="long")
    made = dict.fromkeys((f"long-{n}" for n in range(SESSIONS)), HISTORY)
    samples = in_rounds(["awake", "asleep"], ROUNDS, lambda state, _: _sample(stage, driver, state, made))
    restarted = _after_restart(stage, driver, made)
    for name, rounds in [*samples.items(), ("after a restart", [restarted])]:
        p50, p99 = across(rounds, lambda s: s.p50 * 1e3), across(rounds, lambda s: s.p99 * 1e3)
        stage.report.rows.append({"session": name, "p50 ms": p50, "p99 ms": p99})
    ratio = compare(samples["asleep"], samples["awake"], lambda s: s.p50)
    stage.report.goals.append(Goal("p50 of the first turn after sleep / of a turn awake", ratio, 10))
    stage.report.notes.append(
        f"{SESSIONS} sessions, {ROUNDS} rounds; asleep = nothing of the session in the worker's memory"
    )


def _sample(stage: Stage, driver: Driver, state: str, made: dict[str, int]) -> Sample:
    """One turn of each session after it was put to sleep, or a few of each after a turn that woke it."""
    latencies: list[float] = []
    if state == "asleep":
        driver.ask("asleep")
    for name, turns in made.items():
        if state == "asleep":
            taken = _extend(stage, driver, name, turns, 1)
        else:
            taken = _extend(stage, driver, name, turns, 1 + AWAKE_TURNS)[1:]
        latencies += taken
        made[name] += 1 if state == "asleep" else 1 + AWAKE_TURNS
    return Sample(sum(latencies), 0.0, tuple(latencies))


def _after_restart(stage: Stage, driver: Driver, made: dict[str, int]) -> Sample:
    """The same in a new process: nothing of the old one but its files (which the system may have cached)."""
    sessions = driver.ask("sessions")
    driver.stop()
    again = stage.require("ours")
    again.ask("know", sessions=sessions)
    again.ask("grow", conversations=1, turns=20, tag="warm")
    latencies = [second for name, turns in made.items() for second in _extend(stage, again, name, turns, 1)]
    return Sample(sum(latencies), 0.0, tuple(latencies))


def _extend(stage: Stage, driver: Driver, name: str, made: int, count: int) -> tuple[float, ...]:
    return stage.measure(driver, "extend", conversation=name, start=made, count=count).latencies
