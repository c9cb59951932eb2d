"""The schema's version and the numbered migrations that lead to it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from perdure.errors import StoreCorrupt, StoreError, StoreTooNew
from perdure.store.sqlite.database import Database, one, open_reader, open_writer
from perdure.store.sqlite.statements import sql

FOLDER: Final = Path(__file__).parent / "migrations"
_NUMBERED: Final = re.compile(r"(\d{4})_\w+\.sql")


def migrations() -> list[tuple[int, str]]:
    """Return `(version, SQL)` of all migrations, in order."""
    found = sorted((int(match[1]), file) for file in FOLDER.iterdir() if (match := _NUMBERED.fullmatch(file.name)))
    if [number for number, _ in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"the migrations in {FOLDER} are not numbered 1, 2, 3 …")
    return [(number, file.read_text()) for number, file in found]


def newest() -> int:
    """Return the version that this code writes."""
    return migrations()[-1][0]


def version_of(database: Database) -> int:
    """Return the schema version of a database, 0 for an empty one. Raises `StoreError` for a database of others."""
    names = {name for (name,) in database.execute(sql("tables")).fetchall()}
    if not names:
        return 0
    if "schema_version" not in names:
        raise StoreError("The file is a SQLite database, but not one of Perdure's. It was left unchanged.")
    (version,) = one(database, sql("schema_version"))
    return int(version)


def check_version(file: Path) -> None:
    """Raise `StoreTooNew` for a database of a newer schema, without changing a byte of it.

    Raises `StoreCorrupt` when the file is gone while its log is there: SQLite would start an empty one in its place.
    """
    if not file.exists():
        if file.with_name(f"{file.name}-wal").exists():
            raise StoreCorrupt(f"{file} is missing, but its log is there. Nothing was changed; put the file back.")
        return
    database = open_reader(file)
    try:
        version = version_of(database)
    finally:
        database.close()
    if version > newest():
        raise StoreTooNew(
            f"{file} was written by a newer Perdure (schema {version}; this one knows {newest()}). It was left "
            "unchanged. Install that version again, or open a copy from before it."
        )


def check_is_newest(database: Database, file: Path) -> None:
    """Raise `StoreError` for a database whose schema is not this version's, for those who only read it."""
    if (version := version_of(database)) != newest():
        raise StoreError(
            f"{file} has schema {version}; this version reads {newest()}. It was left unchanged. Migrate it first: "
            f"perdure store migrate {file.parent}"
        )


def due(file: Path) -> list[int]:
    """Return the versions that a database has yet to be brought to. Raises `StoreTooNew` for a newer one."""
    check_version(file)
    if not file.exists():
        return [number for number, _ in migrations()]
    database = open_reader(file)
    try:
        version = version_of(database)
    finally:
        database.close()
    return [number for number, _ in migrations() if number > version]


def bring_up(file: Path) -> list[int]:
    """Bring a database to the newest version and return by which steps."""
    steps = due(file)
    database = open_writer(file)
    try:
        migrate(database)
    finally:
        database.close()
    return steps


def migrate(database: Database, steps: list[tuple[int, str]] | None = None) -> None:
    """Bring a database to the newest version: each step in a transaction of its own, or not at all."""
    for version, script in steps or migrations():
        if version_of(database) < version:
            _step(database, version, script)


def _step(database: Database, version: int, script: str) -> None:
    try:
        database.execute(f"BEGIN IMMEDIATE;\n{script}").fetchall()
        database.execute(sql("set_schema_version"), (version,))
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise
