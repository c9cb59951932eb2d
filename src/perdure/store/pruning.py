"""Retention, whatever the engine: what goes in which order, so that it can be broken off anywhere and begun again.

First the floors are raised, so that readers are told; then rows go, those that others point at last; and the commits
of the feed, which tell what is old, go when all that they tell of has gone.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from perdure.crashpoints import areach
from perdure.errors import BadRequest, SessionNotFound
from perdure.rules.retention import Trim
from perdure.store.feed import Place
from perdure.store.port import Pruned, Retention, Store

STEP: Final = 500
"""How many rows one transaction removes at most."""

PRUNES: Final = {
    "turns": "prune_turns",
    "asks": "prune_asks",
    "steps": "prune_steps",
    "memos": "prune_memos",
    "messages": "prune_messages",
    "holds": "prune_holds",
    "logs": "prune_logs",
    "runs": "prune_runs",
    "events": "prune_events",
}
"""What goes of a session, in this order, and by which statement."""

KINDS: Final = tuple(PRUNES)


class Old(NamedTuple):
    """A commit of the feed whose time is over, and the last event that it wrote to each session."""

    place: Place
    lasts: Mapping[str, int]


class Sweep(ABC):
    """What an engine does for it: each call is one short transaction, or a few."""

    @abstractmethod
    async def raise_floor(self, environment: str, before: int, limit: int) -> int:
        """Raise the feed's floor over commits from before a time, `limit` at most; returns over how many."""

    @abstractmethod
    async def old_commits(self, environment: str, before: int, limit: int) -> list[Old]:
        """Return the oldest commits of the feed, as far as they are from before a time."""

    @abstractmethod
    async def drop_commits(self, environment: str, upto: Place) -> None:
        """Remove the oldest commits of the feed, but never the newest of all."""

    @abstractmethod
    async def remove(self, kind: str, floors: Mapping[str, int], before: int, limit: int) -> int:
        """Remove rows of a kind that are below their sessions' floors, `limit` at most; returns how many."""

    @abstractmethod
    async def ended(self, environment: str, before: int, limit: int) -> dict[str, int]:
        """Return sessions that have ended before a time and have no run, with the number of their last event."""

    @abstractmethod
    async def forget(self, session_id: str) -> bool:
        """Remove what is left of a session that has ended; returns whether it was there."""

    @abstractmethod
    async def drop_receipts(self, environment: str, before: int, limit: int) -> int:
        """Remove receipts from before a time, `limit` at most; returns how many."""


def check_policy(policy: Retention) -> None:
    """Raise `BadRequest` for an age that is none."""
    for name in policy.__struct_fields__:
        age = getattr(policy, name)
        if age is not None and age <= 0:
            raise BadRequest(
                f"The age of {name} must be more than nothing, not {age} microseconds. Nothing was changed."
            )


async def prune(store: Store, sweep: Sweep, environment: str, now: int, limit: int) -> Pruned:
    """Remove what is older than an environment's policy allows, about `limit` rows."""
    policy = await store.retention(environment)
    work = _Work(store, sweep, environment, max(limit, 1))
    ages = [age for age in (policy.events, policy.sessions) if age is not None]
    done = True
    if ages:
        done = await work.raise_floor(now - min(ages))
    if done and policy.events is not None:
        done = await work.trim(now - policy.events)
    elif done and policy.sessions is not None:
        # What is below the floor tells nobody anything any more.
        done = await work.drop_commits(now - policy.sessions)
    if done and policy.sessions is not None:
        done = await work.end(now - policy.sessions)
    if done and policy.receipts is not None:
        done = await work.drop_receipts(now - policy.receipts)
    gone = work.gone
    return Pruned(done, gone["sessions"], gone["turns"], gone["events"], gone["receipts"])


class _Work:
    """One call's work. Its methods return whether all is done that is due, or the limit was reached before."""

    def __init__(self, store: Store, sweep: Sweep, environment: str, limit: int) -> None:
        self._store = store
        self._sweep = sweep
        self._environment = environment
        self._limit = limit
        self._left = limit
        self.gone = dict.fromkeys((*KINDS, "sessions", "receipts"), 0)

    async def raise_floor(self, before: int) -> bool:
        raised = await self._sweep.raise_floor(self._environment, before, self._limit)
        await areach("store.prune.floor")
        return raised < self._limit

    async def drop_commits(self, before: int) -> bool:
        old = await self._sweep.old_commits(self._environment, before, self._limit)
        if old:
            await self._sweep.drop_commits(self._environment, old[-1].place)
        return len(old) < self._limit

    async def trim(self, before: int) -> bool:
        """Trim the sessions that old commits wrote to."""
        while self._left > 0:
            size = min(self._left, STEP)
            old = await self._sweep.old_commits(self._environment, before, size)
            lasts: dict[str, int] = {}
            for commit in old:
                for session_id, last in commit.lasts.items():
                    lasts[session_id] = max(last, lasts.get(session_id, 0))
            floors = await self._trimmed(lasts)
            if not await self._remove(floors, before):
                return False
            if old:
                await self._sweep.drop_commits(self._environment, old[-1].place)
                await areach("store.prune.dropped")
            self._left -= len(old)
            if len(old) < size:
                return True
        return False

    async def _trimmed(self, lasts: Mapping[str, int]) -> dict[str, int]:
        """Raise floors, together so that they share commits; returns where they are now."""
        trims = [self._store.apply(Trim(session_id=one, upto=last)) for one, last in lasts.items()]
        answers = await asyncio.gather(*trims, return_exceptions=True)
        floors: dict[str, int] = {}
        for session_id, answer in zip(lasts, answers, strict=True):
            if isinstance(answer, SessionNotFound):
                continue
            if isinstance(answer, BaseException):
                raise answer
            floors[session_id] = answer.receipt
        await areach("store.prune.trimmed")
        return floors

    async def _remove(self, floors: Mapping[str, int], before: int) -> bool:
        """Remove all that is below the floors."""
        for kind in KINDS if floors else ():
            while True:
                if self._left <= 0:
                    return False
                size = min(self._left, STEP)
                gone = await self._sweep.remove(kind, floors, before, size)
                await areach("store.prune.removed", kind)
                self.gone[kind] += gone
                self._left -= gone
                if gone < size:
                    break
        return True

    async def end(self, before: int) -> bool:
        """Remove whole sessions. One goes when its log has gone, so that it is never seen with half of it."""
        while self._left > 0:
            size = min(self._left, STEP // 5)
            ended = await self._sweep.ended(self._environment, before, size)
            floors = await self._trimmed(ended)
            if not await self._remove(floors, before):
                return False
            await self._forget(list(floors))
            self._left -= len(ended)
            if len(ended) < size:
                return True
        return False

    async def _forget(self, sessions: Sequence[str]) -> None:
        for session_id in sessions:
            self.gone["sessions"] += await self._sweep.forget(session_id)
            await areach("store.prune.forgotten")

    async def drop_receipts(self, before: int) -> bool:
        while self._left > 0:
            size = min(self._left, STEP)
            gone = await self._sweep.drop_receipts(self._environment, before, size)
            self.gone["receipts"] += gone
            self._left -= gone
            if gone < size:
                return True
        return False
