"""How values are written into columns, whatever the engine."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from perdure.records.sessions import SessionHead
from perdure.rules.dispatch import close_at, is_resumable, is_runnable, wake_at

_CANONICAL: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_STEPS: Final = 64
_HEAD_ENCODER: Final = msgspec.json.Encoder()
_HEAD_DECODER: Final = msgspec.json.Decoder(SessionHead)


def is_canonical(text: str) -> bool:
    """Whether a text is a UUID in the one form in which ids are written."""
    return _CANONICAL.fullmatch(text) is not None


def pack_head(head: SessionHead) -> bytes:
    """Return a head's stored body."""
    return _HEAD_ENCODER.encode(head)


def unpack_head(body: bytes) -> SessionHead:
    """Return a stored head."""
    return _HEAD_DECODER.decode(body)


def columns(head: SessionHead) -> tuple[Any, ...]:
    """Return the indexed columns of a session that change: status, when to look at it, whether it may need an owner.

    "May": a session with an idle run needs none, but is marked nevertheless, since the mark would otherwise change with
    every turn; readers look at the head.
    """
    return (head.status, look_at(head), int(head.run is not None or is_runnable(head) or is_resumable(head)))


def look_at(head: SessionHead) -> int | None:
    """Return when a session that is not in memory is to be looked at, which is never before its wake time.

    The end of a long idleness is put off to a round time, by less than a sixty-fourth of it, and is not taken back
    while a turn runs: so it stays the same from turn to turn, and its index is left alone.
    """
    after = head.limits.close_after_idle
    at = wake_at(head)
    if after is None or head.status != "open" or (at is not None and at != close_at(head)):
        return at
    since = head.active.started_at if head.active is not None else head.idle_since
    if since is None:
        return at
    step = max(after // _STEPS, 1)
    return -(-(since + after) // step) * step
