"""CPU time of processes that are not ours to ask, read from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def spent(roots: Iterable[int]) -> float:
    """CPU seconds of some processes and of their descendants, also of those that were waited for since."""
    table = _table()
    pending, seen, ticks = [pid for pid in roots if pid in table], set[int](), 0
    while pending:
        pid = pending.pop()
        if pid in seen:
            continue
        seen.add(pid)
        ticks += table[pid][1]
        pending += [child for child, (parent, _) in table.items() if parent == pid]
    return ticks / _TICK


def _table() -> dict[int, tuple[int, int]]:
    """Every process: its parent, and the ticks of it and of its children that were waited for."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (line := _read(entry / "stat")):
            # The name, in parentheses, may hold anything.
            fields = line.rpartition(")")[2].split()
            found[int(entry.name)] = (int(fields[1]), sum(map(int, fields[11:15])))
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        # It has ended since the folder was listed.
        return ""
