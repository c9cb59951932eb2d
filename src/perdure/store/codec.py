"""How values are written into columns, whatever the engine."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from perdure.records.sessions import SessionHead
from perdure.rules.dispatch import is_runnable, wake_at

_CANONICAL: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
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
    """Return the indexed columns of a session that change: status, wake time, whether it may need an owner.

    "May": a session with an idle run needs none, but is marked nevertheless, since the mark would otherwise change with
    every turn; readers look at the head.
    """
    return (head.status, wake_at(head), int(head.run is not None or is_runnable(head)))
