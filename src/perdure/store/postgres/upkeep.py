"""What a store needs after it was restored from a dump: a feed whose marks are below this server's transactions."""

from __future__ import annotations

from typing import Final

from perdure.store.postgres.database import Connection, Database, Statement, all_rows, roll_back, trip
from perdure.store.postgres.statements import sql

_BEGIN: Final[Statement] = (sql("begin"), ())
_COMMIT: Final[Statement] = (sql("commit"), ())
_STEPS: Final = (
    "lock_all",
    "patient",
    "drop_below_floors",
    "forget_floors",
    "renumber_commits",
    "forget_marks",
    "renew_feed",
)


async def feed_is_ahead(database: Database) -> bool:
    """Whether commits in the feed have marks that this server's transactions have yet to reach."""
    return bool((await database.run(lambda connection: all_rows(connection, sql("feed_is_ahead"))))[0][0])


async def renumber_feed(database: Database) -> None:
    """Put what is in the feed before all that will be committed. Cursors from before are refused from now on."""
    await database.run(_renumber)


async def _renumber(connection: Connection) -> None:
    try:
        await trip(connection, [_BEGIN, *((sql(name), ()) for name in _STEPS), _COMMIT])
    except BaseException:
        await roll_back(connection)
        raise
