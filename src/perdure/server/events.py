"""Operations on a session's log: pages, and the watch."""

from __future__ import annotations

import re
from typing import Final

from perdure.api import events
from perdure.engine.service import WatchItem
from perdure.errors import CursorExpired, EnvironmentNotFound, InvalidCursor
from perdure.server import wire
from perdure.server.operations import IN_SESSION, Operation, Stream
from perdure.server.queries import EventsQuery, FeedQuery, FollowQuery, WatchQuery
from perdure.server.replies import Reply
from perdure.server.request import Call
from perdure.server.sse import EventStream, frame, page_frame
from perdure.store.port import FeedPage

_SEQUENCE: Final = re.compile(rb"[0-9]{1,18}")
_STREAM: Final = Stream(
    {
        "": events.Event,
        events.SNAPSHOT: events.SnapshotData,
        events.LIVE: events.LiveData,
        events.CAUGHT_UP: events.CursorData,
        events.END: events.CursorData,
    },
    "A snapshot (only without a cursor) or the durable events after the cursor, the newest live slots, `caught_up`, "
    "then what is new, and `end` when the session is closed or cancelled and all was sent. Only durable events carry "
    "`id`. A reader that falls too far behind gets a new snapshot. Continue with `Last-Event-ID`.",
)

_PRINTABLE: Final = re.compile(rb"[!-~]{1,512}")
_FEED: Final = Stream(
    {events.PAGE: events.FeedPage},
    "Pages of events, the first at once, even if it is empty. The `id` of each is its cursor, from which a client goes "
    "on with `Last-Event-ID`.",
    "^[!-~]{1,512}$",
)


async def page(call: Call) -> Reply:
    """Return a page of events."""
    query: EventsQuery = call.query
    found = await call.service.events(call.scope, call.id("session_id"), after=query.after, limit=query.limit)
    return Reply(wire.event_page_bytes(found))


async def watch(call: Call) -> EventStream[WatchItem]:
    """Follow the session."""
    query: WatchQuery = call.query
    after = query.after if (last := call.header(b"last-event-id")) in (None, b"") else _sequence(last)
    items = call.service.watch(call.scope, call.id("session_id"), after)
    first = await anext(items)  # what is wrong with the request shows here, while a status can still be sent
    return EventStream(call, first, items, frame)


async def feed(call: Call) -> Reply:
    """Return a page of the environment's events."""
    query: FeedQuery = call.query
    return Reply(wire.feed_page_bytes(await call.service.feed(call.scope, after=query.after, limit=query.limit)))


async def follow(call: Call) -> EventStream[FeedPage]:
    """Follow the environment's events."""
    query: FollowQuery = call.query
    after = query.after if (last := call.header(b"last-event-id")) in (None, b"") else _cursor(last)
    pages = call.service.follow(call.scope, after)
    return EventStream(call, await anext(pages), pages, page_frame)


def _cursor(text: bytes | None) -> str:
    if text is None or not _PRINTABLE.fullmatch(text):
        raise InvalidCursor("Last-Event-ID must be the id of a page that was sent. Follow without it to start anew.")
    return text.decode()


def _sequence(text: bytes | None) -> int:
    if text is None or not _SEQUENCE.fullmatch(text):
        raise InvalidCursor("Last-Event-ID must be the id of an event that was sent. Watch without it to start anew.")
    return int(text)


OPERATIONS: Final = (
    Operation(
        id="list_environment_events",
        method="GET",
        path="/v1/events",
        tag="events",
        summary="Return a page of the events of all sessions, in the order of their commits",
        handler=feed,
        query=FeedQuery,
        answers={200: events.FeedPage},
        errors=(EnvironmentNotFound, InvalidCursor, CursorExpired),
    ),
    Operation(
        id="follow_environment_events",
        method="GET",
        path="/v1/events/watch",
        tag="events",
        summary="Follow the events of all sessions as server-sent events",
        handler=follow,
        query=FollowQuery,
        answers={200: _FEED},
        errors=(EnvironmentNotFound, InvalidCursor, CursorExpired),
    ),
    Operation(
        id="list_events",
        method="GET",
        path="/v1/sessions/{session_id}/events",
        tag="events",
        summary="Return a page of the session's log",
        handler=page,
        query=EventsQuery,
        answers={200: events.EventPage},
        errors=(*IN_SESSION, InvalidCursor, CursorExpired),
    ),
    Operation(
        id="watch",
        method="GET",
        path="/v1/sessions/{session_id}/watch",
        tag="events",
        summary="Follow the session as server-sent events",
        handler=watch,
        query=WatchQuery,
        answers={200: _STREAM},
        errors=(*IN_SESSION, InvalidCursor, CursorExpired),
    ),
)
