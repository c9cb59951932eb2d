"""Which process is meant: a pid alone may belong to somebody else by the time it is signalled.

An identity is pid, start time and boot. Every signal goes through a pidfd that was opened first and compared
afterwards, so that a pid that was reused in between is never hit.
"""

from __future__ import annotations

import os
import signal
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

_DEAD: Final = frozenset(b"ZX")


class ProcessIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One process of one boot of this machine; `start` is in clock ticks since that boot."""

    pid: int
    start: int
    boot_id: str


class ProcessStat(NamedTuple):
    """What `/proc/PID/stat` says about a process; `state` is the kernel's letter as a byte."""

    pid: int
    state: int
    parent: int
    group: int
    session: int
    start: int

    @property
    def is_dead(self) -> bool:
        """Tell whether only the record of the process is left (a zombie)."""
        return self.state in _DEAD

    @property
    def is_stopped(self) -> bool:
        """Tell whether the process is stopped by a signal."""
        return self.state in b"Tt"


@cache
def boot_id() -> str:
    """Return the id that the kernel drew at this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def read_stat(pid: int) -> ProcessStat | None:
    """Return the stat of a process, or None when there is none of that pid."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        raw = os.read(fd, 4096)
    except ProcessLookupError:
        return None
    finally:
        os.close(fd)
    # The command's name stands in parentheses and may itself contain spaces and parentheses.
    fields = raw[raw.rindex(b")") + 2 :].split()
    return ProcessStat(pid, fields[0][0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def identify(pid: int) -> ProcessIdentity | None:
    """Return the identity of the living process `pid`, or None; a zombie is not living."""
    stat = read_stat(pid)
    if stat is None or stat.is_dead:
        return None
    return ProcessIdentity(pid, stat.start, boot_id())


def own_identity() -> ProcessIdentity:
    """Return the identity of the calling process."""
    identity = identify(os.getpid())
    assert identity is not None
    return identity


def is_alive(identity: ProcessIdentity) -> bool:
    """Tell whether exactly this process lives; a zombie, another boot or a reused pid does not count."""
    return identify(identity.pid) == identity


def open_pidfd(identity: ProcessIdentity) -> int | None:
    """Return a pidfd of exactly this process, for the caller to close, or None when it is gone."""
    try:
        fd = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return None
    # Compared after the opening: from here on the descriptor cannot come to mean another process.
    if is_alive(identity):
        return fd
    os.close(fd)
    return None


def send_signal(identity: ProcessIdentity, number: signal.Signals) -> bool:
    """Send a signal to exactly this process; return False when it is gone, and then signal nobody."""
    fd = open_pidfd(identity)
    if fd is None:
        return False
    try:
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True
