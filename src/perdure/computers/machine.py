"""Which machine this is, to Computers: the one whose disk a data folder is on."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from perdure.errors import StoreError
from perdure.records.ids import new_id

FILE: Final = "machine-id"


def machine_id(data: Path) -> str:
    """Return the id that a data folder has, and goes with it to another machine; made when it is first asked for.

    Raises `StoreError` when it cannot be read or made.
    """
    path = data / FILE
    try:
        data.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            _make(path)
        found = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"The machine's id in {path} cannot be had: {error}. Nothing was started.") from error
    if not found:
        raise StoreError(
            f"The machine's id in {path} is empty. Nothing was started; restore the file, since sessions whose "
            "Computers are in this folder are found by it."
        )
    return found


def _make(path: Path) -> None:
    draft = path.with_name(f".{FILE}.{new_id()}")
    with draft.open("x", encoding="ascii") as file:
        file.write(new_id() + "\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        # A link, unlike a rename, leaves what another process has made just before.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
