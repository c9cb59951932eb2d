"""One module a workload; each has `TITLE` and `run(stage)`, which fills the stage's report."""

from __future__ import annotations

NAMES = ("turns", "http", "growth", "wake", "sleepers", "process", "recovery")
