"""A watch as server-sent events.

Written here rather than taken from a library, because what matters is in the lines themselves: only durable events may
carry `id:` (it is what a client continues from), heartbeats must be comments, and a stream must end between two events
when the server stops. Nothing is buffered: the next item is asked for when the last one is in the socket's hands.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Final, Generic, TypeVar

import msgspec
from starlette.types import Send

from perdure.api.events import CAUGHT_UP, END, LIVE, PAGE, SNAPSHOT
from perdure.engine.service import CaughtUp, EventItem, LiveItem, SnapshotItem, WatchItem
from perdure.server import wire
from perdure.server.request import Call, end_tasks
from perdure.store.port import FeedPage

T = TypeVar("T")

_LOG: Final = logging.getLogger("perdure.server")
_FAIR_SHARE: Final = 64 * 1024
_HEARTBEAT: Final = b": heartbeat\n\n"
_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


def frame(item: WatchItem) -> bytes:
    """Return the lines of one item. JSON escapes all line breaks, so that its data is always one line."""
    if isinstance(item, EventItem):
        event = item.event
        return b"id: %d\nevent: %b\ndata: %b\n\n" % (event.seq, event.type.encode(), wire.event_bytes(event))
    if isinstance(item, LiveItem):
        return _marker(LIVE, _live(item))
    if isinstance(item, SnapshotItem):
        return _marker(SNAPSHOT, wire.snapshot_bytes(item))
    return _marker(CAUGHT_UP if isinstance(item, CaughtUp) else END, b'{"cursor":%d}' % item.cursor)


def page_frame(page: FeedPage) -> bytes:
    """Return the lines of one page of a feed: its cursor is what a client continues from."""
    return b"id: %b\n%b" % (page.cursor.encode(), _marker(PAGE, wire.feed_page_bytes(page)))


def _marker(name: str, data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def _live(item: LiveItem) -> bytes:
    content = item.content
    return msgspec.json.encode(
        {
            "turn_id": content.turn_id if content else None,
            "slot": item.slot,
            "content": msgspec.Raw(content.content_json) if content else None,
        }
    )


class EventStream(Generic[T]):
    """The response of a watch: ends with the watch, with the client or with the server, whichever is first.

    `frame` makes lines of an item.
    """

    def __init__(self, call: Call, first: T, rest: AsyncIterator[T], frame: Callable[[T], bytes]) -> None:
        self._call = call
        self._first = first
        self._rest = rest
        self._frame = frame

    async def send_to(self, send: Send) -> None:
        """Send the stream. A client that is cut off here continues from the last `id` that it got."""
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        items = asyncio.ensure_future(self._send_items(send))
        beat = asyncio.ensure_future(self._beat(send))
        gone = asyncio.ensure_future(self._call.gone())
        try:
            ends = (items, gone, self._call.context.stopping.future())
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            self._log_failure(items)
        finally:
            await end_tasks(items, beat, gone)
            if isinstance(self._rest, AsyncGenerator):
                await self._rest.aclose()
        await send({"type": "http.response.body", "body": b""})

    async def _send_items(self, send: Send) -> None:
        await _send(send, self._frame(self._first))
        unshared = 0
        async for item in self._rest:
            lines = self._frame(item)
            await _send(send, lines)
            unshared += len(lines)
            if unshared >= _FAIR_SHARE:
                unshared = 0
                await asyncio.sleep(0)  # neither a fast reader nor one that is gone may keep the loop to itself

    async def _beat(self, send: Send) -> None:
        while True:
            await asyncio.sleep(self._call.context.heartbeat)
            await _send(send, _HEARTBEAT)

    def _log_failure(self, items: asyncio.Future[None]) -> None:
        error = items.exception() if items.done() and not items.cancelled() else None
        if error is not None:
            _LOG.error("a watch of %s ended early; its client reconnects", self._call.params, exc_info=error)


async def _send(send: Send, lines: bytes) -> None:
    await send({"type": "http.response.body", "body": lines, "more_body": True})
