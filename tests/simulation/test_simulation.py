"""10,000 seeds of the simulation, and the proof that it would find what it is there to find.

Each seed is another installation, another course of talks and other mishaps; `tests/simulation/plan.py` draws them. A
seed that fails is replayed, with all that happens in it, by `python -m tests.simulation --seed N`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.simulation.__main__ import main
from tests.simulation.truth import SessionRows, Truth
from tests.simulation.world import run

from perdure.engine import briefing, membership
from perdure.engine.lookout import Lookout
from perdure.rules import asks, guards, holds, messages, runs, turns
from perdure.store import batch

SEEDS = 10_000
CHUNKS = 40
ROOT = Path(__file__).parent.parent.parent


@pytest.mark.timeout(600)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_nothing_is_wrong_with_any_seed(chunk: int) -> None:
    share = SEEDS // CHUNKS
    for seed in range(chunk * share, (chunk + 1) * share):
        report = run(seed)
        if report.problems:
            told = "\n".join(report.problems)
            pytest.fail(f"seed {seed}, replay it by `python -m tests.simulation --seed {seed}`:\n{told}", pytrace=False)


# --- the same seed is the same run


def test_a_seed_gives_the_same_history_however_often_it_is_run() -> None:
    for seed in range(0, 60, 3):
        first, second = run(seed, traced=True), run(seed, traced=True)
        assert first == second
        assert run(seed).history == first.history
    assert len({tuple(run(seed).history) for seed in range(20)}) == 20


@pytest.mark.timeout(300)
def test_a_seed_gives_the_same_history_in_another_process() -> None:
    """Nothing depends on the order in which this process hashes, or on anything that it has done before."""
    digests = {_digest(salt) for salt in ("1", "2")}
    assert len(digests) == 1


def _digest(salt: str) -> str:
    command = [sys.executable, "-m", "tests.simulation", "--count", "40", "--digest"]
    environment = {**os.environ, "PYTHONHASHSEED": salt}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200, check=True)
    return done.stdout


def test_a_replay_tells_what_happens_and_what_is_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["--seed", "6"]) == 0
    told = capsys.readouterr().out
    for part in ("worker0.1 starts", "CompleteTurn of", "nothing goes wrong from here on", "nothing is wrong"):
        assert part in told
    _without_receipts(monkeypatch)
    assert main(["--count", "30"]) == 1
    assert "was answered" in capsys.readouterr().out


# --- what is broken on purpose is found


Break = Callable[[pytest.MonkeyPatch], Any]


def _without_fence_check(patch: pytest.MonkeyPatch) -> None:
    for module in (guards, asks, holds, messages, runs, turns):
        patch.setattr(module, "check_fence", lambda head, command: None, raising=False)


def _with_claims_that_ignore_leases(patch: pytest.MonkeyPatch) -> None:
    def claim(truth: Truth, worker: str, machine: str | None, limit: int) -> list[str]:
        found: list[SessionRows] = [rows for rows in truth.rows.values() if truth.entries[rows.id].columns[2]]
        for rows in found[:limit]:
            rows.owner = worker
        return [rows.id for rows in found[:limit]]

    patch.setattr(Truth, "claim", claim)
    patch.setattr(membership.Member, "may_drive", _always)


async def _always(*_: Any) -> bool:
    return True


def _with_handlers_that_outlive_the_lease(patch: pytest.MonkeyPatch) -> None:
    async def keep(member: membership.Member) -> str:
        while True:
            await asyncio.sleep(1)
            await member._renew()

    patch.setattr(membership.Member, "_keep", keep)


def _without_looking_for_what_hints_missed(patch: pytest.MonkeyPatch) -> None:
    async def look(_: Lookout) -> None:
        return

    patch.setattr(Lookout, "look", look)


def _without_receipts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(batch.Batch, "_replayed", lambda *_: None)


def _with_answers_that_are_not_passed_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(briefing, "is_left_untold", lambda *_: False)


MUTANTS: dict[str, tuple[Break, int]] = {
    "no fence check": (_without_fence_check, 400),
    "claims ignore leases": (_with_claims_that_ignore_leases, 50),
    "handlers outlive the lease": (_with_handlers_that_outlive_the_lease, 100),
    "lost hints are not missed": (_without_looking_for_what_hints_missed, 50),
    "repeated requests are new ones": (_without_receipts, 50),
    "what others did is not passed on": (_with_answers_that_are_not_passed_on, 200),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_build_that_is_broken_on_purpose_is_found_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, seeds = MUTANTS[name]
    with monkeypatch.context() as patch:
        broken(patch)
        found = next((seed for seed in range(seeds) if run(seed).problems), None)
    assert found is not None, f"{seeds} seeds did not show that there is: {name}"
    assert not run(found).problems
