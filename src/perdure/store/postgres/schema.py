"""The schema's version and the numbered migrations that lead to it.

A `pre` migration adds, and is done when the first server of a new version opens the store: older servers go on beside
it. A `post` migration removes what only older versions need, and is done once none of them runs. So a store is too new
for a server that does not know one of its `post` migrations.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from perdure.errors import StoreError, StoreTooNew
from perdure.store.postgres.database import Connection, Database, all_rows, roll_back
from perdure.store.postgres.statements import sql

FOLDER: Final = Path(__file__).parent / "migrations"
SCHEMA: Final = Path(__file__).parent / "schema.sql"
_NUMBERED: Final = re.compile(r"(\d{4})_(pre|post)_(\w+)\.sql")


class Migration(NamedTuple):
    """One step; those of a number are done `pre` before `post`."""

    number: int
    phase: str
    script: str
    title: str = ""

    @property
    def key(self) -> tuple[int, str]:
        return self.number, self.phase


def migrations() -> list[Migration]:
    """Return all migrations in the order in which they are done."""
    found = [
        Migration(int(match[1]), match[2], file.read_text(), match[3].replace("_", " "))
        for file in FOLDER.iterdir()
        if (match := _NUMBERED.fullmatch(file.name))
    ]
    found.sort(key=lambda step: (step.number, step.phase == "post"))
    if sorted({step.number for step in found}) != list(range(1, found[-1].number + 1)):
        raise ValueError(f"the migrations in {FOLDER} are not numbered 1, 2, 3 …")
    if len({step.key for step in found}) != len(found):
        raise ValueError(f"two migrations in {FOLDER} have one number and phase")
    return found


async def open_schema(database: Database, steps: list[Migration] | None = None, *, finish: bool = False) -> None:
    """Bring a database to this version's schema: all of it in an empty one, else what is due before older servers go.

    With `finish`, the `post` migrations too. Raises `StoreTooNew` and leaves a newer store unchanged.
    """
    steps = migrations() if steps is None else steps
    done = await database.run(applied)
    _check_known(done, steps)
    everything = finish or not done
    for step in steps:
        if step.key not in done and (everything or step.phase == "pre"):
            await database.run(lambda connection, step=step: _do(connection, step))  # type: ignore[misc]


async def due(database: Database) -> list[Migration]:
    """Return the migrations that are still to be done, to the last. Raises `StoreTooNew` for a newer store."""
    done = await database.run(applied)
    _check_known(done, migrations())
    return [step for step in migrations() if step.key not in done]


def _check_known(done: set[tuple[int, str]], steps: list[Migration]) -> None:
    known = {step.key for step in steps}
    unknown = sorted(number for number, phase in done - known if phase == "post")
    if unknown:
        newest = max(step.number for step in steps)
        raise StoreTooNew(
            f"The PostgreSQL store was migrated by a newer Perdure (to schema {unknown[-1]}; this one knows {newest}). "
            "It was left unchanged. Install that version."
        )


async def applied(connection: Connection) -> set[tuple[int, str]]:
    """Return number and phase of the migrations that were done. Raises `StoreError` for a schema of others."""
    ((has_migrations, has_schema),) = await all_rows(connection, sql("has_schema"))
    if has_migrations:
        return {(number, phase) for number, phase in await all_rows(connection, sql("applied"))}
    if has_schema:
        raise StoreError("The database has a schema named perdure that is not Perdure's. It was left unchanged.")
    return set()


async def _do(connection: Connection, step: Migration) -> None:
    try:
        await connection.execute(sql("begin"))
        await connection.execute(sql("lock_schema"))
        if step.key not in await applied(connection):
            await connection.execute(step.script.encode())
            await connection.execute(sql("insert_migration"), step.key)
        await connection.execute(sql("commit"))
    except BaseException:
        await roll_back(connection)
        raise
