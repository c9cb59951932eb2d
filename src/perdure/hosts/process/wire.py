"""What goes over the socket between a session's process (the guest) and its worker.

A frame is four bytes of length, big-endian, and that many bytes of MessagePack: one tagged struct of this module. The
guest dials and says `Hello`; the worker answers `Welcome` or `Refused`; then both send what they have to say. The
meaning of each struct is fixed for a `VERSION`; a guest may be older than the worker that finds it again.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias, cast

import msgspec

from perdure.errors import ContentTooLarge, PerdureError, by_code
from perdure.hosts.protocol import Directive, Request

VERSION: Final = 1
SOCKET: Final = "host.sock"
LARGEST_FRAME: Final = 9 << 20
_HEADER: Final = 4


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The guest's first frame: which Run it serves, and the highest epoch that it has met."""

    version: int
    run_id: str
    epoch: int


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The worker takes the guest. Numbers of directives count from 1 within one `attachment`."""

    epoch: int
    attachment: str


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The worker does not want this guest and no other will: it shall end itself."""

    reason: str


class Fenced(msgspec.Struct, frozen=True, tag="fenced"):
    """The guest obeys a higher epoch than this worker's; the connection ends with this frame."""

    epoch: int


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """A request under an id that grows by one; every id below `floor` has its answer and may be forgotten."""

    id: int
    floor: int
    request: Request


class Reply(msgspec.Struct, frozen=True, tag="reply"):
    """The answer to a request: a value of plain JSON, or an error."""

    id: int
    value: Any = None
    error: Failure | None = None


class Failure(msgspec.Struct, frozen=True):
    """A `PerdureError` on its way."""

    code: str
    message: str
    details: dict[str, Any]


class Tell(msgspec.Struct, frozen=True, tag="tell"):
    """A directive; the guest confirms its number and takes each number once."""

    number: int
    directive: Directive


class Told(msgspec.Struct, frozen=True, tag="told"):
    """The guest has taken all directives up to this number."""

    number: int


class Quiesce(msgspec.Struct, frozen=True, tag="quiesce"):
    """The guest shall drop this link. It dials again by itself, as after any loss."""


FromGuest: TypeAlias = Hello | Ask | Told | Fenced
FromWorker: TypeAlias = Welcome | Refused | Reply | Tell | Quiesce

_encoder: Final = msgspec.msgpack.Encoder()
FROM_GUEST: Final = msgspec.msgpack.Decoder(FromGuest)
FROM_WORKER: Final = msgspec.msgpack.Decoder(FromWorker)


class FrameError(Exception):
    """Raised inside a connection for bytes that are no frame of ours; the connection is closed."""


def encode(message: msgspec.Struct) -> bytes:
    """Return a frame. Raises `ContentTooLarge` over 9 MiB; nothing is sent then."""
    body = _encoder.encode(message)
    if len(body) > LARGEST_FRAME:
        raise ContentTooLarge("message between session and worker", f"{len(body)} bytes", f"{LARGEST_FRAME} bytes")
    return len(body).to_bytes(_HEADER, "big") + body


class Frames:
    """Cuts a stream of bytes into frames."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[Any]) -> None:
        self._decoder = decoder
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Take bytes and yield the messages that they complete. Raises `FrameError` after the last good one."""
        self._pending += data
        at = 0
        try:
            while (end := self._end_of_frame(at)) is not None:
                body = bytes(self._pending[at + _HEADER : end])
                at = end
                yield self._decode(body)
        finally:
            del self._pending[:at]

    def _end_of_frame(self, at: int) -> int | None:
        if len(self._pending) < at + _HEADER:
            return None
        length = int.from_bytes(self._pending[at : at + _HEADER], "big")
        if length > LARGEST_FRAME:
            raise FrameError(f"a frame of {length} bytes; the limit is {LARGEST_FRAME}")
        end = at + _HEADER + length
        return end if len(self._pending) >= end else None

    def _decode(self, body: bytes) -> Any:
        try:
            return self._decoder.decode(body)
        except msgspec.MsgspecError as error:
            raise FrameError(f"a frame that cannot be read: {error}") from error


class Connection(asyncio.Protocol):
    """One end of one connection. `take` gets each message, `lost` is called once, with why, at the end."""

    def __init__(
        self,
        decoder: msgspec.msgpack.Decoder[Any],
        take: Callable[[Connection, Any], None],
        lost: Callable[[Connection, str], None],
    ) -> None:
        self._frames = Frames(decoder)
        self._take, self._lost = take, lost
        self.transport: asyncio.Transport | None = None
        self._why = "the other end closed it"
        self._ended = False
        self._gone = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's.
        self.transport = cast("asyncio.Transport", transport)
        if self._ended:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._frames.feed(data):
                self._take(self, message)
        except FrameError as error:
            self.close(f"it sent {error}")

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._gone.set()
        self._lost(self, str(error) if error else self._why)

    def send(self, frame: bytes) -> None:
        """Send an encoded frame, unless the connection is gone: what matters is sent again on the next one."""
        if self.transport is not None and not self._ended:
            self.transport.write(frame)

    def close(self, why: str) -> None:
        """End the connection after what was sent, for both ends, even if a forked child still holds the socket."""
        if self._ended:
            return
        self._ended, self._why = True, why
        if self.transport is not None:
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self.transport.close()

    async def until_gone(self, timeout: float) -> None:
        """Wait for the end after `close`; an end that does not take what was sent is cut off after `timeout` s."""
        try:
            async with asyncio.timeout(timeout):
                await self._gone.wait()
        except TimeoutError:
            if self.transport is not None:
                self.transport.abort()


async def connect(connection: Connection, path: str) -> None:
    """Connect to a unix socket. Raises OSError when nobody listens, or too many wait to be taken."""
    dialled = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Connecting to a unix socket is done at once or refused at once: nothing to wait for.
        dialled.setblocking(False)
        dialled.connect(path)
    except OSError:
        dialled.close()
        raise
    await asyncio.get_running_loop().create_unix_connection(lambda: connection, sock=dialled)


def describe_failure(error: PerdureError) -> Failure:
    """Return an error in the form in which it travels."""
    return Failure(error.code, error.message, error.details)


def rebuild_failure(failure: Failure) -> PerdureError:
    """Return the error that travelled, as the class that its code names."""
    kind = by_code().get(failure.code, PerdureError)
    error = kind.__new__(kind)
    PerdureError.__init__(error, failure.message, failure.details)
    return error
