"""A primary with a synchronous standby: what was acknowledged outlives the primary, and nothing is acknowledged that
would not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from postgres_cluster import PostgresCluster
from store_world import World, enqueue, key, opening, receipt, said, text

from conftest import need_postgres
from perdure.errors import StoreError, StoreReadOnly
from perdure.records.ids import new_id
from perdure.records.sessions import SessionHead
from perdure.store import open_store
from perdure.store.port import Applied, Store
from perdure.store.postgres import database


@pytest.fixture(scope="module")
def machines() -> Iterator[PostgresCluster]:
    need_postgres()
    # Processes are killed, not machines: what was written is there, flushed or not.
    cluster = PostgresCluster(fsync=False)
    yield cluster
    cluster.remove()


@pytest.fixture
def cluster(machines: PostgresCluster) -> Iterator[PostgresCluster]:
    yield machines
    for node in (machines.primary, *machines.standbys):
        node.thaw()
        if node.pid is None:
            node.start()
    machines.rejoin()


@pytest.fixture
def name(cluster: PostgresCluster) -> Iterator[str]:
    found = cluster.new_database()
    yield found
    cluster.sql(f"DROP DATABASE {found} WITH (FORCE)")


@pytest.fixture
async def stores(cluster: PostgresCluster) -> AsyncIterator[Callable[[str], Any]]:
    """Opens stores, which are closed in the end."""
    async with opening() as open_at:
        yield open_at


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers are waited for only shortly."""
    monkeypatch.setattr(database, "_SHORTEST_PATIENCE", 0.5)


class Load:
    """Callers who each write one thing after the other to a session of their own, until they are told to stop."""

    def __init__(self, store: Store, sessions: list[SessionHead]) -> None:
        self._store = store
        self._stop = False
        self.sessions = sessions
        self.answered: dict[str, list[tuple[int, bytes]]] = {session.id: [] for session in sessions}
        self.longest = 0.0
        self._tasks = [asyncio.ensure_future(self._write(session)) for session in sessions]

    async def _write(self, session: SessionHead) -> None:
        while not self._stop:
            word, began = new_id(), time.monotonic()
            answer = await self._store.apply(enqueue(session.id, word))
            self.longest = max(self.longest, time.monotonic() - began)
            self.answered[session.id].append((receipt(answer)["sequence"], text(word)))

    async def until(self, count: int) -> None:
        """Wait until each caller has had so many more answers."""
        wanted = {session: len(answers) + count for session, answers in self.answered.items()}
        async with asyncio.timeout(60):
            while any(len(self.answered[session]) < number for session, number in wanted.items()):
                for task in self._tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.01)

    async def check(self) -> None:
        """Stop, and check that each answer was true and nothing was done that was not answered."""
        self._stop = True
        await asyncio.gather(*self._tasks)
        for session in self.sessions:
            inputs = await said(self._store, session)
            assert self.answered[session.id] == list(enumerate(inputs, 1))


@pytest.mark.parametrize("prepare", ["on", "off"])
async def test_a_primary_that_is_killed_loses_and_doubles_nothing(
    cluster: PostgresCluster, stores: Any, name: str, prepare: str
) -> None:
    store = await stores(cluster.url(name, perdure_patience="30s", perdure_prepare=prepare))
    load = Load(store, [await World(store).create() for _ in range(10)])
    await load.until(10)
    await asyncio.to_thread(cluster.fail_over)
    await load.until(10)
    await load.check()
    assert load.longest < 10
    assert cluster.sql("SELECT pg_is_in_recovery()") == [(False,)]


@pytest.mark.usefixtures("impatient")
async def test_a_primary_that_stands_still_is_left_and_can_acknowledge_nothing_any_more(
    cluster: PostgresCluster, stores: Any, name: str
) -> None:
    options = {"perdure_patience": "8s", "connect_timeout": "2"}
    store = await stores(cluster.url(name, **options))
    load = Load(store, [await World(store).create() for _ in range(4)])
    await load.until(5)
    cluster.primary.freeze()
    old = await asyncio.to_thread(cluster.fail_over, kill=False)
    await load.until(5)
    await load.check()
    old.thaw()
    # It believes that it is the primary. Nothing but what manages the cluster can keep readers from it.
    stale = await stores(old.url(name, perdure_patience="700ms", perdure_hints="off"))
    assert await stale.head(load.sessions[0].id) is not None
    with pytest.raises(StoreError) as failed:
        await stale.apply(enqueue(load.sessions[0].id, "nobody will ever know"))
    assert failed.value.details["outcome"] == "unknown"
    fresh = await stores(cluster.primary.url(name))
    assert text("nobody will ever know") not in await said(fresh, load.sessions[0])
    await asyncio.to_thread(old.kill)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("interfering", ["nobody", "timeout", "cancel", "terminate"])
async def test_what_no_standby_has_is_not_acknowledged(
    cluster: PostgresCluster, stores: Any, name: str, interfering: str
) -> None:
    store = await stores(cluster.url(name, perdure_patience="900ms"))
    session = await World(store).create()
    if interfering == "timeout":
        cluster.sql(f"ALTER DATABASE {name} SET statement_timeout = '150ms'")
        cluster.sql("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", name)
    await asyncio.to_thread(cluster.standbys[0].stop)
    sent = asyncio.ensure_future(store.apply(enqueue(session.id, "once", idempotency=key("k"))))
    if interfering in ("cancel", "terminate"):
        await interfere(cluster, name, interfering, sent)
    with pytest.raises(StoreError) as failed:
        await sent
    assert failed.value.status == 503
    assert failed.value.details["outcome"] == "unknown"
    assert failed.value.details["retry_after_seconds"] > 0
    # Who only reads need not wait for the standby.
    assert await store.head(session.id) is not None
    await asyncio.to_thread(cluster.standbys[0].start)
    again = await until_acknowledged(store, session)
    assert again.replayed
    assert await said(store, session) == [text("once")]


async def interfere(cluster: PostgresCluster, name: str, how: str, sent: asyncio.Future[Applied]) -> None:
    """End the wait of commits for the standby, as an administrator may."""
    ending = (
        f"SELECT pg_{how}_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query = 'COMMIT' "
        "AND datname = %s"
    )
    while not sent.done():
        await asyncio.to_thread(cluster.sql, ending, name)
        await asyncio.sleep(0.02)


async def until_acknowledged(store: Store, session: SessionHead) -> Applied:
    """Send the command again as callers are told to, until it is answered."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await store.apply(enqueue(session.id, "once", idempotency=key("k")))
            except StoreError as error:
                await asyncio.sleep(error.details["retry_after_seconds"] / 100)


async def test_commits_go_on_when_the_standby_is_back(cluster: PostgresCluster, stores: Any, name: str) -> None:
    store = await stores(cluster.url(name))
    load = Load(store, [await World(store).create() for _ in range(4)])
    await load.until(5)
    await asyncio.to_thread(cluster.standbys[0].restart)
    await load.until(5)
    await load.check()


async def test_a_standby_takes_no_writes_until_it_is_promoted(cluster: PostgresCluster, stores: Any, name: str) -> None:
    session = await World(await stores(cluster.url(name))).create()
    standby = cluster.standbys[0]
    # Both without target_session_attrs, as a single address has none.
    impatient = await stores(standby.url(name, perdure_patience="300ms", perdure_hints="off"))
    patient = await stores(standby.url(name, perdure_patience="30s"))
    with pytest.raises(StoreReadOnly, match="takes no writes") as failed:
        await impatient.apply(enqueue(session.id))
    assert failed.value.status == 503
    assert failed.value.details["retry_after_seconds"] > 0
    sent = asyncio.ensure_future(patient.apply(enqueue(session.id)))
    await asyncio.to_thread(cluster.fail_over)
    assert receipt(await sent)["sequence"] == 1
    assert receipt(await impatient.apply(enqueue(session.id)))["sequence"] == 2


async def test_a_server_that_is_still_starting_is_waited_for(cluster: PostgresCluster, stores: Any, name: str) -> None:
    session = await World(await stores(cluster.url(name))).create()
    standby = cluster.standbys[0]
    await asyncio.to_thread(standby.stop)
    standby.settings["hot_standby"] = "off"
    await asyncio.to_thread(standby.start)
    standby.settings["hot_standby"] = "on"
    seen = open_store(standby.url(name, perdure_patience="300ms"))
    with pytest.raises(StoreError, match="not accepting connections") as failed:
        await seen.open()
    assert failed.value.details["retry_after_seconds"] > 0
    opening = asyncio.ensure_future(stores(standby.url(name, perdure_patience="30s")))
    await asyncio.to_thread(cluster.fail_over)
    store = await opening
    assert receipt(await store.apply(enqueue(session.id)))["sequence"] == 1


async def test_hints_are_heard_again_after_a_failover(cluster: PostgresCluster, stores: Any, name: str) -> None:
    one, other = [await stores(cluster.url(name, perdure_patience="30s")) for _ in range(2)]
    session = await World(one).create()
    await until_heard(one)
    await asyncio.to_thread(cluster.fail_over)
    await World(other).enqueue(session)
    await until_heard(one)
    heard = asyncio.Event()
    one.subscribe(lambda news: heard.set() if news.command is None and news.head.last_turn == 2 else None)
    await World(other).enqueue(session)
    async with asyncio.timeout(20):
        await heard.wait()


async def until_heard(store: Store) -> None:
    async with asyncio.timeout(20):
        while not store.hints_heard:
            await asyncio.sleep(0.01)
