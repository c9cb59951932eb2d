from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import msgspec
import pytest
import server_fakes as fake

from perdure.client.sse import ServerSentEvent, SseParser
from perdure.engine.service import CaughtUp, EventItem, LiveItem, WatchEnd, WatchItem
from perdure.errors import CursorExpired, InvalidCursor, SessionNotFound
from perdure.store.port import FeedPage, LiveSlot

WATCH = f"/v1/sessions/{fake.SESSION}/watch"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Script:
    """A watch that yields given items and then waits for more; tells how it was asked and when it was let go."""

    def __init__(self, *items: WatchItem | Exception) -> None:
        self.items: asyncio.Queue[WatchItem | Exception] = asyncio.Queue()
        for item in items:
            self.items.put_nowait(item)
        self.asked: list[int | None] = []
        self.closed = asyncio.Event()

    def watch(self, _: Any, __: str, after: int | None) -> AsyncIterator[WatchItem]:
        self.asked.append(after)
        return self._items()

    async def _items(self) -> AsyncIterator[WatchItem]:
        try:
            while True:
                item = await self.items.get()
                if isinstance(item, Exception):
                    raise item
                yield item
                if isinstance(item, WatchEnd):
                    return
        finally:
            self.closed.set()


class Reader:
    """Reads a stream event by event."""

    def __init__(self, reply: httpx2.Response) -> None:
        self._chunks = reply.aiter_raw()
        self._parser = SseParser()
        self._ready: list[ServerSentEvent] = []
        self.raw = b""

    async def next(self) -> ServerSentEvent:
        while not self._ready:
            chunk = await anext(self._chunks)
            self.raw += chunk
            self._ready = list(self._parser.feed(chunk))
        return self._ready.pop(0)

    async def rest(self) -> list[ServerSentEvent]:
        found = self._ready
        async for chunk in self._chunks:
            self.raw += chunk
            found += self._parser.feed(chunk)
        return found


def app_of(script: Script, **settings: Any) -> Any:
    return fake.app_of(fake.FakeService(watch=script.watch), **settings)


async def test_a_stream_is_the_watch_line_by_line() -> None:
    text = '{"content":[{"type":"text","text":"a\\nb\u2028c\\r😀 id: 9"}]}'.encode()
    live = LiveItem("draft", LiveSlot(fake.TURN, fake.CONTENT, fake.NOW))
    script = Script(fake.snapshot_item(), EventItem(fake.event(13, data=text)), live, CaughtUp(13), WatchEnd(13))
    async with fake.running(app_of(script)) as server, httpx2.AsyncClient(base_url=server.url) as client:
        async with client.stream("GET", WATCH) as reply:
            assert reply.status_code == 200
            assert reply.headers["content-type"].startswith("text/event-stream")
            assert reply.headers["cache-control"] == "no-store"
            assert "x-request-id" in reply.headers
            events = await Reader(reply).rest()
        assert [(each.type, each.id) for each in events] == [
            ("snapshot", ""),
            ("turn.output", "13"),
            ("live", "13"),
            ("caught_up", "13"),
            ("end", "13"),
        ]
        sent = msgspec.json.decode(events[1].data)
        assert sent["data"] == msgspec.json.decode(text)
        assert (sent["seq"], sent["turn_id"], sent["run_id"]) == (13, fake.TURN, fake.RUN)
        assert script.closed.is_set()


@pytest.mark.parametrize(
    ("query", "headers", "after"),
    [
        ("", {}, None),
        ("?after=0", {}, 0),
        ("?after=7", {}, 7),
        ("?after=7", {"last-event-id": "9"}, 9),
        ("", {"last-event-id": "0"}, 0),
        ("?after=7", {"last-event-id": ""}, 7),
    ],
)
async def test_the_header_wins_over_the_parameter(query: str, headers: dict[str, str], after: int | None) -> None:
    script = Script(CaughtUp(9), WatchEnd(9))
    async with fake.client_of(app_of(script)) as client:
        assert (await client.get(WATCH + query, headers=headers)).status_code == 200
    assert script.asked == [after]


@pytest.mark.parametrize("last", ["x", "-1", "1.0", "1 2", "9" * 19])
async def test_an_id_that_was_never_sent_is_refused(last: str) -> None:
    script = Script()
    async with fake.client_of(app_of(script)) as client:
        reply = await client.get(WATCH, headers={"last-event-id": last})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_cursor")
    assert script.asked == []


@pytest.mark.parametrize("error", [SessionNotFound(fake.SESSION), InvalidCursor("beyond"), CursorExpired(5)])
async def test_what_is_wrong_from_the_start_is_a_status(error: Any) -> None:
    async with fake.client_of(app_of(Script(error))) as client:
        reply = await client.get(WATCH + "?after=3")
    assert (reply.status_code, reply.json()["error"]["code"]) == (error.status, error.code)


async def feed_pages(scope: Any, after: str) -> AsyncIterator[FeedPage]:
    if after == "bad":
        raise InvalidCursor("That is no cursor.")
    yield FeedPage([], "c0", has_more=False)
    yield FeedPage([fake.event(1), fake.event(2)], "c1", has_more=False)


async def test_a_feed_is_pages_whose_ids_are_their_cursors() -> None:
    app = fake.app_of(fake.FakeService(follow=feed_pages))
    async with fake.running(app) as server, httpx2.AsyncClient(base_url=server.url) as client:
        async with client.stream("GET", "/v1/events/watch") as reply:
            assert reply.headers["content-type"].startswith("text/event-stream")
            events = await Reader(reply).rest()
        assert [(each.type, each.id) for each in events] == [("page", "c0"), ("page", "c1")]
        assert [event["seq"] for event in msgspec.json.decode(events[1].data)["events"]] == [1, 2]
        for after, code in (("bad", "invalid_cursor"), ("no good", "invalid_cursor")):
            reply = await client.get("/v1/events/watch", headers={"Last-Event-ID": after})
            assert (reply.status_code, reply.json()["error"]["code"]) == (400, code)


async def test_a_page_of_the_feed_is_asked_for_with_its_cursor() -> None:
    service = fake.FakeService(feed=FeedPage([fake.event(3)], "c3", has_more=True))
    async with fake.client_of(fake.app_of(service)) as client:
        page = (await client.get("/v1/events?after=c2&limit=1")).json()
    assert service.calls[0][2] == {"after": "c2", "limit": 1}
    assert (page["cursor"], page["has_more"], page["events"][0]["session_id"]) == ("c3", True, fake.SESSION)


async def test_heartbeats_are_comments() -> None:
    script = Script(CaughtUp(0))
    async with (
        fake.running(app_of(script, heartbeat=0.01)) as server,
        httpx2.AsyncClient(base_url=server.url) as client,
        client.stream("GET", WATCH) as reply,
    ):
        reader = Reader(reply)
        await reader.next()
        while b": heartbeat\n\n: heartbeat\n\n" not in reader.raw:
            reader.raw += await anext(reader._chunks)
        script.items.put_nowait(EventItem(fake.event(1)))
        assert (await reader.next()).id == "1"


async def test_a_client_that_hangs_up_lets_the_watch_go() -> None:
    script = Script(CaughtUp(0))
    async with fake.running(app_of(script)) as server, httpx2.AsyncClient(base_url=server.url) as client:
        async with client.stream("GET", WATCH) as reply:
            await Reader(reply).next()
            assert not script.closed.is_set()
        async with asyncio.timeout(5):
            await script.closed.wait()


async def test_a_stop_ends_the_stream_between_events_and_without_end() -> None:
    script = Script(CaughtUp(0), EventItem(fake.event(1)))
    async with fake.running(app_of(script)) as server, httpx2.AsyncClient(base_url=server.url) as client:
        async with client.stream("GET", WATCH) as reply:
            reader = Reader(reply)
            assert [(await reader.next()).type for _ in range(2)] == ["caught_up", "turn.output"]
            server.stop()
            assert await reader.rest() == []
        assert reader.raw.endswith(b"\n\n")
        async with asyncio.timeout(5):
            await server.ended
        assert script.closed.is_set()


async def test_a_failure_in_the_middle_cuts_the_stream_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    script = Script(CaughtUp(0), RuntimeError("the store went away"))
    async with (
        fake.running(app_of(script)) as server,
        httpx2.AsyncClient(base_url=server.url) as client,
        client.stream("GET", WATCH) as reply,
    ):
        events = await Reader(reply).rest()
    assert [each.type for each in events] == ["caught_up"]
    assert any(each.levelno == logging.ERROR and each.exc_info for each in caplog.records)


class Counter:
    """A watch without end that counts what was taken from it."""

    def __init__(self) -> None:
        self.taken = 0
        self.closed = asyncio.Event()

    async def watch(self, *_: Any) -> AsyncIterator[WatchItem]:
        data = msgspec.json.encode({"content": [{"type": "text", "text": "x" * 10_000}]})
        try:
            while True:
                self.taken += 1
                yield EventItem(fake.event(self.taken, data=data))
        finally:
            self.closed.set()


async def settled(count: Callable[[], int]) -> int:
    """Return a count once it has stood still for many turns of the loop."""
    last, still = -1, 0
    while still < 200:
        await asyncio.sleep(0.001)
        still, last = (still + 1, last) if count() == last else (0, count())
    return last


async def test_a_reader_that_does_not_read_holds_the_watch_back() -> None:
    counter = Counter()
    app = fake.app_of(fake.FakeService(watch=counter.watch))
    async with fake.running(app, drain_seconds=1) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
        writer.write(f"GET {WATCH} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        await writer.drain()
        await reader.read(1)
        stuck = await settled(lambda: counter.taken)
        assert stuck * 10_000 < 20 * 1024 * 1024  # what the two sockets hold, and a chunk or two
        writer.transport.abort()
        async with asyncio.timeout(5):
            await counter.closed.wait()
        assert counter.taken <= stuck + 20
