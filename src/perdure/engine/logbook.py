"""Brings what runs print on this machine into a shared store, where servers on other machines find it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from perdure.errors import PerdureError
from perdure.store.port import LOG_BYTES, Store

EVERY: Final = 1.0
PIECE: Final = 256 * 1024

log = logging.getLogger("perdure.engine")


class Logbook:
    """Copies the log files of `present()` runs, and once more those of runs that were `ended`, every second."""

    def __init__(self, store: Store, path: Callable[[str], Path], present: Callable[[], Iterable[str]]) -> None:
        self._store = store
        self._path = path
        self._present = present
        self._sent: dict[str, int] = {}
        self._ended: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to copy."""
        self._task = asyncio.get_running_loop().create_task(self._copy_always())

    async def stop(self) -> None:
        """Copy what is left, and end."""
        if self._task is None:
            return
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        with suppress(PerdureError):
            await self.copy()

    def ended(self, run_id: str) -> None:
        """Hear that a run has ended: nothing is added to its log any more."""
        if self._task is not None:
            self._ended.add(run_id)

    async def _copy_always(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            try:
                await self.copy()
            except PerdureError as error:
                log.warning("what runs have printed could not be stored yet: %s", error)
            except Exception:
                log.exception("what runs have printed could not be stored; trying again")

    async def copy(self) -> None:
        """Copy what is new."""
        ended, self._ended = self._ended, set()
        try:
            for run_id in {*self._present(), *ended}:
                await self._copy(run_id)
        except BaseException:
            self._ended |= ended
            raise
        for run_id in ended:
            self._sent.pop(run_id, None)

    async def _copy(self, run_id: str) -> None:
        path = self._path(run_id)
        size = min(_size(path), LOG_BYTES)
        if size == 0:
            return
        sent = self._sent.get(run_id)
        if sent is None:
            sent = await self._stored(run_id)
        while sent < size:
            piece = await asyncio.to_thread(_read, path, sent, min(PIECE, size - sent))
            if not piece:
                break
            await self._store.append_log(run_id, sent, piece)
            sent += len(piece)
            self._sent[run_id] = sent
        self._sent[run_id] = sent

    async def _stored(self, run_id: str) -> int:
        """Return how much an earlier worker of the run has brought into the store."""
        length = 0
        while piece := await self._store.log(run_id, length, PIECE):
            length += len(piece)
        return length


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _read(path: Path, offset: int, limit: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(limit)
