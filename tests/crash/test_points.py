"""Crash points themselves: how they are armed, when they act, and what the test hears of it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import crashpoints
from perdure.crashpoints import VARIABLE, CrashPointReached, areach, arm, reach
from perdure.testing import CrashFile, CrashNote, Ledger

POINT = "engine.admit.before"


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    arm(None)


@pytest.mark.parametrize("spec", ["nowhere:kill", f"{POINT}:explode", POINT, f"{POINT}:kill:often"])
def test_what_names_no_point_or_action_is_refused(spec: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        arm(spec)
    with pytest.raises(ValueError):
        CrashFile(tmp_path / "crash").arm(*spec.split(":")[:1], "explode")  # type: ignore[arg-type]


def test_it_acts_once_at_the_nth_time_and_for_its_label_only() -> None:
    arm(f"{POINT}=Enqueue:raise:2")
    for label in ("Enqueue", "Close", "", "Close"):
        reach(POINT, label)
    reach("engine.admit.after", "Enqueue")
    with pytest.raises(CrashPointReached, match=f"{POINT} Enqueue"):
        reach(POINT, "Enqueue")
    reach(POINT, "Enqueue")


async def test_a_coroutine_that_hangs_lets_others_go_on() -> None:
    arm(f"{POINT}:hang")
    hung = asyncio.create_task(areach(POINT))
    await asyncio.sleep(0)
    await areach(POINT)
    assert not hung.done()
    hung.cancel()


def test_a_thread_that_hangs_does_not_come_back() -> None:
    arm(f"{POINT}:hang")
    hung = threading.Thread(target=reach, args=(POINT,), daemon=True)
    hung.start()
    hung.join(0.05)
    assert hung.is_alive()


def run(program: str, spec: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", f"from perdure.crashpoints import reach\n{program}"],
        env={VARIABLE: spec},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_process_is_armed_by_its_environment_and_killed_where_it_stands() -> None:
    ended = run(f"print('before', flush=True)\nreach({POINT!r})\nprint('after')", f"{POINT}:kill")
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, "before\n")
    assert f"crash point {POINT} reached" in ended.stderr


def test_a_file_arms_all_processes_and_only_the_first_acts(tmp_path: Path) -> None:
    crash = CrashFile(tmp_path / "crash")
    quiet = run(f"reach({POINT!r})", crash.spec)
    assert (quiet.returncode, crash.note()) == (0, None)
    crash.arm(POINT, "kill")
    first, second = (run(f"import os\nprint(os.getpid(), flush=True)\nreach({POINT!r})", crash.spec) for _ in range(2))
    assert (first.returncode, second.returncode) == (-signal.SIGKILL, 0)
    assert crash.note() == CrashNote(POINT, "", "kill", int(first.stdout))
    crash.arm(POINT, "kill", label="Close")
    assert crash.note() is None


def test_a_running_process_is_armed_and_disarmed_by_a_file(tmp_path: Path) -> None:
    crash = CrashFile(tmp_path / "crash")
    arm(crash.spec)
    reach(POINT, "Close")
    crash.arm(POINT, "raise", label="Close", nth=2)
    reach(POINT, "Close")
    reach(POINT, "Enqueue")
    with pytest.raises(CrashPointReached):
        reach(POINT, "Close")
    reach(POINT, "Close")
    crash.arm(POINT, "raise")
    crash.disarm()
    reach(POINT)


async def test_a_test_hears_that_a_point_was_reached_or_was_not(tmp_path: Path) -> None:
    crash = CrashFile(tmp_path / "crash")
    crash.arm(POINT, "raise")
    with pytest.raises(TimeoutError):
        await crash.wait(0.01)
    with pytest.raises(TimeoutError):
        crash.wait_blocking(0.01)
    arm(crash.spec)
    waiting = asyncio.create_task(crash.wait(10))
    with pytest.raises(CrashPointReached):
        reach(POINT, "Close")
    assert (await waiting).label == crash.wait_blocking(0).label == "Close"


def test_unarmed_a_point_looks_at_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crashpoints, "_tell", None)
    assert crashpoints._armed is None
    reach("no such point")


def test_a_ledger_has_what_killed_processes_noted(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    assert ledger.entries() == []
    program = (
        "import os, signal, sys\nfrom perdure.testing import Ledger\n"
        "Ledger(sys.argv[1]).note(kind='x', text='ä\\n', who=sys.argv[2])\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    for who in ("a", "b"):
        ended = subprocess.run([sys.executable, "-c", program, str(ledger.path), who], timeout=60, check=False)
        assert ended.returncode == -signal.SIGKILL
    assert [entry["who"] for entry in ledger.entries()] == ["a", "b"]
    assert ledger.entries(who="b", kind="x") == [{"kind": "x", "text": "ä\n", "who": "b"}]
    assert ledger.entries(who="c") == []


def test_a_ledger_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        Ledger(tmp_path / "no folder" / "ledger").note(kind="x")
    with pytest.raises(TypeError):
        Ledger(tmp_path / "ledger").note(kind=object())
    assert Ledger(tmp_path / "ledger").entries() == []
