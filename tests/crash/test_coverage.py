"""Nothing is left out: every point is in the source, and the matrix has cases for each of its purposes."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from pathlib import Path

import crash_acts as acts
from crash_matrix import ACTIONS, COMMANDS, INSIDE, STEPS, cases

import perdure
from perdure.crashpoints import POINTS, SHARED_POINTS, TOOL_POINTS
from perdure.engine.driver import SessionDriver
from perdure.rules import commands
from perdure.rules.decide import _RULES

SOURCE = Path(perdure.__file__).parent
CALL = re.compile(r"\b(?:a?reach|_reach)\(\s*(?:errors, index, )?\"([a-z_.]+)\"")


def reached() -> Counter[str]:
    """Return how often the source names each point."""
    named: Counter[str] = Counter()
    for file in SOURCE.rglob("*.py"):
        named.update(CALL.findall(file.read_text()))
    return named


def test_the_source_reaches_every_point_and_no_other() -> None:
    assert set(reached()) == {*POINTS, *SHARED_POINTS, *TOOL_POINTS}
    assert len(POINTS) == len(set(POINTS)) >= 40


def test_every_point_has_a_case_for_each_action() -> None:
    covered = {(case.point, case.action) for case in cases()}
    assert covered == {(point, action) for point in POINTS for action in ACTIONS}


def test_no_case_is_there_twice_and_each_has_its_act() -> None:
    assert not [case for case, times in Counter(cases()).items() if times > 1]
    assert all(inspect.iscoroutinefunction(getattr(acts, case.act)) for case in cases())


def test_every_command_is_crashed_before_and_after_its_commit() -> None:
    known = {kind.__name__ for kind in _RULES if kind.__module__ == commands.__name__} | {"CreateSession"}
    for point in ("store.commit.before", "store.commit.after"):
        assert {case.label for case in cases() if case.point == point} == known
    assert set(COMMANDS) <= known
    assert all(not issubclass(getattr(commands, name), commands.WorkerCommand) for name in INSIDE)


def test_every_step_of_a_driver_is_crashed() -> None:
    named = set(re.findall(r"\"([a-z_]+)\"", inspect.getsource(SessionDriver._wanted)))
    steps = {name for name in named if inspect.iscoroutinefunction(getattr(SessionDriver, f"_{name}", None))}
    assert steps <= set(STEPS)
    assert {case.label for case in cases() if case.point == "engine.act.before"} == set(STEPS)
