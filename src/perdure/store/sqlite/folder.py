"""The data folder and its lock: one process at a time, and whoever comes second learns who has it."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from pathlib import Path
from typing import Final

from perdure.errors import StoreInUse, StoreReadOnly
from perdure.records.instants import format_instant, now

DATABASE: Final = "perdure.db"
LOCK: Final = "lock"


class DataFolder:
    """A data folder that this process has locked while it is open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    @property
    def database(self) -> Path:
        """Where the database is."""
        return self.path / DATABASE

    def lock(self, address: str | None) -> None:
        """Take the lock and write down who has it; raises `StoreInUse` and `StoreReadOnly`."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreReadOnly(
                f"The data folder {self.path} cannot be written ({error.strerror}). Nothing was changed; choose "
                "another folder or make it writable for this user."
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = _read(descriptor)
            os.close(descriptor)
            raise StoreInUse(
                f"The data folder {self.path} is in use by {_described(owner)}. Nothing was changed; use that server, "
                "stop it, or choose another folder."
            ) from None
        self._descriptor = descriptor
        self.tell_address(address)

    def tell_address(self, address: str | None) -> None:
        """Write down where the owner can be reached."""
        assert self._descriptor is not None
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": format_instant(now()), "address": address}
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(owner).encode(), 0)

    def unlock(self) -> None:
        """Let go of the lock. The file stays: removing it would let two processes lock two files of one name."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


def _read(descriptor: int) -> dict[str, object]:
    try:
        owner = json.loads(os.pread(descriptor, 4096, 0) or b"{}")
    except ValueError:
        return {}
    return owner if isinstance(owner, dict) else {}


def _described(owner: dict[str, object]) -> str:
    if "pid" not in owner:
        return "another process"
    where = f", serving {owner['address']}" if owner.get("address") else ""
    return f"process {owner['pid']} on {owner.get('host')} since {owner.get('since')}{where}"
