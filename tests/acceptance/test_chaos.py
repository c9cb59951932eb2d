"""Everything is broken once, in processes of their own, and no promise is; and what would break one is found.

`make chaos` does the same for half an hour. See `tests/chaos`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.chaos.cleaner import marked
from tests.chaos.database import INSTALL, binaries, until
from tests.chaos.nemeses import NEMESES
from tests.chaos.run import Options, Outcome, run, seed_of
from tests.chaos.stale import wake_a_stale_owner

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def need_postgres() -> None:
    if binaries() is None:
        (pytest.fail if os.geteuid() == 0 else pytest.skip)(INSTALL)


Say = Callable[[str], None]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Say:
    """Show what was tested and what could not be, whether the test passes or not."""

    def show(text: str) -> None:
        with capsys.disabled():
            print(f"\n{request.node.name}: {text}", end="")

    return show


def verdict(outcome: Outcome) -> str:
    found = [str(problem) for problem in outcome.problems]
    return "\n".join([f"seed {outcome.options.seed}; what nodes said is in {outcome.folder}", *found])


def check_that_all_was_done(outcome: Outcome, kinds: list[str]) -> None:
    done = Counter(injection.kind for injection in outcome.injections)
    assert set(done) == set(kinds) - set(outcome.missing)
    assert [f"{each.kind}: {each.error}" for each in outcome.injections if each.error] == []
    assert [end for end in outcome.ends if not end.wanted and end.was_ready] == []


async def test_everything_is_broken_once_and_no_promise_is(say: Say) -> None:
    outcome = await run(Options(seed_of(os.environ.get("CHAOS_SEED")), at_once=10, say=lambda _: None))
    say(f"seed {outcome.options.seed}, partitions by {outcome.network}, not done: {outcome.missing or 'nothing'}")
    assert not outcome.problems, verdict(outcome)
    check_that_all_was_done(outcome, list(NEMESES))
    ends = Counter(turn["status"] for history in outcome.evidence.histories.values() for turn in history.turns)
    # A run in which nothing happened would prove nothing.
    assert ends["completed"] > 100, ends
    assert ends["interrupted"] > 5, ends
    assert outcome.retries > 10


async def test_without_namespaces_proxies_cut_connections(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAOS_NETWORK", "proxies")
    kinds = ["cut_worker", "cut_server"]
    outcome = await run(Options(1, kinds=kinds, at_once=8, say=lambda _: None))
    say(f"partitions by {outcome.network}")
    assert not outcome.problems, verdict(outcome)
    check_that_all_was_done(outcome, kinds)
    assert "proxies" in outcome.network


async def test_an_owner_that_slept_through_its_lease_writes_nothing() -> None:
    assert await wake_a_stale_owner(fence=True) == []


async def test_without_the_check_of_the_fence_it_does_and_is_found_out() -> None:
    found = await wake_a_stale_owner(fence=False)
    assert any(problem.rule == "owners_only" and "the owner's is" in problem.why for problem in found), found


def test_a_run_that_is_killed_leaves_nothing_behind() -> None:
    words = [sys.executable, "-u", "-m", "tests.chaos", "--seed", "1", "--kinds", "kill_worker", "--minutes", "5"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert next(lines).startswith("seed")
        folder = next(line.split()[-1] for line in lines if line.startswith("everything is in"))
        next(line for line in lines if "kill_worker" in line)
        assert marked(folder)
        process.send_signal(signal.SIGKILL)
    until(lambda: not _left(folder), f"nothing of {folder} is left", patience=60)


def _left(folder: str) -> list[object]:
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if folder in line]
    return [*marked(folder), *mounts, *([folder] if Path(folder).exists() else [])]
