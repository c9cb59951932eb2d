"""Instants: whole microseconds since 1970-01-01 UTC inside, RFC 3339 with six digits and `Z` on the wire."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Final

SECOND: Final = 1_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH: Final = datetime(1970, 1, 1)


def now() -> int:
    """Return the present instant of this machine's clock."""
    return time.time_ns() // 1000


def format_instant(instant: int) -> str:
    """Return `2026-12-01T00:17:03.123456Z` for an instant."""
    moment = _NAIVE_EPOCH + timedelta(microseconds=instant)
    return moment.isoformat("T", "microseconds") + "Z"  # several times faster than strftime, and each event has one


def parse_instant(text: str) -> int:
    """Return the instant of an RFC 3339 text; raises ValueError when it has no zone or is no time."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return (moment - _EPOCH) // timedelta(microseconds=1)
