"""Readers: connections of their own, used in threads, so that a large page never holds the loop."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from perdure.errors import PerdureError
from perdure.store.sqlite.database import Database, open_reader
from perdure.store.sqlite.failures import closing, translate

THREADS: Final = 2
P = ParamSpec("P")
T = TypeVar("T")
Read = Callable[Concatenate[Database, P], T]


class Readers:
    """A few read-only connections; each read is one transaction and sees one instant of the store."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._free: queue.SimpleQueue[Database] = queue.SimpleQueue()
        for _ in range(THREADS):
            self._free.put(open_reader(file))
        self._threads = ThreadPoolExecutor(THREADS, "perdure-store-read")
        self._closing = False

    async def read(self, function: Read[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return `function(connection, …)`, run in one read transaction in a thread."""
        if self._closing:
            raise closing()
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, function, args, kwargs)

    def _run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        database = self._free.get()
        try:
            with database:
                return function(database, *args, **kwargs)
        except PerdureError:
            raise
        except Exception as error:
            raise translate(error, self._file) from error
        finally:
            self._free.put(database)

    async def close(self) -> None:
        """Wait for the reads under way and close the connections."""
        self._closing = True
        await asyncio.to_thread(self._threads.shutdown)
        for _ in range(THREADS):
            self._free.get().close()
