"""A stream may be cut anywhere: what a client puts together across its connections is exactly the log."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from http_parts import Served, served

from perdure.api.events import Event, SnapshotData
from perdure.client.call import settings_from
from perdure.client.sse import SseParser
from perdure.client.watching import End, Watching, WatchItem

AGENT = r"""
import perdure

agent = perdure.Agent("speaker")

@agent.turn
async def turn(turn, ctx):
    await turn.output.write("line\nbreak \r\n id: 99\n\ndata: no \u2028\u2029\x85")
    await turn.output.write("\U0001f600 \u00e9\u20ac \x00 \ufeff")
    await turn.output.write([{"type": "json", "value": {"event: end": [None, "\n\n", 1.5]}}])
    await turn.respond("done \U0001f9d1\u200d\U0001f680")
    return {"text": turn.input[0].text}
"""
INPUT = [{"type": "text", "text": "grüße 😀\nid: 7\n\n: no comment"}]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Served]:
    source = tmp_path / "project" / "agents"
    source.mkdir(parents=True)
    (source / "speaker.py").write_text(AGENT)
    async with served(tmp_path, heartbeat=0.02) as server:
        await server.deploy(tmp_path / "project")
        yield server


async def record(server: Served, query: str, session_id: str, turns: int) -> bytes:
    """Record the stream of a session that takes its turns and, after a heartbeat, closes while it is watched."""
    recorded, told, closed = bytearray(), 0, False
    parser = SseParser()
    inside = f"/v1/sessions/{session_id}"
    async with server.client.stream("GET", f"{inside}/watch{query}") as reply:
        assert reply.status_code == 200
        async for chunk in reply.aiter_raw():
            recorded += chunk
            for event in parser.feed(chunk):
                told += event.type in ("caught_up", "turn.completed")
                if event.type in ("caught_up", "turn.completed") and told <= turns:
                    await server.post(f"{inside}/enqueue", {"input": INPUT})
            if told > turns and b": heartbeat" in recorded and not closed:
                closed = True
                await server.post(f"{inside}/close")
    return bytes(recorded)


class Connections:
    """Streams as the server answers them, each asked for once: the session is closed, so that they do not change."""

    def __init__(self, server: Served) -> None:
        self._app = server.app
        self._known: dict[tuple[str, str | None], bytes] = {}

    async def body(self, arguments: dict[str, Any]) -> bytes:
        asked = {name: arguments[name] for name in ("method", "url", "params", "headers")}
        request = httpx2.Request(**asked)
        name = (str(request.url), request.headers.get("last-event-id"))
        if name not in self._known:
            self._known[name] = await stream_of(self._app, request)
        return self._known[name]


async def stream_of(app: Any, request: httpx2.Request) -> bytes:
    """Return the body of a stream that the server ends itself."""
    body = bytearray()

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        assert message.get("status", 200) == 200
        body.extend(message.get("body", b""))

    headers = [(name.lower(), value) for name, value in request.headers.raw]
    http = {"type": "http", "method": "GET", "path": request.url.path, "query_string": request.url.query}
    await app({**http, "headers": headers}, receive, send)
    return bytes(body)


async def read_through(watching: Watching, bodies: AsyncIterator[bytes]) -> list[WatchItem]:
    """Return what the client's half of a watch gives when its connections have these bodies."""
    items: list[WatchItem] = []
    while not watching.ended:
        watching.opened(httpx2.Response(200, headers={"content-type": "text/event-stream"}))
        items += watching.feed(await anext(bodies))
        watching.stopped()
    return items


def watching_of(session_id: str, after: int | None) -> Watching:
    return Watching(settings_from("http://127.0.0.1", None, "demo", "development", None), session_id, after, None)


async def log_of(server: Served, session_id: str) -> list[Any]:
    """Return the whole log, read in pages, in the client's form."""
    log: list[Any] = []
    while True:
        page = await server.get(f"/v1/sessions/{session_id}/events", after=len(log), limit=7)
        log += page["events"]
        assert page["next_after"] == len(log)
        if not page["has_more"]:
            return [Event.model_validate(each) for each in log]


def check(items: list[WatchItem], log: list[Any], after: int) -> None:
    """Every durable event after the cursor, once and in order, and `end` last."""
    assert [item for item in items if isinstance(item, Event)] == log[after:]
    assert [item.cursor for item in items if isinstance(item, End)] == [len(log)]
    assert isinstance(items[-1], End)


async def new_session(server: Served) -> str:
    receipt = await server.post("/v1/agents/speaker/sessions", {"key": "user:ada"})
    return str(receipt["session_id"])


async def test_a_stream_cut_after_every_byte_is_the_log(server: Served) -> None:
    session_id = await new_session(server)
    first = await record(server, "?after=0", session_id, turns=1)
    log = await log_of(server, session_id)
    assert [event.seq for event in log] == list(range(1, len(log) + 1))
    assert {"turn.output", "turn.completed", "session.closed"} <= {event.type for event in log}
    assert b": heartbeat" in first
    connections = Connections(server)
    for cut in range(len(first) + 1):
        watching = watching_of(session_id, 0)

        async def bodies(watching: Watching = watching, cut: int = cut) -> AsyncIterator[bytes]:
            yield first[:cut]
            yield await connections.body(watching.request())

        check(await read_through(watching, bodies()), log, 0)


async def test_a_stream_that_begins_with_a_snapshot_goes_on_where_that_ends(server: Served) -> None:
    session_id = await new_session(server)
    first = await record(server, "", session_id, turns=1)
    log = await log_of(server, session_id)
    connections = Connections(server)
    cursors = set()
    for cut in range(0, len(first) + 1, 7):
        watching = watching_of(session_id, None)

        async def bodies(watching: Watching = watching, cut: int = cut) -> AsyncIterator[bytes]:
            yield first[:cut]
            yield await connections.body(watching.request())

        items = await read_through(watching, bodies())
        snapshots = [item for item in items if isinstance(item, SnapshotData)]
        assert len(snapshots) == 1
        assert items[0] is snapshots[0]
        cursors.add(snapshots[0].cursor)
        check(items, log, snapshots[0].cursor)
    assert cursors == {1, len(log)}  # the first one if it came whole, else a new one of the closed session


async def test_a_stream_that_is_cut_again_and_again_is_the_log(server: Served) -> None:
    session_id = await new_session(server)
    await record(server, "?after=0", session_id, turns=2)
    log = await log_of(server, session_id)
    connections = Connections(server)
    for seed in range(100):
        chance = random.Random(seed)
        watching = watching_of(session_id, 0)

        async def bodies(watching: Watching = watching, chance: random.Random = chance) -> AsyncIterator[bytes]:
            while True:
                body = await connections.body(watching.request())
                yield body[: chance.randint(0, max(1500, len(body) // 3))]

        check(await read_through(watching, bodies()), log, 0)


async def test_every_cursor_gives_the_rest_of_the_log(server: Served) -> None:
    session_id = await new_session(server)
    await record(server, "?after=0", session_id, turns=1)
    log = await log_of(server, session_id)
    connections = Connections(server)
    for after in range(len(log) + 1):
        watching = watching_of(session_id, after)

        async def bodies(watching: Watching = watching) -> AsyncIterator[bytes]:
            yield await connections.body(watching.request())

        check(await read_through(watching, bodies()), log, after)
    beyond = await server.client.get(f"/v1/sessions/{session_id}/watch?after={len(log) + 1}")
    assert (beyond.status_code, beyond.json()["error"]["code"]) == (400, "invalid_cursor")
