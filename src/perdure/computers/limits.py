"""What a Computer may use, and how a process is held to it."""

from __future__ import annotations

import math
import os
import resource
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

# RLIMIT_DATA and not RLIMIT_AS: it counts what a process can write to, not the address space that it only reserves.
# Under RLIMIT_AS of a gigabyte, programs such as node do not even start, whatever little memory they use.
MEMORY: Final = resource.RLIMIT_DATA


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one Computer; None means none.

    `cpu` is in cores, of all its processes together; `memory` in bytes, for each process; `open_files` for each
    process; `file_size` in bytes, for each file.
    """

    cpu: float | None = None
    memory: int | None = None
    open_files: int | None = 4096
    file_size: int | None = None

    def rlimits(self) -> dict[int, int]:
        """Return the kernel's per-process limits that stand for these, none above what we have ourselves."""
        wanted = {MEMORY: self.memory, resource.RLIMIT_NOFILE: self.open_files, resource.RLIMIT_FSIZE: self.file_size}
        return {kind: _bounded(kind, value) for kind, value in wanted.items() if value is not None}

    def cores(self, computer_id: str) -> set[int]:
        """Return the cores that stand for `cpu` where no quota can be set; Computers are spread over all."""
        ours = sorted(os.sched_getaffinity(0))
        if self.cpu is None or self.cpu >= len(ours):
            return set(ours)
        count = math.ceil(self.cpu)
        first = zlib.crc32(computer_id.encode()) % len(ours)
        return {ours[(first + step) % len(ours)] for step in range(count)}


def _bounded(kind: int, value: int) -> int:
    hard = resource.getrlimit(kind)[1]
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def shell_prefix(limits: Limits) -> list[str]:
    """Return an argv prefix under which a program starts with these limits in force from its first instruction."""
    words = {MEMORY: ("-d", 1024), resource.RLIMIT_NOFILE: ("-n", 1), resource.RLIMIT_FSIZE: ("-f", 512)}
    settings = [f"ulimit {words[kind][0]} {value // words[kind][1]}" for kind, value in limits.rlimits().items()]
    return ["/bin/sh", "-c", " && ".join([*settings, 'exec "$@"']), "sh"]


def limit_self(rlimits: Mapping[int, int], cores: Iterable[int] | None) -> None:
    """Hold the calling process, and all that it will start, to these limits."""
    for kind, value in rlimits.items():
        resource.setrlimit(kind, (value, value))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if cores:
        os.sched_setaffinity(0, cores)
