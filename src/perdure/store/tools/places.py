"""Which engine an address of a store means, for the tools."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

from perdure.errors import NotSupported
from perdure.store.moving import Source, Target

_SQLITE: Final = "sqlite:///"
_POSTGRES: Final = ("postgresql", "postgres")


def is_postgres(where: str) -> bool:
    """Whether an address means PostgreSQL; raises `NotSupported` without its driver, and for other kinds of stores."""
    kind = where.partition("://")[0] if "://" in where else ""
    if kind in _POSTGRES:
        if find_spec("psycopg") is None:
            raise NotSupported("A postgresql store needs its driver: pip install 'perdure[postgres]'.")
        return True
    if kind and not where.startswith(_SQLITE):
        raise NotSupported(f"A {kind} store is not supported; give a data folder, sqlite:///FOLDER or postgresql://…")
    return False


def folder_of(where: str) -> str:
    """Return the data folder that an address of an embedded store means."""
    return where.removeprefix("sqlite://") if where.startswith(_SQLITE) else where


def open_source(where: str, *, alone: bool = True) -> Source:
    """Return a store to read from, not opened yet. With `alone`, nobody else may use it."""
    if is_postgres(where):
        from perdure.store.postgres.moving import PostgresSource

        return PostgresSource(where, alone=alone)
    from perdure.store.sqlite.moving import SqliteSource

    return SqliteSource(folder_of(where), alone=alone)


def open_target(where: str) -> Target:
    """Return a store to write to, not opened yet."""
    if is_postgres(where):
        from perdure.store.postgres.moving import PostgresTarget

        return PostgresTarget(where)
    from perdure.store.sqlite.moving import SqliteTarget

    return SqliteTarget(folder_of(where))
