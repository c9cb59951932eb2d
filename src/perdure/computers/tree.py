"""The processes of one Computer, all of them: children, their children, daemons that left session and parent.

A process belongs to the tree when it is a root, has a member for a parent or a session leader, carries the Computer's
mark in its environment, or is in the Computer's cgroup. The mark and the cgroup find what the kernel's family ties no
longer show: orphans of a guest that has died.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterable
from typing import Final

from perdure.computers.exits import wait_gone
from perdure.computers.identity import ProcessIdentity, ProcessStat, boot_id, is_alive, read_stat, send_signal
from perdure.errors import PerdureError

MARK: Final = "PERDURE_COMPUTER_ID"
_KERNEL: Final = 2
_SETTLE: Final = 0.001
_PATIENCE: Final = 5.0


class TreeNotStopped(PerdureError):
    """Raised when processes of a Computer neither stop nor die in time; names them."""

    code = "computer_not_stopped"
    status = 503

    def __init__(self, computer_id: str, verb: str, left: Iterable[ProcessIdentity]) -> None:
        pids = sorted(identity.pid for identity in left)
        super().__init__(
            f"Computer {computer_id} could not be {verb}: processes {pids} did not obey. Its disk is untouched; "
            "they are probably waiting for a device. Try again, or restart the machine.",
            {"pids": pids},
        )


def process_table() -> dict[int, ProcessStat]:
    """Return the stats of all living processes by pid."""
    table: dict[int, ProcessStat] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := read_stat(int(name))) is not None and not stat.is_dead:
            table[stat.pid] = stat
    return table


def _is_marked(pid: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            return mark in file.readall().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        # A process whose environment we may not read runs as somebody else: the marked ones run as we do.
        return False


class ProcessTree:
    """Finds, signals and ends the processes of one Computer."""

    def __init__(self, computer_id: str, procs: Callable[[], Iterable[int]] = tuple) -> None:
        """Take the Computer's id, which is the mark, and how to list the pids in its cgroup, if it has one."""
        self._id = computer_id
        self._mark = f"{MARK}={computer_id}".encode()
        self._procs = procs
        self._roots: set[ProcessIdentity] = set()

    def add_root(self, root: ProcessIdentity) -> None:
        """Count `root` and what descends from it as members."""
        self._roots = {known for known in self._roots if is_alive(known)} | {root}

    def members(self) -> list[ProcessIdentity]:
        """Return all living members, parents before children. Walks `/proc`: a few milliseconds."""
        table = process_table()
        found = self._seeds(table)
        pending = set(table) - found - {os.getpid(), 1}
        while grown := {pid for pid in pending if table[pid].parent in found or table[pid].session in found}:
            found |= grown
            pending -= grown
        return [
            ProcessIdentity(pid, table[pid].start, boot_id())
            for pid in sorted(found, key=lambda pid: (table[pid].start, pid))
        ]

    def _seeds(self, table: dict[int, ProcessStat]) -> set[int]:
        here = boot_id()
        roots = {
            root.pid
            for root in self._roots
            if root.boot_id == here and root.pid in table and table[root.pid].start == root.start
        }
        caged = {pid for pid in self._procs() if pid in table}
        known = roots | caged
        # The kernel's own threads, which are many and have no environment, are children of its process 2.
        unknown = (stat.pid for stat in table.values() if stat.pid not in known and stat.parent != _KERNEL)
        marked = {pid for pid in unknown if _is_marked(pid, self._mark)}
        return (known | marked) - {os.getpid(), 1}

    async def freeze(self) -> list[ProcessIdentity]:
        """Stop every member with SIGSTOP and return them once all are seen stopped.

        Raises `TreeNotStopped` when some never stop; then all have been continued again.
        """
        stopped = await asyncio.to_thread(self._freeze)
        if stopped is None:
            left = await asyncio.to_thread(self._running)
            await self.thaw()
            raise TreeNotStopped(self._id, "hibernated", left)
        return stopped

    def _freeze(self) -> list[ProcessIdentity] | None:
        told: set[ProcessIdentity] = set()
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            members = self.members()
            # A member that forked before the signal reached it left a child that only the next walk can see.
            fresh = [member for member in members if member not in told]
            for member in fresh:
                send_signal(member, signal.SIGSTOP)
            told.update(fresh)
            if not fresh and not self._running_of(members):
                return members
            time.sleep(_SETTLE)
        return None

    def _running(self) -> list[ProcessIdentity]:
        return self._running_of(self.members())

    @staticmethod
    def _running_of(members: Iterable[ProcessIdentity]) -> list[ProcessIdentity]:
        stats = ((member, read_stat(member.pid)) for member in members)
        return [member for member, stat in stats if stat and not stat.is_stopped and not stat.is_dead]

    async def thaw(self) -> list[ProcessIdentity]:
        """Let every member continue, children before parents, and return them."""
        members = await asyncio.to_thread(self.members)
        for member in reversed(members):
            send_signal(member, signal.SIGCONT)
        return members

    async def end(self, grace: float) -> None:
        """End every member: SIGTERM, `grace` seconds to obey, then SIGKILL until none is left.

        Stopped members are ended too. Raises `TreeNotStopped` when some survive SIGKILL for five seconds.
        """
        members = await asyncio.to_thread(self.members)
        if grace > 0:
            for member in members:
                send_signal(member, signal.SIGTERM)
                # A stopped process gets its SIGTERM only once it runs.
                send_signal(member, signal.SIGCONT)
            await wait_gone(members, grace)
        deadline = time.monotonic() + _PATIENCE
        while members := await asyncio.to_thread(self.members):
            if time.monotonic() > deadline:
                raise TreeNotStopped(self._id, "stopped", members)
            for member in members:
                send_signal(member, signal.SIGKILL)
            await wait_gone(members, _PATIENCE)
