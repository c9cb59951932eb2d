"""The feed of an environment: its events over all sessions, in the order of their commits.

A transaction that began early may commit late, and its events must not come up behind a reader. So a reader goes as far
as the oldest transaction that is still open, and no further: see the migration that made `commits` for how marks order
them.
"""

from __future__ import annotations

from typing import Final

from perdure.store.feed import MAX_BYTES, Commit, Cursor, Piece, Range, Read, check, empty, page, pieces, start
from perdure.store.port import FEED_END, FeedPage
from perdure.store.postgres.arrays import arrays
from perdure.store.postgres.database import Connection, Row, Statement, roll_back, trip
from perdure.store.postgres.records import to_event
from perdure.store.postgres.statements import sql

_BEGIN: Final[Statement] = (sql("begin_reading"), ())
_COMMIT: Final[Statement] = (sql("commit"), ())


async def feed(connection: Connection, environment: str, after: str, limit: int) -> FeedPage:
    """Return a page of the feed, read at one instant, so that retention takes nothing out of the middle of it."""
    try:
        return await _feed(connection, environment, after, limit)
    except BaseException:
        await roll_back(connection)
        raise


async def _feed(connection: Connection, environment: str, after: str, limit: int) -> FeedPage:
    read = await trip(connection, [_BEGIN, (sql("feed"), (environment,))])
    feed_id, mark, xid = read[1][0]
    floor = Cursor((mark, xid))
    check(feed_id, floor.place, after)
    if after == FEED_END:
        newest = (await trip(connection, [(sql("newest_commit"), (environment,)), _COMMIT]))[0]
        return empty(feed_id, Cursor(max([floor.place, *((mark, xid) for mark, xid in newest)])))
    cursor = start(after) if after else floor
    mark, xid = cursor.place
    values = (environment, mark, xid + cursor.is_whole, max(limit, 0) + 1)
    found = [_commit(row) for row in (await trip(connection, [(sql("commits"), values)]))[0]]
    asked = pieces(found, cursor, limit)
    return page(feed_id, cursor, found, asked, await _events(connection, asked))


def _commit(row: Row) -> Commit:
    mark, xid, *columns = row
    return Commit((mark, xid), [Range(*each) for each in zip(*columns, strict=True)])


async def _events(connection: Connection, asked: list[Piece]) -> Read:
    wanted = [(number, piece.session, piece.first, piece.last) for number, piece in enumerate(asked)]
    columns = arrays(("int4", "uuid", "int8", "int8"), wanted) if wanted else []
    reads = [(sql("feed_events"), (*columns, MAX_BYTES))] if wanted else []
    rows = (await trip(connection, [*reads, _COMMIT]))[0]
    events = [(number, to_event(session, tuple(event))) for number, session, *event, _ in rows]
    return Read(events, bool(rows) and len(rows) < rows[0][-1])
