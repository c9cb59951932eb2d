"""One module a workload, with underscores for dashes; each has `TITLE` and `run(stage)`, which fills the report."""

from __future__ import annotations

EMBEDDED = ("turns", "http", "growth", "wake", "sleepers", "process", "recovery")
SHARED = ("pg-turns", "pg-create", "pg-wake", "pg-recovery", "pg-scale", "pg-sleepers")
"""Those on PostgreSQL."""
NAMES = (*EMBEDDED, *SHARED)
