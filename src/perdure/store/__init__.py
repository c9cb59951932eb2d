"""Where sessions are kept: the port, and the engines behind it."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from perdure.errors import NotSupported
from perdure.records import instants
from perdure.store.port import Store

_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql", "postgres")


def open_store(where: str | Path, *, address: str | None = None, clock: Callable[[], int] | None = None) -> Store:
    """Return the store at a data folder, `sqlite:///FOLDER` or `postgresql://…`, not opened yet: await its `open()`.

    `address` tells others where this process can be reached. `clock` replaces the clock that rules go by, which is the
    machine's in a data folder and the database's on PostgreSQL. Raises `NotSupported` for stores of other kinds, and
    for PostgreSQL when its driver is not installed.
    """
    text = str(where)
    kind = text.partition("://")[0] if "://" in text else ""
    if kind in _POSTGRES:
        return _postgres(text, clock)
    if text.startswith(_SQLITE):
        text = text.removeprefix("sqlite://")
    elif kind:
        raise NotSupported(
            f"A {kind} store is not supported by this version; give a data folder, sqlite:///FOLDER or postgresql://…"
        )
    from perdure.store.sqlite import SqliteStore

    return SqliteStore(text, address=address, clock=clock or instants.now)


def _postgres(url: str, clock: Callable[[], int] | None) -> Store:
    if find_spec("psycopg") is None:
        raise NotSupported("A postgresql store needs its driver: pip install 'perdure[postgres]'.")
    from perdure.store.postgres import PostgresStore

    return PostgresStore(url, clock=clock)
