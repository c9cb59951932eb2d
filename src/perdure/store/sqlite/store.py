"""The embedded engine of the store port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from perdure.errors import PerdureError
from perdure.records import instants
from perdure.records.sessions import Ask, Message, Run, SessionHead, Turn
from perdure.rules.commands import Command, Idempotency
from perdure.store.listeners import Listeners
from perdure.store.port import (
    ApiKey,
    Applied,
    Deployment,
    Environment,
    EventPage,
    FeedPage,
    Interest,
    Listener,
    Pruned,
    Retention,
    SessionFilter,
    Snapshot,
    Store,
)
from perdure.store.pruning import check_policy, prune
from perdure.store.sqlite import deployments, feed, keys, logs, lookups, reads, retention, schema
from perdure.store.sqlite.database import Database, open_writer
from perdure.store.sqlite.failures import translate
from perdure.store.sqlite.folder import DataFolder
from perdure.store.sqlite.readers import Readers
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

    # --- others that share the store: none

    @property
    def leases(self) -> None:
        return None

    @property
    def hints_heard(self) -> bool:
        return True

    async def changed(self, known: Mapping[str, int]) -> list[SessionHead]:
        entries = {session_id: self._write.known(session_id) for session_id in known}
        heads = [entry.head for entry in entries.values() if entry is not None]
        if others := [session_id for session_id, entry in entries.items() if entry is None]:
            heads += await self._read.read(reads.heads, others)
        return [head for head in heads if head.last_seq > known[head.id]]

    # --- commands

    async def apply(self, command: Command) -> Applied:
        return await self._write.apply(command)

    def subscribe(self, listener: Listener, interest: Interest | None = None) -> Callable[[], None]:
        return self._listeners.add(listener, interest)

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

    async def feed(self, environment: str, after: str, limit: int) -> FeedPage:
        return await self._read.read(feed.feed, environment, after, limit)

    # --- environments and deployments

    async def environment(self, environment: str) -> Environment | None:
        return await self._read.read(deployments.environment, environment)

    async def environments(self) -> list[Environment]:
        return await self._read.read(deployments.environments)

    async def put_deployment(self, deployment: Deployment, archive: bytes | None = None) -> Deployment:
        return await self._write.run(lambda database: deployments.put(database, deployment, archive))

    async def archive(self, deployment_id: str) -> bytes | None:
        return await self._read.read(deployments.archive, deployment_id)

    async def promote(self, environment: str, deployment_id: str) -> Environment:
        return await self._write.run(lambda database: deployments.promote(database, environment, deployment_id))

    async def deployment(self, deployment_id: str) -> Deployment | None:
        return await self._read.read(deployments.deployment, deployment_id)

    async def deployments(self, environment: str, before: str | None, limit: int) -> list[Deployment]:
        return await self._read.read(deployments.deployments, environment, before, limit)

    # --- retention

    async def retention(self, environment: str) -> Retention:
        return await self._read.read(retention.retention, environment)

    async def set_retention(self, environment: str, policy: Retention) -> None:
        check_policy(policy)
        await self._write.run(lambda database: retention.set_retention(database, environment, policy))

    async def prune(self, environment: str, now: int, limit: int) -> Pruned:
        return await prune(self, retention.Sweeper(self._write, self._read), environment, now, limit)

    # --- who may ask, and what runs print

    async def api_keys(self) -> list[ApiKey]:
        return await self._read.read(keys.api_keys)

    async def put_api_key(self, key: ApiKey) -> None:
        await self._write.run(lambda database: keys.put(database, key))

    async def end_api_key(self, key_id: str, at: int) -> bool:
        return await self._write.run(lambda database: keys.end(database, key_id, at))

    async def append_log(self, run_id: str, offset: int, data: bytes) -> None:
        await self._write.run(lambda database: logs.append(database, run_id, offset, data))

    async def log(self, run_id: str, offset: int, limit: int) -> bytes:
        return await self._read.read(logs.read, run_id, offset, limit)


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
