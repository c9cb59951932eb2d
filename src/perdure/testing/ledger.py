"""A ledger of effects: what handlers did, on disk before they go on, for a test to count."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import msgspec


class Ledger:
    """An append-only file with one JSON object a line. Any number of processes may write to it and read it.

    A handler notes what it is about to do; a test then knows what was done how often, whatever happened to the process
    since. It is for tests: each note waits for the disk.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Take the file, which is made by the first note."""
        self.path: Final = Path(path)

    def note(self, **entry: Any) -> None:
        """Append an entry of plain JSON and return once it is on disk."""
        line = msgspec.json.encode(entry) + b"\n"
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # One write, so that lines of several processes never mix and a kill leaves a whole line or none.
            if os.write(file, line) != len(line):
                raise OSError(f"the ledger {self.path} took only a part of an entry; it cannot be trusted any more")
            os.fdatasync(file)
        finally:
            os.close(file)

    def entries(self, **wanted: Any) -> list[dict[str, Any]]:
        """Return all entries, in the order in which they were noted, that have the `wanted` values."""
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        found = [msgspec.json.decode(line) for line in lines]
        return [entry for entry in found if all(entry.get(name) == value for name, value in wanted.items())]
