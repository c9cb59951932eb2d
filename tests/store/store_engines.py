"""The engines of the conformance tests, each on one place."""

from __future__ import annotations

from pathlib import Path

from postgres_server import PostgresServer
from store_world import Clock, Engine

from perdure.store import open_store
from perdure.store.port import Store
from perdure.store.sqlite import SqliteStore


class SqliteEngine(Engine):
    def __init__(self, folder: Path, clock: Clock) -> None:
        self.address = str(folder / "data")
        self._clock = clock

    def store(self) -> Store:
        return SqliteStore(self.address, clock=self._clock)

    def make_newer(self) -> None:
        import apsw

        database = apsw.Connection(f"{self.address}/perdure.db")
        database.execute("UPDATE schema_version SET version = version + 1")
        database.close()

    def contents(self) -> bytes:
        return Path(self.address, "perdure.db").read_bytes()


class PostgresEngine(Engine):
    def __init__(self, server: PostgresServer, template: str, clock: Clock) -> None:
        self.server = server
        self.database = server.new_database(template)
        self.address = server.url(self.database)
        self._clock = clock

    def store(self) -> Store:
        return open_store(self.address, clock=self._clock)

    def make_newer(self) -> None:
        self.server.sql("INSERT INTO perdure.migrations VALUES (9999, 'post')", database=self.database)

    def contents(self) -> bytes:
        return self.server.dump(self.database).encode()
