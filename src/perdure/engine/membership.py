"""Ownership by lease, where several workers share a store.

A worker renews one lease, and claims sessions that need an owner and have none that is alive. When it cannot be sure of
its lease any more it stops all its handlers and begins again under another name: what it had is then claimed by whoever
comes first, itself included. Nothing depends on its being quick or right about this: the fence refuses what comes late.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from perdure.crashpoints import areach
from perdure.engine.clock import SharedClock
from perdure.engine.ownership import Ownership
from perdure.errors import PerdureError
from perdure.records.ids import new_id
from perdure.records.instants import SECOND
from perdure.records.sessions import SessionHead
from perdure.store.leases import Leases
from perdure.store.port import Committed
from perdure.telemetry import notes

CLAIM: Final = 64
_LOOK_SELDOM: Final = 1.0
_LOOK_OFTEN: Final = 0.25
_RENEWALS: Final = 3
_RETRIES: Final = 10
_LAST_WORD: Final = 2.0

log = logging.getLogger("perdure.engine")


class Member(Ownership):
    """One of several workers. `claimed` is given the ids of sessions to drive, `lost` why the lease is gone."""

    shares = True

    def __init__(
        self,
        leases: Leases,
        machine: str,
        lease: float,
        *,
        address: str | None = None,
        claimed: Callable[[list[str]], Awaitable[None]],
        lost: Callable[[str], Awaitable[None]],
        is_hinted: Callable[[], bool],
        clock: SharedClock,
    ) -> None:
        self.worker_id = new_id()
        self._leases = leases
        self._machine = machine
        self._lease = lease
        self._address = address
        self._claimed = claimed
        self._lost = lost
        self._is_hinted = is_hinted
        self._clock = clock
        self._until = 0.0
        self._alive: frozenset[str] = frozenset()
        self._claiming = True
        self._doubted = False
        self._something_is_free = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    # --- life

    async def start(self) -> None:
        """Begin a lease and claim what is free. Raises `StoreError` when the store cannot be reached."""
        await self._renew()
        self._something_is_free.set()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._keep_always()), loop.create_task(self._claim_always())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._until = 0.0
        try:
            async with asyncio.timeout(_LAST_WORD):
                await self._leases.release(self.worker_id)
        except (PerdureError, TimeoutError) as error:
            log.warning("the lease could not be given back, so others wait until it has run out: %s", error)

    def stop_claiming(self) -> None:
        self._claiming = False

    # --- the lease

    @property
    def works(self) -> bool:
        return self._claiming and asyncio.get_running_loop().time() < self._until

    async def _renew(self) -> bool:
        # From before the store was asked, so that its lease never ends before ours.
        asked = asyncio.get_running_loop().time()
        duration = int(self._lease * SECOND)
        if not await self._leases.renew(self.worker_id, duration, self._address, self._machine):
            return False
        await self._clock.sync(self._leases.now)
        self._alive = frozenset([each.worker for each in await self._leases.alive()])
        # Last, so that who is told that this failed has no lease which nobody minds.
        self._until = asked + self._lease
        return True

    async def _keep_always(self) -> None:
        while True:
            reason = await self._keep()
            self._until = 0.0
            notes.lost_lease()
            log.error("worker %s has lost its lease: %s; its handlers are stopped", self.worker_id, reason)
            await areach("engine.lease.lost")
            await self._lost(reason)
            await self._begin_again()

    async def _keep(self) -> str:
        """Renew the lease for as long as that succeeds; returns why it does not any more."""
        too_late = f"it could not be renewed within {self._lease:g} s"
        pause = self._lease / _RENEWALS
        while True:
            await asyncio.sleep(min(pause, self._left()))
            left = self._left()
            if left <= 0:
                return too_late
            try:
                async with asyncio.timeout(left):
                    renewed = await self._renew()
            except TimeoutError:
                return too_late
            except PerdureError as error:
                log.warning("the lease of worker %s could not be renewed, trying again: %s", self.worker_id, error)
                pause = self._lease / _RETRIES
                continue
            if not renewed:
                return "it had run out before it was renewed"
            if self._left() <= 0:
                # The answer was so long on its way, or this process stood still meanwhile.
                return too_late
            pause = self._lease / _RENEWALS

    def _left(self) -> float:
        return self._until - asyncio.get_running_loop().time()

    async def _begin_again(self) -> None:
        self.worker_id = new_id()
        self._doubted = False
        while True:
            try:
                if not await self._renew():
                    self.worker_id = new_id()
                elif self._left() > self._lease / 2:
                    log.warning("this worker goes on as %s", self.worker_id)
                    self._something_is_free.set()
                    return
                else:
                    # The answer was long on its way: a lease that is about to run out is none to begin with.
                    continue
            except PerdureError as error:
                log.warning("no lease can be had, trying again: %s", error)
            await asyncio.sleep(self._lease / _RETRIES)

    # --- claims

    async def _claim_always(self) -> None:
        while True:
            pause = _LOOK_SELDOM if self._is_hinted() else _LOOK_OFTEN
            with suppress(TimeoutError):
                async with asyncio.timeout(min(pause, self._lease) * random.uniform(0.5, 1.0)):
                    await self._something_is_free.wait()
            self._something_is_free.clear()
            try:
                async with asyncio.timeout(self._lease):
                    await self._claim()
            except (PerdureError, TimeoutError) as error:
                self._doubted = True
                log.warning("nothing could be claimed, trying again: %s", str(error) or "no answer came in time")
            except Exception:
                self._doubted = True
                log.exception("what was claimed could not be taken over; trying again")

    async def _claim(self) -> None:
        if not self.works:
            return
        worker = self.worker_id
        found = await self._leases.claim(worker, self._machine, CLAIM)
        await areach("engine.claim.after")
        if worker != self.worker_id:
            # What was claimed under a name that is lost meanwhile is free again when its lease has run out.
            return
        if len(found) >= CLAIM:
            self._something_is_free.set()
        if self._doubted:
            # Whatever was claimed without our hearing of it: nobody else looks after it while we are alive.
            found += await self._leases.claimed(worker)
        if found:
            await self._claimed(found)
        self._doubted = False

    # --- what is whose

    def wants(self, news: Committed, /) -> bool:
        head = news.head
        if head.run is not None:
            if head.worker not in self._alive:
                self._something_is_free.set()
            return head.worker == self.worker_id and self.works
        if not self._has_home_here(head) or not self.works:
            return False
        if news.command is None:
            # Others hear of it too: who claims it first has it.
            self._something_is_free.set()
            return False
        return True

    def _has_home_here(self, head: SessionHead) -> bool:
        return head.computer is None or head.computer.home in (None, self._machine)

    async def may_drive(self, head: SessionHead, /) -> bool:
        if head.run is None or head.worker == self.worker_id:
            return True
        # Another may have begun a run between the claim and the reading of the head, without a claim of its own.
        self._alive = frozenset([each.worker for each in await self._leases.alive()])
        return head.worker not in self._alive

    def keeps(self, head: SessionHead, /) -> bool:
        return head.worker == self.worker_id

    def serves_timer_of(self, head: SessionHead, /) -> bool:
        """Sessions of workers that are alive are theirs; all others are served by one of those that are alive."""
        if head.run is not None and head.worker in self._alive:
            return head.worker == self.worker_id
        return self.worker_id == min(self._alive, default=self.worker_id)
