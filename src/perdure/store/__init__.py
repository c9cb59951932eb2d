"""Where sessions are kept: the port, and the engines behind it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from perdure.errors import NotSupported
from perdure.records import instants
from perdure.store.port import Store

_SQLITE = "sqlite:///"


def open_store(where: str | Path, *, address: str | None = None, clock: Callable[[], int] = instants.now) -> Store:
    """Return the store at a data folder, or at `sqlite:///FOLDER`. It is not opened yet: await its `open()`.

    `address` tells others where this process can be reached. Raises `NotSupported` for stores of other kinds.
    """
    from perdure.store.sqlite import SqliteStore

    text = str(where)
    if text.startswith(_SQLITE):
        text = text.removeprefix("sqlite://")
    elif "://" in text:
        kind = text.partition("://")[0]
        raise NotSupported(f"A {kind} store is not supported by this version; give a data folder or sqlite:///FOLDER.")
    return SqliteStore(text, address=address, clock=clock)
