"""A watch of one session: what its stream is made of, and where it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from perdure.api.events import CAUGHT_UP, END, LIVE, SNAPSHOT, CursorData, Event, LiveData, SnapshotData
from perdure.client.call import Settings
from perdure.client.following import Fault, Following, OnLost, read
from perdure.client.sse import ServerSentEvent
from perdure.records.ids import check_id


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


def name_of(item: WatchItem) -> str:
    """Return the name that an item has in the API's stream: an event's type, or that of a marker."""
    if isinstance(item, Event):
        return item.type
    return next(name for name, kind in _MARKERS.items() if type(item) is kind)


class Watching(Following[WatchItem]):
    """Where a watch is.

    `after` is the sequence number after which events are wanted; None begins with a snapshot.
    """

    def __init__(self, settings: Settings, session_id: str, after: int | None, on_lost: OnLost | None) -> None:
        super().__init__(settings, f"/v1/sessions/{check_id(session_id, 'session id')}/watch", on_lost)
        self._asked = after
        self._cursor: int | None = None

    def _place(self) -> tuple[str | None, Mapping[str, str]]:
        if self._cursor is not None:
            return str(self._cursor), {}
        return None, {} if self._asked is None else {"after": str(self._asked)}

    def _item(self, event: ServerSentEvent) -> WatchItem | None:
        kind = _MARKERS.get(event.type)
        if kind is None:
            return self._durable(read(Event, event)) if event.id else None
        marker = read(kind, event)
        if isinstance(marker, SnapshotData):
            self._cursor = marker.cursor
        if isinstance(marker, End):
            self._end()
        self._progressed(whole=False)
        return marker

    def _durable(self, event: Event) -> Event | None:
        last = self._cursor if self._cursor is not None else self._asked or 0
        if event.seq <= last:
            return None
        if event.seq != last + 1:
            raise Fault(f"event {event.seq} came after event {last}")
        self._cursor = event.seq
        self._progressed()
        return event
