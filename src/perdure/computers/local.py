"""The backend `local`: a folder, limits and a process tree on this host, without isolation."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from perdure.computers.base import (
    Capabilities,
    Computer,
    ComputerBackend,
    ComputerSpec,
    ExecResult,
    Launcher,
    Placement,
    Residency,
)
from perdure.computers.cgroups import PREFIX, CpuGroup
from perdure.computers.environment import clean_environment, place_variables
from perdure.computers.exec import run_program
from perdure.computers.files import LocalFiles
from perdure.computers.identity import ProcessIdentity, is_alive, read_stat
from perdure.computers.limits import shell_prefix
from perdure.computers.memory import Released, page_out
from perdure.computers.meta import read_meta, remove_meta
from perdure.computers.selftest import HostAbilities, host_abilities
from perdure.computers.tree import ProcessTree
from perdure.errors import NotSupported

_log: Final = logging.getLogger("perdure.computers")
_REMOVALS: Final = 20
_PLACED_AFTER: Final = 0.02

ISOLATION: Final = "none: its processes run as the server's user and see its files and network; only limits hold them"
KEEPS: Final = "its disk, and its memory and processes (stopped) for as long as this machine runs"
NO_SWAP: Final = "; this host has no swap, so a hibernated Computer still takes its memory"


class LocalComputer(Computer):
    """A Computer that is a folder of this host with a `workspace` and a `run` folder in it."""

    def __init__(self, computer_id: str, folder: Path, spec: ComputerSpec, host: HostAbilities) -> None:
        """Take what `LocalBackend.open` has made and found; use that to get one."""
        self.id = computer_id
        self._folder, self._host = folder, host
        self.spec = spec
        self._group = host.groups.find(_group_name(computer_id)) if host.groups else None
        self._tree = ProcessTree(computer_id, lambda: self._group.pids() if self._group else [])
        self._files = LocalFiles(self.workspace)
        self._placing: asyncio.Task[None] | None = None
        meta = read_meta(self.run)
        self._guest = meta.process if meta else None
        if self._guest is not None:
            self._tree.add_root(self._guest)

    @property
    def workspace(self) -> Path:
        """See `Computer.workspace`."""
        return self._folder / "workspace"

    @property
    def run(self) -> Path:
        """See `Computer.run`."""
        return self._folder / "run"

    @property
    def files(self) -> LocalFiles:
        """See `Computer.files`."""
        return self._files

    @property
    def guest(self) -> ProcessIdentity | None:
        """See `Computer.guest`."""
        return self._guest if self._guest is not None and is_alive(self._guest) else None

    @property
    def residency(self) -> Residency:
        """See `Computer.residency`."""
        guest = self.guest
        if guest is None:
            return "cold"
        # The guest is the first to be stopped and the last to be continued, so it speaks for all.
        stat = read_stat(guest.pid)
        return "hibernated" if stat is not None and stat.is_stopped else "running"

    async def start(self, launcher: Launcher) -> ProcessIdentity:
        """See `Computer.start`."""
        guest = await launcher(self._placement())
        self._guest = guest
        self._tree.add_root(guest)
        self._placing = asyncio.create_task(self._place(guest.pid))
        return guest

    async def _place(self, pid: int) -> None:
        # Joining a group takes the kernel some 8 ms, three times what all the rest of a start does: so after it.
        await asyncio.sleep(_PLACED_AFTER)
        await self._share_cores(pid)

    def _placement(self) -> Placement:
        limits = self.spec.limits
        return Placement(
            computer_id=self.id,
            workspace=self.workspace,
            run=self.run,
            rlimits=limits.rlimits(),
            cores=self._cores(),
            environment=place_variables(self.id, self.workspace, self.spec.environment),
        )

    def _cores(self) -> frozenset[int] | None:
        return frozenset(self.spec.limits.cores(self.id)) if self._host.cpu == "affinity" else None

    async def _share_cores(self, pid: int) -> None:
        """Hold a started process to the Computer's share of the cores, by quota where this host has quotas."""
        cpu = self.spec.limits.cpu
        if cpu is None:
            return
        try:
            await asyncio.to_thread(self._hold, pid, cpu)
        except OSError as refused:
            _log.warning("Computer %s runs without its limit of %s cores: %s", self.id, cpu, refused)

    def _hold(self, pid: int, cpu: float) -> None:
        if self._host.groups is not None:
            self._group = self._host.groups.make(_group_name(self.id), cpu)
            _join_with_children(self._group, pid)
        elif cores := self._cores():
            with suppress(ProcessLookupError):
                os.sched_setaffinity(pid, cores)

    async def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str = ".",
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout: float = 300.0,
        output_limit: int = 4 << 20,
    ) -> ExecResult:
        """See `Computer.exec`."""
        if self.residency == "hibernated":
            raise NotSupported(f"Computer {self.id} is hibernated and runs nothing. Resume it first.")
        named = {**self.spec.environment, **(environment or {})}
        return await run_program(
            [*shell_prefix(self.spec.limits), *argv],
            cwd=await asyncio.to_thread(self._files.folder, cwd),
            environment=clean_environment(named) | place_variables(self.id, self.workspace, named),
            stdin=stdin,
            timeout=timeout,
            output_limit=output_limit,
            started=self._share_cores,
        )

    async def hibernate(self) -> Released:
        """See `Computer.hibernate`."""
        await self._placed()
        members = await self._tree.freeze()
        return await asyncio.to_thread(page_out, members)

    async def resume(self) -> None:
        """See `Computer.resume`."""
        await self._tree.thaw()

    async def stop(self, grace: float = 5.0) -> None:
        """See `Computer.stop`."""
        await self._placed()
        await self._tree.end(grace)
        remove_meta(self.run)
        self._guest = None
        if self._group is not None:
            await _remove(self._group)
            self._group = None

    async def _placed(self) -> None:
        if self._placing is not None:
            # Whoever waits here may be cancelled, and others wait too.
            await asyncio.shield(self._placing)

    async def save(self) -> str:
        """See `Computer.save`."""
        raise NotSupported(_NO_SAVES)

    async def restore(self, save_id: str) -> None:
        """See `Computer.restore`."""
        raise NotSupported(f"There is no save {save_id!r}. {_NO_SAVES}")


_NO_SAVES: Final = (
    "The backend `local` keeps no versions of a disk: its workspace folder is the disk, live. Nothing was changed; "
    "copy the folder, or use a backend that saves."
)


class LocalBackend(ComputerBackend):
    """Computers as folders below one folder of this host. Needs Linux (`/proc` and pidfds), no rights and no tools."""

    name = "local"

    def __init__(self, root: Path) -> None:
        """Take the folder in which each Computer gets a folder. Raises `NotSupported` on other systems."""
        if sys.platform != "linux":
            raise NotSupported("Computers need Linux, to tell processes apart and to wait for them. Use inline agents.")
        self._root = root.resolve()
        self._open: WeakValueDictionary[str, LocalComputer] = WeakValueDictionary()
        self._host: HostAbilities | None = None

    async def capabilities(self) -> Capabilities:
        """See `ComputerBackend.capabilities`."""
        host = await asyncio.to_thread(host_abilities)
        return Capabilities(
            backend=self.name,
            isolation=ISOLATION,
            keeps=KEEPS if host.swap else KEEPS + NO_SWAP,
            limits=_limits_in_words(host),
            saves=False,
        )

    async def open(self, computer_id: str, spec: ComputerSpec) -> LocalComputer:
        """See `ComputerBackend.open`. All holders of an id hold one object; the newest `spec` counts."""
        if self._host is None:
            self._host = await asyncio.to_thread(host_abilities)
        known = self._open.get(computer_id)
        if known is not None:
            known.spec = spec
            return known
        folder = self._root / computer_id
        for part in ("workspace", "run"):
            (folder / part).mkdir(mode=0o700, parents=True, exist_ok=True)
        computer = self._open[computer_id] = LocalComputer(computer_id, folder, spec, self._host)
        return computer

    async def delete(self, computer_id: str) -> None:
        """See `ComputerBackend.delete`."""
        if not (self._root / computer_id).exists():
            return
        computer = await self.open(computer_id, ComputerSpec())
        await computer.stop()
        await asyncio.to_thread(shutil.rmtree, self._root / computer_id)
        self._open.pop(computer_id, None)


def _limits_in_words(host: HostAbilities) -> dict[str, str]:
    cpu = {
        "quota": "enforced for the Computer as a whole (cgroup quota)",
        "affinity": "rounded up to whole cores (CPU affinity); this host lets us set no quota",
        "none": "not enforced on this host",
    }
    held = {True: "enforced for each process", False: "not enforced on this host"}
    return {
        "cpu": cpu[host.cpu],
        "memory": held[host.memory],
        "open_files": held[host.open_files],
        "file_size": "enforced for each file" if host.file_size else held[False],
        "disk": "not enforced: the workspace is a folder among others on its disk",
    }


def _group_name(computer_id: str) -> str:
    return f"{PREFIX}{computer_id}"


def _join_with_children(group: CpuGroup, guest: int) -> None:
    """Move the guest, and what it may have started before it was in, into the group."""
    inside: set[int] = set()
    pending = {guest}
    while pending:
        for pid in pending:
            group.add(pid)
        inside |= pending
        pending = {child for pid in inside for child in _children(pid)} - inside


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


async def _remove(group: CpuGroup) -> None:
    # The kernel counts a process in its group until its parent has reaped it, and tells nobody when that happens.
    for _ in range(_REMOVALS):
        if group.remove():
            return
        await asyncio.sleep(0.01)
    _log.warning("The control group %s could not be removed; it is empty and harmless.", group.path)
