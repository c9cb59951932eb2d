"""A stream of the server's, without I/O: which request to make, what its bytes mean, when to come back.

However often the connection is lost, what the stream is made of is given exactly once and in order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Generic, TypeAlias, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from perdure.client.call import Call, Settings
from perdure.client.failures import NotUnderstood, from_transport, may_pass
from perdure.client.retry import Retry
from perdure.client.sse import EventTooLarge, ServerSentEvent, SseParser
from perdure.errors import PerdureError, Unavailable

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

SILENCE_SECONDS: Final = 45.0
_FAULTS_BORNE: Final = 5

OnLost: TypeAlias = Callable[[PerdureError, float], None]
"""Called with why a stream lost its connection and after how many seconds it will be tried again."""


class Fault(Exception):
    """Raised when a stream says what it must not: a gap, a broken event. It is read again from the last good one."""


class Following(ABC, Generic[T]):
    """Where a stream is. A caller makes `request`, gives `opened` its reply and `feed` its bytes, tells `stopped` or
    `after` how it ended, and does so again until `ended`.

    The first connection is tried as often as any request; one that was lost later, for ever.
    """

    def __init__(self, settings: Settings, path: str, on_lost: OnLost | None) -> None:
        self.ended: bool = False
        self._settings = settings
        self._path = path
        self._on_lost = on_lost
        self._parser = SseParser()
        self._connected = False
        self._failures = 0
        self._faults = 0

    @abstractmethod
    def _place(self) -> tuple[str | None, Mapping[str, str]]:
        """Return the id after which the stream goes on, or what to ask for where there is none yet."""

    @abstractmethod
    def _item(self, event: ServerSentEvent) -> T | None:
        """Return what an event gives, if anything; raises `Fault`."""

    def request(self) -> dict[str, Any]:
        """Return the arguments of the next request: the stream from where the last one stopped."""
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity", "Cache-Control": "no-store"}
        last, query = self._place()
        if last is not None:
            headers["Last-Event-ID"] = last
        call = Call("GET", self._path, bytes, query=query, headers=headers, seconds=SILENCE_SECONDS)
        return self._settings.request(call)

    def opened(self, reply: httpx2.Response) -> None:
        """Take a reply whose body, if it is an error's, has been read; raises that error."""
        if not reply.is_success:
            Call("GET", self._path, bytes).answer(reply)
        if not reply.headers.get("content-type", "").startswith("text/event-stream"):
            raise NotUnderstood(f"The answer to a watch of {self._path} is not an event stream.")
        self._parser = SseParser()
        self._connected = True

    def feed(self, chunk: bytes) -> Iterator[T]:
        """Yield the items that the next bytes complete; raises `Fault`."""
        try:
            for event in self._parser.feed(chunk):
                if item := self._item(event):
                    yield item
        except EventTooLarge as error:
            raise Fault(str(error)) from error

    def _end(self) -> None:
        """Take what was given for the last of the stream."""
        self.ended = True

    def _progressed(self, *, whole: bool = True) -> None:
        """Forget the failures so far: the server is there, and with `whole`, what it sends is good."""
        self._failures = 0
        if whole:
            self._faults = 0

    def stopped(self) -> float:
        """Return the seconds to wait after a stream that ended; nothing to wait for when it was the end."""
        return 0.0 if self.ended else self.after(Fault("the stream ended early"), blameless=True)

    def after(self, error: httpx2.RequestError | PerdureError | Fault, *, blameless: bool = False) -> float:
        """Return the seconds to wait before the next request, or raise what cannot be helped by one."""
        failure = self._failure(error, blameless)
        self._failures += 1
        if not may_pass(failure) or (not self._connected and self._failures >= self._retry.attempts):
            raise failure from (None if failure is error else error)
        delay = self._retry.delay(self._failures, failure)
        if self._on_lost:
            self._on_lost(failure, delay)
        return delay

    def _failure(self, error: httpx2.RequestError | PerdureError | Fault, blameless: bool) -> PerdureError:
        if isinstance(error, PerdureError):
            return error
        if isinstance(error, httpx2.RequestError):
            return from_transport(error, None)
        self._faults += not blameless
        if self._faults >= _FAULTS_BORNE:
            return NotUnderstood(f"The watch of {self._path} is broken: {error}. Events are kept; read them in pages.")
        return Unavailable(f"The watch of {self._path} was cut: {error}.")

    @property
    def _retry(self) -> Retry:
        return self._settings.retry


def read(kind: type[M], event: ServerSentEvent) -> M:
    """Return an event's data; raises `Fault` when they are not what they should be."""
    try:
        return kind.model_validate_json(event.data)
    except ValidationError as error:
        raise Fault(f"an event of type {event.type} is malformed ({error.error_count()} errors)") from error
