"""The leanest HTTP/1.1 keep-alive client that our server can be asked with: it is the server that is measured."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any, Self

FRESH = 2.0
"""Seconds for which a connection may be idle and still be used."""


class HttpFailed(Exception):
    """The server refused a request; the message has its status and body."""


class Line:
    """One kept connection. Requests go one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader, self._writer, self._host = reader, writer, host

    @classmethod
    async def open(cls, port: int) -> Self:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=16 << 20)
        return cls(reader, writer, f"127.0.0.1:{port}")

    async def request(self, method: str, path: str, body: object = None) -> Any:
        """Send one request and return the JSON of its answer.

        Raises:
            HttpFailed: the status is not 2xx.
        """
        status, payload = await self.exchange(method, path, body)
        if status // 100 != 2:
            raise HttpFailed(f"{method} {path}: {status} {payload.decode()}")
        return json.loads(payload)

    async def exchange(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        """Send one request and return its status and raw body."""
        content = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Length: {len(content)}\r\n"
        kind = "Content-Type: application/json\r\n" if content else ""
        self._writer.write(f"{head}{kind}\r\n".encode() + content)
        return await self._answer()

    async def _answer(self) -> tuple[int, bytes]:
        head = await self._reader.readuntil(b"\r\n\r\n")
        status_line, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if "content-length" not in headers:
            raise HttpFailed(f"an answer without Content-Length: {head!r}")
        return int(status_line.split()[1]), await self._reader.readexactly(int(headers["content-length"]))

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class Lines:
    """Kept connections to one port, one for each request that is under way at once.

    One that has been idle for a while is dropped rather than used: the server may be about to close it.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[float, Line]] = []

    async def take(self) -> Line:
        while self._idle:
            since, line = self._idle.pop()
            if time.monotonic() - since < FRESH:
                return line
            await line.close()
        return await Line.open(self._port)

    def give_back(self, line: Line) -> None:
        self._idle.append((time.monotonic(), line))
