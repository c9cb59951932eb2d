"""Cursors and pages of the feed over all sessions of an environment, whatever the engine.

A commit has a place in the feed, two numbers that only ever grow; what it has written are ranges of events of some
sessions. A cursor stands behind a whole commit, or behind some events of one that is too large for a page.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from perdure.errors import CursorExpired, InvalidCursor
from perdure.records.sessions import LoggedEvent
from perdure.store.port import FEED_END, FeedPage

MAX_BYTES: Final = 4 * 1024 * 1024
_TEXT: Final = re.compile(r"([0-9a-f]{8})-(\d{1,18})-(\d{1,18})(?:-(\d{1,18}))?")
_WHOLE: Final = -1

Place = tuple[int, int]
BEGINNING: Final[Place] = (0, 0)


class Cursor(NamedTuple):
    """Behind the commit at `place`, or behind the first `events` of it."""

    place: Place
    events: int = _WHOLE

    @property
    def skips(self) -> int:
        """How many events are to be left out of the first commit that is read, which is that at `place`."""
        return max(self.events, 0)

    @property
    def is_whole(self) -> bool:
        """Whether the commit at `place` is done with."""
        return self.events == _WHOLE


class Range(NamedTuple):
    """Events of one session from `first` to `last`, in one commit."""

    session: str
    first: int
    last: int


class Commit(NamedTuple):
    """A commit in the feed."""

    place: Place
    ranges: Sequence[Range]


class Piece(NamedTuple):
    """Events to read for a page; `before` tells how many of the commit's come before, `whole` that none come after."""

    place: Place
    session: str
    first: int
    last: int
    before: int
    whole: bool


def read_cursor(after: str) -> tuple[str, Cursor] | None:
    """Return the id of a cursor's feed and where to read on; None for what is no place in any feed."""
    match = _TEXT.fullmatch(after)
    if match is None:
        return None
    return match[1], Cursor((int(match[2]), int(match[3])), _WHOLE if match[4] is None else int(match[4]))


def start(after: str) -> Cursor:
    """Return where to begin to read before it is known whether that can be; see `check`."""
    found = read_cursor(after)
    return Cursor(BEGINNING) if found is None else found[1]


def check(feed_id: str, floor: Place, after: str) -> None:
    """Raise `InvalidCursor` for what is no cursor of this feed, `CursorExpired` below its floor."""
    if after in ("", FEED_END):
        return
    found = read_cursor(after)
    if found is None or found[0] != feed_id:
        raise InvalidCursor(
            f"{after[:80]!r} is no cursor of this feed. Give one that it has returned, nothing to read from the oldest "
            f"event that is kept, or {FEED_END!r} for what comes from now on."
        )
    _, cursor = found
    if cursor.place < floor or (cursor.place == floor and not cursor.is_whole):
        raise CursorExpired(write_cursor(feed_id, Cursor(floor)))


def write_cursor(feed_id: str, cursor: Cursor) -> str:
    """Return a cursor as callers get it."""
    text = f"{feed_id}-{cursor.place[0]}-{cursor.place[1]}"
    return text if cursor.is_whole else f"{text}-{cursor.events}"


def pieces(commits: Sequence[Commit], cursor: Cursor, limit: int) -> list[Piece]:
    """Return what to read of some commits for a page of at most `limit` events."""
    found: list[Piece] = []
    for commit in commits:
        skip = cursor.skips if commit.place == cursor.place else 0
        total = sum(last - first + 1 for _, first, last in commit.ranges)
        before = 0
        for session, first, last in commit.ranges:
            start = first + max(skip - before, 0)
            end = min(last, start + limit - 1)
            if limit > 0 and start <= end:
                passed = before + start - first
                found.append(Piece(commit.place, session, start, end, passed, passed + end - start + 1 == total))
                limit -= end - start + 1
            before += last - first + 1
    return found


class Read(NamedTuple):
    """What was read for a page: events with the numbers of their pieces, `cut` when some were left out for size."""

    events: Sequence[tuple[int, LoggedEvent]]
    cut: bool


def empty(feed_id: str, cursor: Cursor) -> FeedPage:
    """Return a page without events."""
    return FeedPage([], write_cursor(feed_id, cursor), has_more=False)


def page(feed_id: str, cursor: Cursor, commits: Sequence[Commit], asked: Sequence[Piece], read: Read) -> FeedPage:
    """Return a page of what was read. It says that there is more until a look finds nothing."""
    events = [event for _, event in read.events]
    if not asked:
        return empty(feed_id, cursor)
    number, seq = len(asked) - 1, asked[-1].last
    if read.cut:
        number, seq = read.events[-1][0], events[-1].seq
    end = _behind(asked[number], seq)
    return FeedPage(events, write_cursor(feed_id, end), not end.is_whole or end.place != commits[-1].place)


def _behind(piece: Piece, seq: int) -> Cursor:
    if piece.whole and seq == piece.last:
        return Cursor(piece.place)
    return Cursor(piece.place, piece.before + seq - piece.first + 1)
