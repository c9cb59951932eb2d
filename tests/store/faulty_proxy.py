"""A network between a store and its server that fails as a test wants it to.

It forwards TCP connections to a server's socket: `await proxy.open()`, then `proxy.url(…)` is where a store finds it.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from postgres_server import USER

Fault = Literal["", "before", "unanswered", "late"]
_RESET = struct.pack("ii", 1, 0)


class FaultyProxy:
    """`target` is the path of a unix socket, or a host and a port."""

    def __init__(self, target: Path | tuple[str, int]) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self.port = 0
        # How many connections were made, and how many bytes may still pass before all are cut, once.
        self.connected = 0
        self.left: int | None = None
        # What happens to the next commit, and whether it has happened.
        self.commit: Fault = ""
        self.happened = asyncio.Event()

    async def open(self) -> None:
        """Listen; again on the same port after `refuse`."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Let go of everything."""
        self.refuse()
        self.resume()
        self.cut()
        await asyncio.gather(*[link.over.wait() for link in set(self._links)])

    def url(self, database: str, **options: str) -> str:
        """Return a store's address. Statements are not prepared, so that commits can be seen to pass."""
        query = "&".join(f"{name}={value}" for name, value in {"perdure_prepare": "off", **options}.items())
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}?{query}"

    # --- faults

    def refuse(self) -> None:
        """Refuse new connections, until it is opened again."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def cut(self) -> None:
        """Reset all connections."""
        for link in set(self._links):
            link.reset()

    def stall(self) -> None:
        """Swallow what is sent, in both directions, without a word."""
        self._flows.clear()

    def resume(self) -> None:
        """Forward again, what was swallowed meanwhile first."""
        self._flows.set()

    # --- forwarding

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connected += 1
        try:
            server = await self._dial()
        except OSError:
            # It is not there, and so the client hears.
            _reset(writer)
            return
        link = _Link(writer, server[1])
        self._links.add(link)
        try:
            await asyncio.gather(
                self._forward(reader, server[1], link, self._see_request),
                self._forward(server[0], writer, link, self._see_answer),
            )
        finally:
            self._links.discard(link)
            link.reset()
            link.over.set()

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._target, Path):
            return await asyncio.open_unix_connection(str(self._target))
        return await asyncio.open_connection(*self._target)

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        link: _Link,
        see: Callable[[bytes, _Link], bytes | None],
    ) -> None:
        try:
            while data := await reader.read(65536):
                await self._flows.wait()
                if self.left is not None:
                    self.left -= len(data)
                    if self.left <= 0:
                        self.left = None
                        self.cut()
                        return
                passed = see(data, link)
                if passed is None:
                    continue
                writer.write(passed)
                await writer.drain()
        except (ConnectionError, OSError):
            """One of both has hung up."""
        if not link.is_late:
            link.reset()

    def _see_request(self, data: bytes, link: _Link) -> bytes | None:
        if not self.commit or b"COMMIT\0" not in data:
            return data
        fault, self.commit = self.commit, ""
        self.happened.set()
        if fault == "before":
            link.reset()
            return None
        if fault == "late":
            link.hold(data)
            return None
        link.is_deaf = True
        return data

    def _see_answer(self, data: bytes, link: _Link) -> bytes | None:
        if not link.is_deaf:
            return data
        # The server has done it and says so; nobody will hear.
        link.reset()
        return None

    def deliver(self) -> None:
        """Deliver the commits that are late, to a server that knows nothing of all this."""
        for link in set(self._links):
            link.deliver()


class _Link:
    """One connection, in two halves."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._client = client
        self._server = server
        self._held = b""
        self.is_deaf = False
        self.is_late = False
        self.over = asyncio.Event()

    def hold(self, data: bytes) -> None:
        """Reset the client's half and keep the server's, to which the data is still to come."""
        self._held, self.is_late = data, True
        _reset(self._client)

    def deliver(self) -> None:
        if self.is_late:
            self._server.write(self._held)
            self.is_late = False

    def reset(self) -> None:
        _reset(self._client)
        _reset(self._server)


def _reset(writer: asyncio.StreamWriter) -> None:
    if not writer.transport.is_closing():
        found = writer.get_extra_info("socket")
        if found.family != socket.AF_UNIX:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        writer.transport.abort()
