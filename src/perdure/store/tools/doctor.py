"""Looking at what a store stands on: what would lose acknowledged work, what stops it, and how to mend it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from perdure.records import instants
from perdure.store.tools.diagnosis import FULL, diagnose
from perdure.store.tools.findings import Finding, in_order
from perdure.store.tools.places import folder_of, is_postgres

_NETWORKED: Final = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "glusterfs", "ceph")


async def examine(where: str, data: Path | None = None, *, clock: Callable[[], int] = instants.now) -> list[Finding]:
    """Return what is wrong with the store at an address, or worth knowing, the gravest first. Changes nothing.

    `data`: a data folder to look at besides. Raises `StoreError` when a server cannot be asked.
    """
    if is_postgres(where):
        found = await _server(where, clock)
        return in_order([*found, *(_folder(data) if data is not None else [])])
    return in_order(_folder(Path(folder_of(where))))


async def _server(where: str, clock: Callable[[], int]) -> list[Finding]:
    from perdure.store.postgres import address, doctor
    from perdure.store.postgres.database import Database

    parsed = address.parse(where)
    database = Database(parsed)
    try:
        return list(diagnose(await doctor.examine(database, parsed, clock)))
    finally:
        await database.close()


def _folder(folder: Path) -> list[Finding]:
    if not folder.exists():
        return [Finding("note", f"There is no data folder {folder} yet.")]
    found: list[Finding] = []
    disk = os.statvfs(folder)
    free = disk.f_bavail / max(disk.f_blocks, 1)
    if free < FULL:
        found.append(
            Finding(
                "error",
                f"The disk of {folder} is almost full: {free:.1%} is free.",
                "When it is full, nothing more is accepted.",
                "Make room, or set a retention (perdure store retention) and prune.",
            )
        )
    if not os.access(folder, os.W_OK):
        found.append(
            Finding(
                "error", f"{folder} cannot be written by this user.", "Nothing can be accepted.", "Change its owner."
            )
        )
    if (kind := _file_system(folder)) in _NETWORKED:
        found.append(
            Finding(
                "error",
                f"{folder} is on a network file system ({kind}).",
                "Locks and flushes cannot be relied on: acknowledged turns may be lost, the database damaged.",
                "Put the data folder on a disk of this machine, or use PostgreSQL.",
            )
        )
    return found


def _file_system(folder: Path) -> str:
    """Return the kind of file system that a folder is on, as far as the system tells."""
    try:
        lines = Path("/proc/mounts").read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    path, best = str(folder.resolve()), ("", "")
    for line in lines:
        _, mount, kind, *_ = line.split()
        inside = path == mount or path.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best[0]):
            best = (mount, kind)
    return best[1]
