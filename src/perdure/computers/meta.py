"""`meta.json` in a Computer's run folder: which process is its guest, and which Run it serves.

The guest's side writes it, in one step, before the guest can be of any use; a worker that was restarted reads it to
find the guest again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from perdure.computers.identity import ProcessIdentity

_NAME: Final = "meta.json"


class GuestMeta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The guest of a Computer: its process, the Run that it was started for and the worker's epoch at that time."""

    process: ProcessIdentity
    run_id: str
    epoch: int


def write_meta(run: Path, meta: GuestMeta) -> None:
    """Put `meta.json` in place as a whole. Not flushed to disk: it means nothing after a restart of the machine."""
    draft = f"{run}/.{_NAME}.{os.getpid()}"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    os.write(fd, msgspec.json.encode(meta))
    os.close(fd)
    os.rename(draft, f"{run}/{_NAME}")


def read_meta(run: Path) -> GuestMeta | None:
    """Return what `meta.json` says, or None when there is no guest: none was started, or the power failed since.

    The file is replaced as a whole and not flushed, so that only the end of the machine, and with it of the guest, can
    have left it broken.
    """
    try:
        raw = (run / _NAME).read_bytes()
        return msgspec.json.decode(raw, type=GuestMeta)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def remove_meta(run: Path) -> None:
    """Forget the guest; call it only when its process is known to be gone."""
    (run / _NAME).unlink(missing_ok=True)
