"""`exit.json` in a run folder: how the guest ended, for a worker that was not there.

Only a process's parent learns how it ended. The fork server, which is that parent, writes it down.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

import msgspec

_NAME: Final = "exit.json"


class ExitNote(msgspec.Struct, frozen=True):
    """How a guest ended; `code` is negative for a signal, as in `subprocess`."""

    run_id: str
    pid: int
    code: int

    def in_words(self) -> str:
        """Return it for people."""
        if self.code >= 0:
            return f"its process exited with code {self.code}"
        try:
            return f"its process was ended by {signal.Signals(-self.code).name}"
        except ValueError:
            return f"its process was ended by signal {-self.code}"


def write_exit(run: Path, note: ExitNote) -> None:
    """Put `exit.json` in place as a whole."""
    draft = run / f".{_NAME}.{os.getpid()}"
    draft.write_bytes(msgspec.json.encode(note))
    draft.replace(run / _NAME)


def read_exit(run: Path, run_id: str) -> ExitNote | None:
    """Return how the guest of this Run ended, if that was written down."""
    try:
        note = msgspec.json.decode((run / _NAME).read_bytes(), type=ExitNote)
    except FileNotFoundError:
        return None
    return note if note.run_id == run_id else None
