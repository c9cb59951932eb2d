"""Looks for what hints have not told: they may be lost, all of them, and then cost no more than latency.

Only sessions that somebody here drives, watches or waits for are looked at, and the store returns only those that have
moved. While hints arrive it looks seldom.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from perdure.errors import PerdureError
from perdure.records.sessions import SessionHead
from perdure.store.port import Store

SELDOM: Final = 5.0
OFTEN: Final = 0.25
_STEP: Final = 0.25
_AT_ONCE: Final = 1_000

log = logging.getLogger("perdure.engine")


class Lookout:
    """Calls `missed` with the newest head of each session of `known` that has moved without our hearing of it.

    While no hints arrive it calls `unhinted` too: there may be news of what is no event.
    """

    def __init__(
        self,
        store: Store,
        known: Callable[[], Mapping[str, int]],
        missed: Callable[[SessionHead], None],
        unhinted: Callable[[], None],
    ) -> None:
        self._store = store
        self._known = known
        self._missed = missed
        self._unhinted = unhinted
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.get_running_loop().create_task(self._look_always())

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _look_always(self) -> None:
        waited = 0.0
        while True:
            await asyncio.sleep(_STEP)
            waited += _STEP
            if waited < (SELDOM if self._store.hints_heard else OFTEN):
                continue
            waited = 0.0
            try:
                await self.look()
            except PerdureError as error:
                log.warning("what other processes have committed could not be read, trying again: %s", error)

    async def look(self) -> None:
        """Look once."""
        known = list(self._known().items())
        for start in range(0, len(known), _AT_ONCE):
            for head in await self._store.changed(dict(known[start : start + _AT_ONCE])):
                self._missed(head)
        if not self._store.hints_heard:
            self._unhinted()
