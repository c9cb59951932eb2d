"""A watch of one session, without I/O: which request to make, what its bytes mean, when to come back.

However often the connection is lost, every durable event is given exactly once and in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from perdure.api.events import CAUGHT_UP, END, LIVE, SNAPSHOT, CursorData, Event, LiveData, SnapshotData
from perdure.client.call import Call, Settings
from perdure.client.failures import NotUnderstood, from_transport, may_pass
from perdure.client.retry import Retry
from perdure.client.sse import EventTooLarge, ServerSentEvent, SseParser
from perdure.errors import PerdureError, Unavailable
from perdure.records.ids import check_id

M = TypeVar("M", bound=BaseModel)

SILENCE_SECONDS: Final = 45.0
_FAULTS_BORNE: Final = 5


class CaughtUp(CursorData):
    """Everything up to `cursor` that was committed when the connection was made has been given."""


class End(CursorData):
    """The session is closed or cancelled, and everything up to `cursor` has been given. Nothing follows."""


WatchItem: TypeAlias = SnapshotData | Event | LiveData | CaughtUp | End
_MARKERS: Final[dict[str, type[SnapshotData | LiveData | CaughtUp | End]]] = {
    SNAPSHOT: SnapshotData,
    LIVE: LiveData,
    CAUGHT_UP: CaughtUp,
    END: End,
}
OnLost: TypeAlias = Callable[[PerdureError, float], None]
"""Called with why a watch lost its connection and after how many seconds it will try again."""


def name_of(item: WatchItem) -> str:
    """Return the name that an item has in the API's stream: an event's type, or that of a marker."""
    if isinstance(item, Event):
        return item.type
    return next(name for name, kind in _MARKERS.items() if type(item) is kind)


class Fault(Exception):
    """Raised when a stream says what it must not: a gap, a broken event. It is read again from the last good one."""


class Watching:
    """Where a watch is. A caller makes `request`, gives `opened` its reply and `feed` its bytes, tells `stopped` or
    `after` how it ended, and does so again until `ended`.

    `after` is the sequence number after which events are wanted; None begins with a snapshot. The first connection is
    tried as often as any request; one that was lost later, for ever.
    """

    def __init__(self, settings: Settings, session_id: str, after: int | None, on_lost: OnLost | None) -> None:
        self.ended: bool = False
        self._settings = settings
        self._path = f"/v1/sessions/{check_id(session_id, 'session id')}/watch"
        self._asked = after
        self._cursor: int | None = None
        self._on_lost = on_lost
        self._parser = SseParser()
        self._connected = False
        self._failures = 0
        self._faults = 0

    def request(self) -> dict[str, Any]:
        """Return the arguments of the next request: a watch from where the last one stopped."""
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity", "Cache-Control": "no-store"}
        query = {}
        if self._cursor is not None:
            headers["Last-Event-ID"] = str(self._cursor)
        elif self._asked is not None:
            query["after"] = str(self._asked)
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

    def feed(self, chunk: bytes) -> Iterator[WatchItem]:
        """Yield the items that the next bytes complete; raises `Fault`."""
        try:
            for event in self._parser.feed(chunk):
                if item := self._item(event):
                    yield item
        except EventTooLarge as error:
            raise Fault(str(error)) from error

    def _item(self, event: ServerSentEvent) -> WatchItem | None:
        kind = _MARKERS.get(event.type)
        if kind is None:
            return self._durable(_read(Event, event)) if event.id else None
        marker = _read(kind, event)
        if isinstance(marker, SnapshotData):
            self._cursor = marker.cursor
        self.ended = isinstance(marker, End)
        self._failures = 0
        return marker

    def _durable(self, event: Event) -> Event | None:
        last = self._cursor if self._cursor is not None else self._asked or 0
        if event.seq <= last:
            return None
        if event.seq != last + 1:
            raise Fault(f"event {event.seq} came after event {last}")
        self._cursor = event.seq
        self._failures = self._faults = 0
        return event

    def stopped(self) -> float:
        """Return the seconds to wait after a stream that ended; nothing to wait for when it was the end."""
        return 0.0 if self.ended else self.after(Fault("the stream ended before the session did"), blameless=True)

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


def _read(kind: type[M], event: ServerSentEvent) -> M:
    try:
        return kind.model_validate_json(event.data)
    except ValidationError as error:
        raise Fault(f"an event of type {event.type} is malformed ({error.error_count()} errors)") from error
