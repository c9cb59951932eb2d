"""An installation of many parts on one PostgreSQL: servers and workers as processes of their own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dev_parts import PROJECT, Dev

sys.path.append(str(Path(__file__).parents[1] / "store"))

from postgres_server import PostgresServer

from perdure.server.place import parse_place

LEASE = "2s"
"""Short, so that a worker that was killed is soon followed by another."""


class Part(Dev):
    """One process of an installation."""

    def __init__(self, store: str, data: Path, *options: str) -> None:
        super().__init__(PROJECT, data, *options)
        self.store = store


class Server(Part):
    """A `perdure serve`; by itself it does not work."""

    def __init__(self, store: str, data: Path, *options: str, works: bool = False) -> None:
        super().__init__(store, data, *options)
        self.works = works

    def command(self) -> list[str]:
        flags = ["--lease", LEASE] if self.works else ["--no-worker"]
        return ["serve", "--store", self.store, "--port", str(self.port), "--data", str(self.data), *flags]


class Worker(Part):
    """A `perdure worker`. Its `data` are its machine: workers on one data folder are on one machine."""

    def __init__(self, store: str, data: Path, *options: str, lease: str = LEASE) -> None:
        super().__init__(store, data, *options)
        self.lease = lease

    def command(self) -> list[str]:
        return ["worker", "--store", self.store, "--data", str(self.data), "--lease", self.lease]


class Parts:
    """Servers and workers on one store, each on a machine of its own unless it is told otherwise."""

    def __init__(self, store: str, folder: Path) -> None:
        self.store = store
        self.folder = folder
        self._parts: list[Dev] = []

    @property
    def shown(self) -> str:
        """The store as it may be shown."""
        return parse_place(self.store).shown

    def server(self, *options: str, works: bool = False) -> Server:
        """Start one more server."""
        return self._started(Server(self.store, self._data("server"), *options, works=works))

    def embedded(self, *options: str) -> Server:
        """Start the one process of an embedded store."""
        return self._started(Server(self.store, Path(self.store), *options, works=True))

    def worker(self, *options: str, data: Path | None = None, lease: str = LEASE) -> Worker:
        """Start one more worker."""
        return self._started(Worker(self.store, data or self._data("worker"), *options, lease=lease))

    def _data(self, kind: str) -> Path:
        return self.folder / f"{kind}{len(self._parts) + 1}"

    def _started(self, part: Any) -> Any:
        self._parts.append(part)
        part.start()
        return part

    def end(self) -> None:
        """End all, and every process of their data folders."""
        for part in self._parts:
            part.end()


@contextmanager
def parts_on(store: str, folder: Path) -> Iterator[Parts]:
    """Parts that are ended when the block is left."""
    parts = Parts(store, folder)
    try:
        yield parts
    finally:
        parts.end()


@contextmanager
def database_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server of the tests' own."""
    server = PostgresServer(fsync=False)
    try:
        yield server
    finally:
        server.remove()
