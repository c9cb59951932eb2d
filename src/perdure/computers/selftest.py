"""Finds out what this host lets the backend `local` do by doing it to a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from perdure.computers import probe
from perdure.computers.cgroups import CpuGroups, find_cpu_groups, remove_left_groups
from perdure.computers.memory import has_swap


@dataclass(frozen=True, slots=True)
class HostAbilities:
    """What was seen to work here; `groups` is where CPU quotas can be set, if anywhere."""

    memory: bool
    open_files: bool
    file_size: bool
    cores: bool
    groups: CpuGroups | None
    swap: bool

    @property
    def cpu(self) -> Literal["quota", "affinity", "none"]:
        """Return how a Computer is held to its cores here."""
        if self.groups is not None:
            return "quota"
        return "affinity" if self.cores else "none"


@cache
def host_abilities() -> HostAbilities:
    """Try this host out, once a process: some 50 ms, blocking."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", probe.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(probe.__file__).parent,
    ) as subject:
        assert subject.stdout is not None
        seen = json.loads(subject.stdout.readline())
        groups = find_cpu_groups(subject.pid)
    remove_left_groups()
    return HostAbilities(**seen, groups=groups, swap=has_swap())
