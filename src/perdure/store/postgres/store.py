"""The scale-out engine of the store port."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Concatenate, ParamSpec, TypeVar

from perdure.errors import Unavailable
from perdure.records.sessions import Ask, Message, Run, SessionHead, Turn
from perdure.rules.commands import Command, Idempotency
from perdure.store.listeners import Listeners
from perdure.store.port import (
    ApiKey,
    Applied,
    Committed,
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
from perdure.store.postgres import address, deployments, feed, keys, logs, reads, retention, schema
from perdure.store.postgres.database import Connection, Database
from perdure.store.postgres.hints import LIVE, OWNERLESS, Changed, Hints
from perdure.store.postgres.leases import Leases
from perdure.store.postgres.writer import Writer
from perdure.store.pruning import check_policy, prune

P = ParamSpec("P")
T = TypeVar("T")


class PostgresStore(Store):
    """Sessions in the schema `perdure` of a PostgreSQL database, which many processes may have open.

    `url` is described in `perdure.store.postgres.address`. `clock` replaces the database's clock, in tests.
    """

    def __init__(self, url: str, *, clock: Callable[[], int] | None = None) -> None:
        self._address = address.parse(url)
        self._clock = clock
        self._listeners = Listeners()
        self._database: Database | None = None
        self._writer: Writer | None = None
        self._hints: Hints | None = None
        self._closing = asyncio.Lock()

    # --- life

    async def open(self) -> None:
        """Connect, and migrate the database to what this version needs."""
        database = Database(self._address)
        try:
            await schema.open_schema(database)
        except BaseException:
            await database.close()
            raise
        self._database = database
        self._writer = Writer(database, self._tell, self._clock, self._overtaken)
        self._hints = Hints(database, self._heard) if self._address.hints is not False else None

    async def close(self) -> None:
        """Finish the commits under way and close all connections."""
        async with self._closing:
            if self._writer is not None and self._database is not None:
                await self._writer.close()
                if self._hints is not None:
                    await self._hints.close()
                await self._database.close()
                self._writer = self._database = None

    def _check_open(self) -> None:
        if self._closing.locked():
            raise Unavailable("The store is closing. Nothing was changed; try again when the server is back.")

    @property
    def _write(self) -> Writer:
        self._check_open()
        if self._writer is None:
            raise RuntimeError("the store is not open")
        return self._writer

    @property
    def _open(self) -> Database:
        self._check_open()
        if self._database is None:
            raise RuntimeError("the store is not open")
        return self._database

    @property
    def leases(self) -> Leases:
        return Leases(self._open)

    @property
    def hints_heard(self) -> bool:
        return self._hints is not None and self._hints.listening.is_set()

    async def changed(self, known: Mapping[str, int]) -> list[SessionHead]:
        assert self._writer is not None
        return [head for head in await self._read(reads.changed, known) if self._writer.learn(head)]

    async def _read(
        self, function: Callable[Concatenate[Connection, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self._open.run(lambda connection: function(connection, *args, **kwargs))

    # --- commands

    async def apply(self, command: Command) -> Applied:
        return await self._write.apply(command)

    def subscribe(self, listener: Listener, interest: Interest | None = None) -> Callable[[], None]:
        return self._listeners.add(listener, interest)

    def _tell(self, committed: Committed) -> None:
        if self._hints is not None:
            self._hints.committed(committed)
        self._listeners.tell(committed)

    def _overtaken(self, sessions: set[str]) -> None:
        if self._hints is not None:
            self._hints.hear(dict.fromkeys(sessions, LIVE | OWNERLESS))

    async def _heard(self, changed: Changed) -> None:
        if not self._listeners or self._writer is None or self._closing.locked():
            return
        matters = [each for each, what in changed.items() if what & OWNERLESS or self._listeners.wants(each)]
        for head in await self._read(reads.heads, matters) if matters else ():
            if self._writer.learn(head):
                what = changed[head.id]
                news = Committed(head, None, (), None, bool(what & LIVE))
                self._listeners.tell(news, ownerless=bool(what & OWNERLESS))

    # --- sessions

    async def head(self, session_id: str) -> SessionHead | None:
        return await self._read(reads.head, session_id)

    async def receipt(self, identity: Idempotency) -> bytes | None:
        return await self._read(reads.receipt, identity)

    async def find_key(self, environment: str, agent: str, key: str) -> str | None:
        return await self._read(reads.find_key, environment, agent, key)

    async def sessions(self, which: SessionFilter, before: str | None, limit: int) -> list[SessionHead]:
        return await self._read(reads.sessions, which, before, limit)

    async def due(self, until: int, limit: int) -> list[tuple[str, int]]:
        return await self._read(reads.due, until, limit)

    async def unsettled(self, after: str, limit: int) -> list[SessionHead]:
        return await self._read(reads.unsettled, after, limit)

    async def snapshot(self, session_id: str, turns: int) -> Snapshot | None:
        return await self._read(reads.snapshot, session_id, turns)

    # --- what is in a session

    async def events(self, session_id: str, after: int, limit: int, max_bytes: int = 4 * 1024 * 1024) -> EventPage:
        return await self._read(reads.events, session_id, after, limit, max_bytes)

    async def turn(self, session_id: str, turn_id: str) -> Turn | None:
        return await self._read(reads.turn, session_id, turn_id)

    async def turn_by_number(self, session_id: str, number: int) -> Turn | None:
        return await self._read(reads.turn_by_number, session_id, number)

    async def turns(self, session_id: str, after: int, limit: int) -> list[Turn]:
        return await self._read(reads.turns, session_id, after, limit)

    async def asks(self, session_id: str, status: str | None, after: str, limit: int) -> list[Ask]:
        return await self._read(reads.asks, session_id, status, after, limit)

    async def ask(self, session_id: str, ask_id: str) -> Ask | None:
        return await self._read(reads.ask, session_id, ask_id)

    async def message(self, session_id: str, message_id: str) -> Message | None:
        return await self._read(reads.message, session_id, message_id)

    async def runs(self, session_id: str, after: int, limit: int) -> list[Run]:
        return await self._read(reads.runs, session_id, after, limit)

    async def run(self, session_id: str, run_id: str) -> Run | None:
        return await self._read(reads.run, session_id, run_id)

    async def feed(self, environment: str, after: str, limit: int) -> FeedPage:
        return await self._read(feed.feed, environment, after, limit)

    # --- environments and deployments

    async def environment(self, environment: str) -> Environment | None:
        return await self._read(deployments.environment, environment)

    async def environments(self) -> list[Environment]:
        return await self._read(deployments.environments)

    async def put_deployment(self, deployment: Deployment, archive: bytes | None = None) -> Deployment:
        return await self._read(deployments.put, deployment, archive)

    async def archive(self, deployment_id: str) -> bytes | None:
        return await self._read(deployments.archive, deployment_id)

    async def promote(self, environment: str, deployment_id: str) -> Environment:
        return await self._read(deployments.promote, environment, deployment_id)

    async def deployment(self, deployment_id: str) -> Deployment | None:
        return await self._read(deployments.deployment, deployment_id)

    async def deployments(self, environment: str, before: str | None, limit: int) -> list[Deployment]:
        return await self._read(deployments.deployments, environment, before, limit)

    # --- retention

    async def retention(self, environment: str) -> Retention:
        return await self._read(retention.retention, environment)

    async def set_retention(self, environment: str, policy: Retention) -> None:
        check_policy(policy)
        await self._read(retention.set_retention, environment, policy)

    async def prune(self, environment: str, now: int, limit: int) -> Pruned:
        return await prune(self, retention.Sweeper(self._open), environment, now, limit)

    # --- who may ask, and what runs print

    async def api_keys(self) -> list[ApiKey]:
        return await self._read(keys.api_keys)

    async def put_api_key(self, key: ApiKey) -> None:
        await self._read(keys.put, key)

    async def end_api_key(self, key_id: str, at: int) -> bool:
        return await self._read(keys.end, key_id, at)

    async def append_log(self, run_id: str, offset: int, data: bytes) -> None:
        await self._read(logs.append, run_id, offset, data)

    async def log(self, run_id: str, offset: int, limit: int) -> bytes:
        return await self._read(logs.read, run_id, offset, limit)
