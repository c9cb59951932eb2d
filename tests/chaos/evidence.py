"""What a chaos run leaves behind, as plain data: what clients did and saw, what handlers did, what the store holds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from perdure.testing import History

Document: TypeAlias = Mapping[str, Any]


@dataclass
class Asked:
    """One request of a client that changes something, over all the times that it was sent.

    `session` is None for a creation that was never answered. `began` and `ended` are of the monotonic clock: when it
    was sent first, and when it was answered. `answers` are the bodies of all successful replies, of repeats too;
    `refused` is the code of the error that was the final answer. With neither, the client gave up without knowing.
    """

    what: str
    key: str
    session: str | None = None
    text: str | None = None
    details: dict[str, Any] = field(default_factory=dict)
    began: float = 0.0
    ended: float | None = None
    answers: list[bytes] = field(default_factory=list)
    refused: str | None = None

    @property
    def receipt(self) -> dict[str, Any] | None:
        """What the first successful reply said."""
        return msgspec.json.decode(self.answers[0]) if self.answers else None


@dataclass
class Connection:
    """What one connection of a reader brought: the cursor that it asked with and what came, as (seq, digest)."""

    server: str
    after: int
    seen: list[tuple[int, str]] = field(default_factory=list)


@dataclass
class Reading:
    """One reader of one session, over all its connections, in order.

    `due` is the event that it was given time to see, when everything was healed; `ended` says that it was told the end.
    """

    session: str
    reader: str
    connections: list[Connection] = field(default_factory=list)
    due: int = 0
    ended: bool = False


@dataclass(frozen=True)
class Unexpected:
    """An answer that no client should ever get, whatever is broken."""

    session: str | None
    what: str
    error: str


@dataclass
class Evidence:
    """All that the checker looks at.

    `ledger` is what handlers noted on all nodes; its times are of one clock. `feed` is what a reader of all sessions
    saw, page after page, on whichever servers: session, seq and digest of each event.
    """

    histories: dict[str, History] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    ledger: list[dict[str, Any]] = field(default_factory=list)
    feed: list[tuple[str, int, str]] = field(default_factory=list)
    unexpected: list[Unexpected] = field(default_factory=list)


def digest(event: Document) -> str:
    """Return a short digest of all that a reader is shown of an event."""
    shown = {name: event[name] for name in ("session_id", "seq", "type", "data", "turn_id", "run_id", "at")}
    return hashlib.blake2b(msgspec.json.encode(shown, order="sorted"), digest_size=8).hexdigest()


def text_of(parts: Iterable[Document]) -> str:
    """Return the text of a content value."""
    return "".join(part["text"] for part in parts if part.get("type") == "text")


def events_of(history: History, *kinds: str) -> Sequence[Document]:
    """Return a history's events of some kinds."""
    return [event for event in history.events if event["type"] in kinds]
