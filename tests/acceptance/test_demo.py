"""`make demo`: every promise holds, and a broken one fails it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from demo.stage import Stage

ROOT = Path(__file__).parents[2]


def test_every_promise_holds() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo"], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "✗" not in done.stdout
    assert "All 21 promises held" in done.stdout
    assert "\x1b" not in done.stdout, "colours belong on a terminal"


def test_a_broken_promise_fails_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    stage = Stage()
    stage.promise("The sun rises", True)
    stage.promise("The moon is cheese", False, "it is [rock]")
    assert stage.end() == 1
    printed = capsys.readouterr().out
    assert "✗ The moon is cheese" in printed
    assert "it is [rock]" in printed
    assert "1 promises broken, 1 held" in printed
