"""Serving an application with uvicorn inside a loop that is somebody else's."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Generator
from typing import Final

import uvicorn
from starlette.applications import Starlette

from perdure.errors import AddressUnavailable
from perdure.server.stopping import Stopping

DRAIN_SECONDS: Final = 10
_KEEP_ALIVE_SECONDS: Final = 75
_BACKLOG: Final = 2048
_LAST_PORT: Final = 65_535


class Listener:
    """A bound socket, so that an address that is taken is known before anything else is started."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = _bind(host, port)
        address = self._socket.getsockname()
        self.host: str = host
        self.port: int = address[1]

    @property
    def url(self) -> str:
        """The address as clients write it."""
        name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{name}]:{self.port}" if ":" in name else f"http://{name}:{self.port}"

    def close(self) -> None:
        """Let go of the address."""
        self._socket.close()

    async def serve(
        self,
        app: Starlette,
        stop: asyncio.Event,
        *,
        on_started: Callable[[], None] | None = None,
        drain_seconds: int = DRAIN_SECONDS,
        linger: float = 0.0,
    ) -> None:
        """Serve `app` until `stop` is set or the task is cancelled.

        Then watches end between two events, and waits and new requests are answered with `unavailable`, for `linger`
        seconds, in which a load balancer notices. Then nothing is accepted any more, and what is under way has
        `drain_seconds` to finish; what takes longer is cut off.
        """
        server = _Server(_config(app, drain_seconds), app.state.stopping, on_started)
        running = asyncio.ensure_future(server.serve([self._socket]))
        stopped = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((running, stopped), return_when=asyncio.FIRST_COMPLETED)
            if linger and not running.done():
                app.state.stopping.begin()
                await asyncio.wait((running,), timeout=linger)
        finally:
            stopped.cancel()
            server.should_exit = True
            await running


async def serve(
    app: Starlette,
    host: str,
    port: int,
    on_started: Callable[[str], None] | None = None,
    *,
    stop: asyncio.Event | None = None,
    drain_seconds: int = DRAIN_SECONDS,
) -> None:
    """Bind and serve; `on_started` gets the URL. Raises `AddressUnavailable` when the address cannot be had."""
    listener = Listener(host, port)
    told = None if on_started is None else lambda: on_started(listener.url)
    await listener.serve(app, stop or asyncio.Event(), on_started=told, drain_seconds=drain_seconds)


def _bind(host: str, port: int) -> socket.socket:
    if not 0 <= port <= _LAST_PORT:  # getaddrinfo would take it modulo 65536
        raise _unavailable(host, port, f"ports go to {_LAST_PORT}")
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = places[0]
        made = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _unavailable(host, port, str(error)) from error
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(_BACKLOG)
    except OSError as error:
        made.close()
        raise _unavailable(host, port, _told(error)) from error
    return made


def _told(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another program listens there"
    return error.strerror or str(error)


def _unavailable(host: str, port: int, why: str) -> AddressUnavailable:
    return AddressUnavailable(
        f"Cannot listen on {host}:{port}: {why}. Nothing was started; stop what uses it, or choose another --port "
        "(0 takes any free one)."
    )


def _config(app: Starlette, drain_seconds: int) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=drain_seconds,
    )


class _Server(uvicorn.Server):
    """Leaves signals to the caller, and tells the application when it stops."""

    def __init__(self, config: uvicorn.Config, stopping: Stopping, on_started: Callable[[], None] | None) -> None:
        super().__init__(config)
        self._stopping = stopping
        self._on_started = on_started
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._on_started is not None:
            self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping.begin()
        await super().shutdown(sockets)
