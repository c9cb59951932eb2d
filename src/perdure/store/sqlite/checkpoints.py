"""Moving the write-ahead log into the database, mostly beside the commits and hardly ever in front of one.

A checkpoint on a connection and thread of its own copies nearly all pages while commits go on; what was appended
meanwhile is little, and the writer copies that itself between two commits. Then the log is empty and the next commit
starts it afresh, in place, which also makes commits cheaper than a log that grows.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

import apsw

from perdure.store.sqlite.database import Database, open_writer

PAGES: Final = 4_000


class Checkpoints:
    """Watches the log of `writer`, and calls `finish` (from another thread) when the writer should do the last bit."""

    def __init__(self, writer: Database, file: Path, finish: Callable[[], None]) -> None:
        self._file = file
        self._finish = finish
        self._running = False
        self._side: Database | None = None
        self._threads = ThreadPoolExecutor(1, "perdure-store-checkpoint")
        writer.set_wal_hook(self._after_commit)

    def _after_commit(self, _: Database, __: str, pages: int) -> int:
        if pages >= PAGES and not self._running:
            self._running = True
            self._threads.submit(self._copy)
        return apsw.SQLITE_OK

    def _copy(self) -> None:
        # A failure loses nothing: the log is kept, the next commit past the threshold tries again, and a disk that is
        # full or broken is reported by the commits themselves.
        with suppress(apsw.Error):
            self._side = self._side or open_writer(self._file)
            _checkpoint(self._side)
        self._finish()

    def finish(self, writer: Database) -> None:
        """Copy what was appended since, on the writer's connection between two commits."""
        self._running = False
        with suppress(apsw.Error):
            _checkpoint(writer)

    def close(self) -> None:
        """Wait for the checkpoint under way."""
        self._threads.shutdown()
        if self._side is not None:
            self._side.close()


def _checkpoint(database: Database) -> None:
    database.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
