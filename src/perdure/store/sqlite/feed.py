"""The feed of an environment: its events over all sessions, in the order of the writer's commits."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final, cast

from perdure.records.sessions import LoggedEvent
from perdure.store.feed import MAX_BYTES, Commit, Cursor, Piece, Range, Read, check, empty, page, pieces, start
from perdure.store.port import FEED_END, FeedPage
from perdure.store.sqlite.codec import position, unpack_id
from perdure.store.sqlite.database import Database, one
from perdure.store.sqlite.records import to_event
from perdure.store.sqlite.statements import sql

_RANGE: Final = struct.Struct(">qqq")


def pack_ranges(ranges: Iterable[tuple[int, int, int]]) -> bytes:
    """Return ranges of events, each with the session's number, as they are stored."""
    return b"".join(_RANGE.pack(*each) for each in ranges)


def unpack_ranges(ranges: bytes) -> Iterable[tuple[int, int, int]]:
    """Return stored ranges."""
    return cast("Iterable[tuple[int, int, int]]", _RANGE.iter_unpack(ranges))


def last_number(database: Database) -> int:
    """Return the number of the last commit. The newest of an environment always stays, so that none comes again."""
    found, environment = 0, ""
    while (row := one(database, sql("next_feed"), (environment,))) is not None:
        (environment,) = row
        found = max(found, one(database, sql("newest_commit"), (environment,))[0])
    return found


def feed(database: Database, environment: str, after: str, limit: int) -> FeedPage:
    """Return a page of the feed."""
    feed_id, floor = one(database, sql("feed"), (environment,))
    check(feed_id, (floor, 0), after)
    if after == FEED_END:
        (newest,) = one(database, sql("newest_commit"), (environment,))
        return empty(feed_id, Cursor((max(newest or 0, floor), 0)))
    cursor = start(after) if after else Cursor((floor, 0))
    commits = _commits(database, environment, cursor, max(limit, 0))
    asked = pieces(commits, cursor, limit)
    return page(feed_id, cursor, commits, asked, _events(database, asked))


def _commits(database: Database, environment: str, cursor: Cursor, limit: int) -> list[Commit]:
    values = (environment, cursor.place[0] + cursor.is_whole, limit + 1)
    rows: list[Any] = database.execute(sql("commits"), values).fetchall()
    return [
        Commit((number, 0), [Range(str(sid), first, last) for sid, first, last in unpack_ranges(ranges)])
        for number, ranges in rows
    ]


def _events(database: Database, asked: list[Piece]) -> Read:
    found: list[tuple[int, LoggedEvent]] = []
    size = 0
    for number, piece in enumerate(asked):
        for event in _of_piece(database, piece):
            size += len(event.data)
            if found and size > MAX_BYTES:
                return Read(found, True)
            found.append((number, event))
    return Read(found, False)


def _of_piece(database: Database, piece: Piece) -> Iterator[LoggedEvent]:
    sid = int(piece.session)
    row = one(database, sql("session_id"), (sid,))
    if row is None:
        return
    bounds = (position(sid, piece.first - 1), position(sid, piece.last), piece.last - piece.first + 1)
    for event in database.execute(sql("events"), bounds):
        yield to_event(unpack_id(row[0]), event)
