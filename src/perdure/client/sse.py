"""A parser of server-sent events, by the rules of the WHATWG HTML standard, that takes bytes as they come.

It has no I/O: bytes go in at any chunking, events come out. What it holds is bounded, so that a broken or hostile
server cannot fill the reader's memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

LARGEST_EVENT: Final = 256 * 1024 * 1024
_BOM: Final = b"\xef\xbb\xbf"
_LINE_END: Final = re.compile(rb"[\r\n]")
_DIGITS: Final = re.compile(r"[0-9]{1,9}")
_LINE_COST: Final = 64


class EventTooLarge(ValueError):
    """Raised when a line or an event of the stream exceeds the parser's bound."""


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event. `id` is the newest id of the stream up to here, which may come from an earlier event."""

    type: str
    data: str
    id: str


class LineSplitter:
    """Cuts bytes into lines that end in LF, CR or CRLF; a BOM at the very start is dropped."""

    def __init__(self, limit: int = LARGEST_EVENT) -> None:
        self._limit = limit
        self._held = bytearray()
        self._after_cr = False
        self._at_start = True

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the lines that `chunk` completes, without their ends; raises `EventTooLarge`."""
        start = 0
        if self._after_cr and chunk:
            start = int(chunk.startswith(b"\n"))
            self._after_cr = False
        while found := _LINE_END.search(chunk, start):
            yield self._line(chunk[start : found.start()])
            start = found.end()
            if found[0] == b"\r":
                self._after_cr = start == len(chunk)
                start += chunk.startswith(b"\n", start)
        self._hold(chunk[start:])

    def _line(self, rest: bytes) -> bytes:
        self._hold(rest)
        line = bytes(self._held)
        self._held.clear()
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BOM)
        return line

    def _hold(self, part: bytes) -> None:
        if len(self._held) + len(part) > self._limit:
            raise EventTooLarge(f"a line of the stream exceeds {self._limit} bytes")
        self._held += part


@dataclass(slots=True)
class _Draft:
    """The event whose lines are being read."""

    type: str = ""
    data: list[str] = field(default_factory=list)
    size: int = 0


class SseParser:
    """Turns the bytes of an event stream into events.

    `last_id` is what a reconnecting reader sends as Last-Event-ID; `retry` is the delay in milliseconds that the
    server asked for, if it did. An event that the stream's end cuts off is never returned.
    """

    def __init__(self, limit: int = LARGEST_EVENT) -> None:
        self.last_id: str = ""
        self.retry: int | None = None
        self._limit = limit
        self._lines = LineSplitter(limit)
        self._draft = _Draft()
        self._id = ""

    def feed(self, chunk: bytes) -> Iterator[ServerSentEvent]:
        """Yield the events that `chunk` completes; raises `EventTooLarge`."""
        for line in self._lines.feed(chunk):
            if line:
                self._field(line)
            elif event := self._dispatch():
                yield event

    def _dispatch(self) -> ServerSentEvent | None:
        draft, self._draft = self._draft, _Draft()
        self.last_id = self._id
        if not draft.data:
            return None
        return ServerSentEvent(draft.type or "message", "\n".join(draft.data), self.last_id)

    def _field(self, line: bytes) -> None:
        if line.startswith(b":"):
            return
        name, _, raw = line.partition(b":")
        value = raw.removeprefix(b" ").decode("utf-8", "replace")
        match name:
            case b"data":
                self._add_data(value, len(raw))
            case b"event":
                self._draft.type = value
            case b"id" if "\0" not in value:
                self._id = value
            case b"retry" if _DIGITS.fullmatch(value):
                self.retry = int(value)

    def _add_data(self, value: str, size: int) -> None:
        self._draft.size += size + _LINE_COST  # a stream of empty data lines must not grow for free
        if self._draft.size > self._limit:
            raise EventTooLarge(f"an event of the stream exceeds {self._limit} bytes")
        self._draft.data.append(value)
