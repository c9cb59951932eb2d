"""When a failed model call is tried again: a pure decision, so that its deadline can be stored and outlive a crash."""

from __future__ import annotations

from typing import Final

import msgspec

from perdure.chat.entries import Failure

_SECOND: Final = 1_000_000
_JITTER: Final = 0.25


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often and how patiently a model call is tried again; times are microseconds.

    `retries` counts those after the first try. The wait doubles from `base` up to `cap`. A provider that asks for a
    longer wait gets it, up to `longest`; beyond that the call has failed.
    """

    retries: int = 3
    base: int = 2 * _SECOND
    cap: int = 60 * _SECOND
    longest: int = 3600 * _SECOND


def retry_at(policy: RetryPolicy, failure: Failure, attempt: int, now: int, chance: float) -> int | None:
    """Return the instant of the next try after try number `attempt` (from 1) failed, or None if there is none.

    `chance` is a number from 0 up to 1 that spreads callers which failed together; it only ever makes the wait longer
    than what the provider asked for.
    """
    if not failure.is_retryable or attempt > policy.retries:
        return None
    asked = failure.retry_after or 0
    if asked > policy.longest:
        return None
    backoff = min(policy.cap, policy.base << min(attempt - 1, 32))
    wait = max(asked, round(backoff * (1 - _JITTER)))
    return now + wait + round(min(backoff, policy.cap) * _JITTER * 2 * chance)
