"""Control groups, where this process may make some: a CPU quota and exact knowledge of a Computer's processes.

Version 1 keeps a folder a controller, version 2 one for all. Whether either works is tried out, never guessed: a host
can show the files and refuse the writes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PREFIX: Final = "perdure-"
_PERIOD_US: Final = 100_000
_SMALLEST_QUOTA_US: Final = 1_000
_YOUNG: Final = 60.0


@dataclass(frozen=True, slots=True)
class CpuGroups:
    """The folder below which a group a Computer can be made; `version` is 1 or 2."""

    parent: Path
    version: int

    def make(self, name: str, cpu: float) -> CpuGroup:
        """Make, or take over, the group `name` with a quota of `cpu` cores. Raises OSError when refused."""
        group = CpuGroup(self.parent / name)
        group.path.mkdir(exist_ok=True)
        quota = max(_SMALLEST_QUOTA_US, int(cpu * _PERIOD_US))
        if self.version == 2:
            (group.path / "cpu.max").write_text(f"{quota} {_PERIOD_US}")
        else:
            (group.path / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (group.path / "cpu.cfs_quota_us").write_text(str(quota))
        return group

    def find(self, name: str) -> CpuGroup | None:
        """Return the group `name` if it exists, as an earlier worker may have left it."""
        group = CpuGroup(self.parent / name)
        return group if group.path.is_dir() else None


@dataclass(frozen=True, slots=True)
class CpuGroup:
    """One Computer's group."""

    path: Path

    def add(self, pid: int) -> None:
        """Move a process into the group. Takes milliseconds; a process that is gone is left out."""
        with contextlib.suppress(ProcessLookupError):
            (self.path / "cgroup.procs").write_text(str(pid))

    def pids(self) -> list[int]:
        """Return the pids in the group; none when the group is gone."""
        try:
            return [int(line) for line in (self.path / "cgroup.procs").read_text().split()]
        except OSError as gone:
            if gone.errno in (errno.ENOENT, errno.ENODEV):
                return []
            raise

    def remove(self) -> bool:
        """Remove the empty group; return False while the kernel still counts processes in it."""
        try:
            self.path.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True


def find_cpu_groups(pid: int) -> CpuGroups | None:
    """Return where groups with a CPU quota can be made, tried out with the process `pid`, or None."""
    for parent, version in _candidates():
        groups = CpuGroups(parent, version)
        if _works(groups, pid):
            return groups
    return None


def _candidates() -> Iterator[tuple[Path, int]]:
    own = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _number, controllers, path = line.split(":", 2)
        own[controllers] = path
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _device, mount, kind, options = line.split()[:4]
        if kind == "cgroup2":
            yield Path(mount + own.get("", "/").rstrip("/")), 2
        elif kind == "cgroup" and "cpu" in options.split(","):
            ours = next((path for names, path in own.items() if "cpu" in names.split(",")), "/")
            yield Path(mount + ours.rstrip("/")), 1


def _works(groups: CpuGroups, pid: int) -> bool:
    try:
        group = groups.make(_test_name(), 0.5)
        group.add(pid)
        return pid in group.pids()
    except OSError:
        return False


def _test_name() -> str:
    return f"{PREFIX}selftest-{os.getpid()}"


def remove_left_groups() -> None:
    """Remove what `find_cpu_groups` made, once the process that it was tried out with is gone.

    And what Computers have left that ended with no worker there: empty groups that are not just being made.
    """
    for parent, _version in _candidates():
        CpuGroup(parent / _test_name()).remove()
        for path in parent.glob(f"{PREFIX}*"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > _YOUNG:
                    CpuGroup(path).remove()
