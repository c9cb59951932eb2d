"""The first turn of a session that its worker let sleep, next to its turns when awake, on PostgreSQL."""

from __future__ import annotations

from bench.drivers import Driver
from bench.installation import OURS, Installation
from bench.stage import Stage, in_rounds
from bench.stats import Goal, Sample, across, compare

TITLE = "first turn of a sleeping session on PostgreSQL, and of sessions that a new worker takes over"
SESSIONS = 10
HISTORY = 200
ROUNDS = 5
AWAKE_TURNS = 5


def run(stage: Stage) -> None:
    installation = Installation(stage)
    system = installation.start(OURS, "restless")
    assert system is not None, "ours can be had everywhere"
    system.driver.ask("grow", conversations=SESSIONS, turns=HISTORY, tag="long")
    made = dict.fromkeys((f"long-{n}" for n in range(SESSIONS)), HISTORY)
    samples = in_rounds(["awake", "asleep"], ROUNDS, lambda state, _: _sample(stage, system.driver, state, made))
    samples["another worker"] = [_elsewhere(stage, installation, system.driver, made)]
    for name, rounds in samples.items():
        p50, p99 = across(rounds, lambda s: s.p50 * 1e3), across(rounds, lambda s: s.p99 * 1e3)
        stage.report.rows.append({"session": name, "turns": len(rounds) * len(rounds[0].latencies)} | _times(p50, p99))
    ratio = compare(samples["asleep"], samples["awake"], lambda s: s.p50)
    stage.report.goals.append(Goal("p50 of the first turn after sleep / of a turn awake", ratio, 10))
    stage.report.notes += [
        f"{SESSIONS} sessions with {HISTORY} turns behind them, {ROUNDS} rounds; asleep: nothing of the session is in"
        " the worker's memory, and its run has ended",
        "another worker: the first turns in a new process on the same database, once the first process is gone",
    ]


def _times(p50: float, p99: float) -> dict[str, float]:
    return {"p50 ms": p50, "p99 ms": p99}


def _sample(stage: Stage, driver: Driver, state: str, made: dict[str, int]) -> Sample:
    """One turn of each session after it was put to sleep, or a few of each after a turn that woke it."""
    latencies: list[float] = []
    if state == "asleep":
        driver.ask("asleep")
    for name, turns in made.items():
        if state == "asleep":
            latencies += _extend(stage, driver, name, turns, 1)
        else:
            latencies += _extend(stage, driver, name, turns, 1 + AWAKE_TURNS)[1:]
        made[name] += 1 if state == "asleep" else 1 + AWAKE_TURNS
    return Sample(sum(latencies), 0.0, tuple(latencies))


def _elsewhere(stage: Stage, installation: Installation, first: Driver, made: dict[str, int]) -> Sample:
    """The first turns of the sleeping sessions in another process, which was warmed by sessions of its own."""
    first.ask("asleep")
    sessions = first.ask("sessions")
    first.stop()
    second = stage.require("ours", installation.postgres.url(OURS))
    second.ask("know", sessions=sessions)
    second.ask("grow", conversations=1, turns=20, tag="warm-again")
    latencies = [taken for name, turns in made.items() for taken in _extend(stage, second, name, turns, 1)]
    return Sample(sum(latencies), 0.0, tuple(latencies))


def _extend(stage: Stage, driver: Driver, name: str, made: int, count: int) -> tuple[float, ...]:
    return stage.measure(driver, "extend", conversation=name, start=made, count=count).latencies
