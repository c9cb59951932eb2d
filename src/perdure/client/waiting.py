"""How a long wait is made of short ones, without I/O."""

from __future__ import annotations

import math
import time
from typing import Final, TypeAlias

from perdure.client.retry import Retry
from perdure.errors import InvalidDuration
from perdure.records.durations import parse_duration

Timeout: TypeAlias = str | float | None
"""A duration such as `"10m"`, a number of seconds, or None for as long as it takes."""

_POLL_SECONDS: Final = 30.0
_SHORTEST: Final = 0.001


def seconds_of(timeout: Timeout) -> float:
    """Return a timeout in seconds, infinity for None; raises `InvalidDuration`."""
    if timeout is None:
        return math.inf
    if isinstance(timeout, str):
        return parse_duration(timeout) / 1e6
    if isinstance(timeout, bool) or not timeout >= 0:
        raise InvalidDuration(timeout)
    return float(timeout)


class Waiting:
    """The time that a wait has left, and how each of its requests is made.

    The first request fails as soon as any other; later ones outlast a restart of the server, until the time is up.
    """

    def __init__(self, timeout: Timeout, retry: Retry) -> None:
        self.until: float = time.monotonic() + seconds_of(timeout)
        self.retry: Retry = retry

    def next_poll(self) -> int:
        """Return the microseconds that the next request is to wait at the server."""
        left = min(max(self.until - time.monotonic(), _SHORTEST), _POLL_SECONDS)
        return math.ceil(left * 1000) * 1000

    def goes_on(self, status: str) -> bool:
        """Tell whether another request is to follow one that ended with `status`."""
        self.retry = self.retry.patient()
        return status == "timeout" and time.monotonic() < self.until
