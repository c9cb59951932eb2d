"""Bringing a store to this version's schema for good, once no older server or worker is left."""

from __future__ import annotations

from pathlib import Path

from perdure.store.tools.places import folder_of, is_postgres


async def migrate(where: str, *, dry_run: bool = False) -> list[str]:
    """Do what is still to be done, and return what that was, or with `dry_run` what it would be.

    Raises `StoreTooNew`, and for a data folder `StoreInUse`.
    """
    return await _postgres(where, dry_run) if is_postgres(where) else _sqlite(folder_of(where), dry_run)


async def _postgres(where: str, dry_run: bool) -> list[str]:
    from perdure.store.postgres import address, schema, upkeep
    from perdure.store.postgres.database import Database

    database = Database(address.parse(where))
    try:
        due = await schema.due(database)
        steps = [f"{step.number:04d} {step.phase}: {step.title}" for step in due]
        if not dry_run:
            await schema.open_schema(database, finish=True)
        elif any(step.phase == "pre" for step in due):
            return steps
        if await upkeep.feed_is_ahead(database):
            steps.append("the feed over all sessions, numbered anew after a restore from a dump")
            if not dry_run:
                await upkeep.renumber_feed(database)
        return steps
    finally:
        await database.close()


def _sqlite(folder: str, dry_run: bool) -> list[str]:
    from perdure.store.sqlite import schema
    from perdure.store.sqlite.folder import DataFolder

    place = DataFolder(Path(folder))
    if dry_run:
        return [f"{number:04d}" for number in schema.due(place.database)]
    place.lock(None)
    try:
        return [f"{number:04d}" for number in schema.bring_up(place.database)]
    finally:
        place.unlock()
