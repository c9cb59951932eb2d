"""A reader of a session's log that knows only the stream itself: it is cut off, goes elsewhere and asks for the rest.

It is not the typed client, which would put right what a server does wrong.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import httpx2
import msgspec
from tests.chaos.asking import NO_TLS, PASSING
from tests.chaos.evidence import Connection, Evidence, Reading, Unexpected, digest

from perdure.api.events import END, MARKERS, SNAPSHOT
from perdure.client.sse import ServerSentEvent, SseParser

SCOPE: Final = {"project": "demo", "environment": "development"}
_STAYS: Final = 8.0
_PAUSE: Final = 0.2


class Readers:
    """What all readers share: connections to the servers, and where they note what they saw."""

    def __init__(self, urls: Sequence[str], evidence: Evidence, seed: int) -> None:
        self.urls = list(urls)
        self.evidence = evidence
        self.random = random.Random(f"{seed}/readers")
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
        self.http = httpx2.AsyncClient(
            transport=httpx2.AsyncHTTPTransport(verify=NO_TLS, limits=limits), timeout=httpx2.Timeout(20.0, connect=2.0)
        )

    async def close(self) -> None:
        """Close all connections."""
        await self.http.aclose()


class Reader:
    """Follows one session from its beginning to its end. `heard` is called with each event, once."""

    def __init__(self, readers: Readers, session: str, name: str, heard: Callable[[dict[str, Any]], None]) -> None:
        self._readers = readers
        self._heard = heard
        self.last = 0
        self.reading = Reading(session, name)
        self.live = 0
        readers.evidence.readings.append(self.reading)

    async def follow(self) -> None:
        """Read until the session's end; go to another server after some seconds, or when this one fails."""
        while not self.reading.ended:
            server = self._readers.random.randrange(len(self._readers.urls))
            stays = self._readers.random.expovariate(1 / _STAYS)
            try:
                async with asyncio.timeout(stays):
                    await self._connect(server)
            except (httpx2.TransportError, httpx2.StreamError, TimeoutError):
                pass
            await asyncio.sleep(_PAUSE * self._readers.random.random())

    async def _connect(self, server: int) -> None:
        url = f"{self._readers.urls[server]}/v1/sessions/{self.reading.session}/watch"
        headers = {"accept": "text/event-stream"}
        query = dict(SCOPE)
        if self.last:
            headers["last-event-id"] = str(self.last)
        else:
            query["after"] = "0"
        async with self._readers.http.stream("GET", url, params=query, headers=headers) as reply:
            if not reply.is_success:
                await self._refused(reply)
                return
            connection = Connection(f"server-{server + 1}", self.last)
            self.reading.connections.append(connection)
            parser = SseParser()
            async for chunk in reply.aiter_bytes():
                for event in parser.feed(chunk):
                    if self._take(connection, event):
                        return

    async def _refused(self, reply: httpx2.Response) -> None:
        body = await reply.aread()
        if reply.status_code not in PASSING:
            what = f"watch after {self.last}"
            self._readers.evidence.unexpected.append(Unexpected(self.reading.session, what, body.decode()))
            await asyncio.sleep(1.0)

    def _take(self, connection: Connection, event: ServerSentEvent) -> bool:
        """Note an event; returns whether the stream is over."""
        if event.type in MARKERS:
            self.live += event.type == "live"
            self.reading.ended = event.type == END
            # A snapshot says that this reader was too slow; it asks again for what it missed.
            return event.type in (END, SNAPSHOT)
        document = msgspec.json.decode(event.data)
        seq = document["seq"]
        connection.seen.append((seq, digest(document)))
        if seq > self.last:
            self.last = seq
            document["heard"] = time.monotonic()
            self._heard(document)
        return False


class FeedReader:
    """Reads the feed of all sessions, each page from a server by chance."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._cursor: str | None = None

    async def follow(self) -> None:
        """Read on and on, until cancelled."""
        while True:
            if not await self._page():
                await asyncio.sleep(_PAUSE)

    async def finish(self) -> None:
        """Read all that is there now."""
        while (more := await self._page()) is not False:
            await asyncio.sleep(0 if more else _PAUSE)

    async def _page(self) -> bool | None:
        """Read a page; returns whether there is more now, None when it could not be read."""
        try:
            return await self._read()
        except (httpx2.TransportError, httpx2.StreamError):
            return None

    async def _read(self) -> bool | None:
        server = self._readers.random.choice(self._readers.urls)
        query = {**SCOPE, "limit": "500", **({} if self._cursor is None else {"after": self._cursor})}
        reply = await self._readers.http.get(f"{server}/v1/events", params=query)
        if not reply.is_success:
            if reply.status_code not in PASSING:
                told = Unexpected(None, f"feed after {self._cursor}", reply.text)
                self._readers.evidence.unexpected.append(told)
            return None
        page = msgspec.json.decode(reply.content)
        self._cursor = page["cursor"]
        self._readers.evidence.feed += [(event["session_id"], event["seq"], digest(event)) for event in page["events"]]
        more: bool = page["has_more"]
        return more
