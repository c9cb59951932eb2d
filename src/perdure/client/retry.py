"""When a failed request is sent again, and when its failure is the caller's to know."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from typing import Final

import httpx2

from perdure.client.failures import from_transport, may_pass
from perdure.errors import PerdureError

_PATIENT: Final = 16


@dataclass(frozen=True)
class Retry:
    """How requests that failed for a passing reason are sent again.

    `attempts` in all, after waits that begin at `first` seconds and double up to `longest`. Each wait is shortened by
    chance, up to a half, so that clients which lost one server do not all come back at once. A server that says in
    Retry-After when it wants to be asked again is given that time as well, up to `heeded` seconds of it.
    """

    attempts: int = 4
    first: float = 0.1
    longest: float = 2.0
    heeded: float = 10.0

    def delay(self, failures: int, failure: PerdureError | None = None) -> float:
        """Return the seconds to wait after that many failures in a row, of which `failure` is the last."""
        whole: float = min(self.longest, self.first * 2 ** min(failures - 1, 30))
        return self._told(failure) + whole * (0.5 + random.random() / 2)

    def _told(self, failure: PerdureError | None) -> float:
        told = None if failure is None else failure.details.get("retry_after_seconds")
        return min(told, self.heeded) if isinstance(told, int | float) else 0.0

    def patient(self) -> Retry:
        """Return the same with enough attempts to outlast a restart of the server."""
        return replace(self, attempts=max(self.attempts, _PATIENT))


class Attempts:
    """The failures of one request so far. `until` is a time of the monotonic clock after which it is not sent again.

    Only for requests that are safe to repeat: reads, and writes that carry an idempotency key.
    """

    def __init__(self, retry: Retry, key: str | None, until: float | None = None) -> None:
        self._retry = retry
        self._key = key
        self._until = until
        self._failures = 0

    def after(self, error: httpx2.RequestError | PerdureError) -> float:
        """Return the seconds to wait before the request is sent again, or raise the error."""
        self._failures += 1
        failure = error if isinstance(error, PerdureError) else from_transport(error, self._key)
        late = self._until is not None and time.monotonic() >= self._until
        if late or self._failures >= self._retry.attempts or not may_pass(failure):
            raise failure from (None if failure is error else error)
        delay = self._retry.delay(self._failures, failure)
        return delay if self._until is None else min(delay, max(self._until - time.monotonic(), 0))
