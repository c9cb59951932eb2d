"""The embedded engine of the store port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

from perdure.errors import DeploymentNotFound, PerdureError
from perdure.records import instants
from perdure.records.sessions import Ask, Message, Run, SessionHead, Turn
from perdure.rules.commands import Command, Idempotency
from perdure.store.listeners import Listeners
from perdure.store.port import (
    Applied,
    Deployment,
    Environment,
    EventPage,
    Listener,
    SessionFilter,
    Snapshot,
    Store,
)
from perdure.store.sqlite import lookups, reads, schema
from perdure.store.sqlite.codec import pack_id
from perdure.store.sqlite.database import Database, one, open_writer
from perdure.store.sqlite.failures import translate
from perdure.store.sqlite.folder import DataFolder
from perdure.store.sqlite.readers import Readers
from perdure.store.sqlite.statements import sql
from perdure.store.sqlite.writer import Writer


class SqliteStore(Store):
    """Sessions in one SQLite database in a data folder, which one process at a time may have open.

    `address` is where the process can be reached, for whoever finds the folder in use; `clock` gives instants.
    """

    def __init__(
        self, folder: Path | str, *, address: str | None = None, clock: Callable[[], int] = instants.now
    ) -> None:
        self._folder = DataFolder(Path(folder))
        self._address = address
        self._clock = clock
        self._listeners = Listeners()
        self._writer: Writer | None = None
        self._readers: Readers | None = None
        self._closing = asyncio.Lock()

    # --- life

    async def open(self) -> None:
        """Lock the folder and open its database, migrating it to this version's schema."""
        self._folder.lock(self._address)
        try:
            database, self._readers = await asyncio.to_thread(_open, self._folder.database)
        except BaseException:
            self._folder.unlock()
            raise
        self._writer = Writer(database, self._folder.database, self._listeners.tell, self._clock)

    def tell_address(self, address: str) -> None:
        """Write into the lock where this process can be reached."""
        self._folder.tell_address(address)

    async def close(self) -> None:
        """Finish the commits under way, close the database and unlock the folder."""
        async with self._closing:
            if self._writer is None or self._readers is None:
                return
            self._writer.refuse_more()
            # The writer is the last to go, because the last connection moves the log into the database.
            await self._readers.close()
            await self._writer.close()
            self._writer = self._readers = None
            self._folder.unlock()

    @property
    def _write(self) -> Writer:
        if self._writer is None:
            raise RuntimeError("the store is not open")
        return self._writer

    @property
    def _read(self) -> Readers:
        if self._readers is None:
            raise RuntimeError("the store is not open")
        return self._readers

    # --- commands

    async def apply(self, command: Command) -> Applied:
        return await self._write.apply(command)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        return self._listeners.add(listener)

    # --- sessions

    async def head(self, session_id: str) -> SessionHead | None:
        entry = self._write.known(session_id)
        return entry.head if entry else await self._read.read(reads.head, session_id)

    async def receipt(self, identity: Idempotency) -> bytes | None:
        return await self._read.read(reads.receipt, identity)

    async def find_key(self, environment: str, agent: str, key: str) -> str | None:
        return await self._read.read(lookups.find_key, (environment, agent, key))

    async def sessions(self, which: SessionFilter, before: str | None, limit: int) -> list[SessionHead]:
        return await self._read.read(reads.sessions, which, before, limit)

    async def due(self, until: int, limit: int) -> list[tuple[str, int]]:
        return await self._read.read(reads.due, until, limit)

    async def unsettled(self, after: str, limit: int) -> list[SessionHead]:
        return await self._read.read(reads.unsettled, after, limit)

    async def snapshot(self, session_id: str, turns: int) -> Snapshot | None:
        return await self._read.read(reads.snapshot, session_id, turns)

    # --- what is in a session

    async def events(self, session_id: str, after: int, limit: int, max_bytes: int = 4 * 1024 * 1024) -> EventPage:
        return await self._read.read(reads.events, session_id, after, limit, max_bytes)

    async def turn(self, session_id: str, turn_id: str) -> Turn | None:
        return await self._read.read(reads.turn, session_id, turn_id)

    async def turn_by_number(self, session_id: str, number: int) -> Turn | None:
        return await self._read.read(reads.turn_by_number, session_id, number)

    async def turns(self, session_id: str, after: int, limit: int) -> list[Turn]:
        return await self._read.read(reads.turns, session_id, after, limit)

    async def asks(self, session_id: str, status: str | None, after: str, limit: int) -> list[Ask]:
        return await self._read.read(reads.asks, session_id, status, after, limit)

    async def ask(self, session_id: str, ask_id: str) -> Ask | None:
        return await self._read.read(reads.ask, session_id, ask_id)

    async def message(self, session_id: str, message_id: str) -> Message | None:
        return await self._read.read(reads.message, session_id, message_id)

    async def runs(self, session_id: str, after: int, limit: int) -> list[Run]:
        return await self._read.read(reads.runs, session_id, after, limit)

    async def run(self, session_id: str, run_id: str) -> Run | None:
        return await self._read.read(reads.run, session_id, run_id)

    # --- environments and deployments

    async def environment(self, environment: str) -> Environment | None:
        return await self._read.read(reads.environment, environment)

    async def environments(self) -> list[Environment]:
        return await self._read.read(reads.environments)

    async def put_deployment(self, deployment: Deployment) -> Deployment:
        return await self._write.run(lambda database: _put_deployment(database, deployment))

    async def promote(self, environment: str, deployment_id: str) -> Environment:
        return await self._write.run(lambda database: _promote(database, environment, deployment_id))

    async def deployment(self, deployment_id: str) -> Deployment | None:
        return await self._read.read(reads.deployment, deployment_id)

    async def deployments(self, environment: str, before: str | None, limit: int) -> list[Deployment]:
        return await self._read.read(reads.deployments, environment, before, limit)


def _open(file: Path) -> tuple[Database, Readers]:
    try:
        schema.check_version(file)
        database = open_writer(file)
        try:
            schema.migrate(database)
            return database, Readers(file)
        except BaseException:
            database.close()
            raise
    except PerdureError:
        raise
    except Exception as error:
        raise translate(error, file) from error


def _put_deployment(database: Database, deployment: Deployment) -> Deployment:
    where = (deployment.environment, deployment.digest)
    row = one(database, sql("deployment_by_digest"), where)
    if row is not None:
        return reads.to_deployment(row)
    database.execute(sql("insert_environment"), (deployment.environment, deployment.created_at))
    values = (*where, deployment.created_at, deployment.source, deployment.live, msgspec.json.encode(deployment.agents))
    database.execute(sql("insert_deployment"), (pack_id(deployment.id), *values))
    return deployment


def _promote(database: Database, environment: str, deployment_id: str) -> Environment:
    found = reads.deployment(database, deployment_id)
    if found is None or found.environment != environment:
        raise DeploymentNotFound(deployment_id)
    database.execute(sql("promote"), (environment, pack_id(deployment_id)))
    promoted = reads.environment(database, environment)
    assert promoted is not None
    return promoted
