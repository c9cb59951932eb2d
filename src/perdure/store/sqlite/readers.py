"""Readers: connections of their own, used in threads, so that a large page never holds the loop."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from perdure.errors import PerdureError
from perdure.store.sqlite.failures import translate

THREADS: Final = 2
P = ParamSpec("P")
T = TypeVar("T")
Read = Callable[Concatenate[sqlite3.Connection, P], T]


class Readers:
    """A few read-only connections; each read is one transaction and sees one instant of the store."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._own = threading.local()
        self._all: list[sqlite3.Connection] = []
        self._threads = ThreadPoolExecutor(THREADS, "perdure-store-read", initializer=self._connect)

    def _connect(self) -> None:
        database = sqlite3.connect(
            f"{self._file.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
        )
        database.execute("PRAGMA query_only = 1")
        self._own.database = database
        self._all.append(database)

    async def read(self, function: Read[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return `function(connection, …)`, run in one read transaction in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, function, args, kwargs)

    def _run(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        database: sqlite3.Connection = self._own.database
        try:
            database.execute("BEGIN")
            try:
                return function(database, *args, **kwargs)
            finally:
                database.execute("COMMIT")
        except PerdureError:
            raise
        except Exception as error:
            raise translate(error, self._file) from error

    async def close(self) -> None:
        """Wait for the reads under way and close the connections."""
        await asyncio.to_thread(self._threads.shutdown)
        for database in self._all:
            database.close()
