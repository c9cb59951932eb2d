"""Through PgBouncer, which gives each transaction another connection: much of the conformance suite once more, and what
a pooler adds to what may go wrong."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from pooler import INSTALL, PgBouncer, pgbouncer, version
from postgres_server import PostgresServer
from store_world import Clock, Engine, World, enqueue, opening, receipt, said, text

# All tests of these modules are tests of this one too, with the engine below.
from test_commits import *  # noqa: F403
from test_groups import *  # noqa: F403

from conftest import PostgresEngine
from perdure.errors import StoreError
from perdure.store.port import Store


class PooledEngine(PostgresEngine):
    """The PostgreSQL engine, but that its stores go through a pooler."""

    def __init__(self, pooler: PgBouncer, server: PostgresServer, template: str, clock: Clock) -> None:
        super().__init__(server, template, clock)
        self.address = pooler.url(self.database)


@pytest.fixture(scope="module")
def pooler(postgres: PostgresServer) -> Iterator[PgBouncer]:
    if pgbouncer() is None:
        (pytest.fail if os.geteuid() == 0 else pytest.skip)(INSTALL)
    pooler = PgBouncer(postgres.folder)
    yield pooler
    pooler.remove()


@pytest.fixture
def poolers(postgres: PostgresServer, pooler: PgBouncer) -> Iterator[Callable[..., PgBouncer]]:
    """Starts poolers of other kinds, which are stopped in the end."""
    started: list[PgBouncer] = []

    def start(**options: Any) -> PgBouncer:
        started.append(PgBouncer(postgres.folder, **options))
        return started[-1]

    yield start
    for one in started:
        one.remove()


@pytest.fixture
def engine(pooler: PgBouncer, postgres: PostgresServer, postgres_template: str, clock: Clock) -> Iterator[Engine]:
    engine = PooledEngine(pooler, postgres, postgres_template, clock)
    yield engine
    pooler.ask(f"KILL {engine.database}")
    pooler.ask(f"RESUME {engine.database}")
    postgres.drop_database(engine.database)


@pytest.fixture
def name(engine: PooledEngine) -> str:
    return engine.database


@pytest.fixture
async def stores(engine: Engine, poolers: object) -> AsyncIterator[Callable[[str], Any]]:
    """Opens stores, which are closed in the end."""
    async with opening() as open_at:
        yield open_at


# --- what a store finds out


async def test_a_pooler_is_found_out_and_nothing_is_left_on_its_connections(
    pooler: PgBouncer, stores: Any, postgres: PostgresServer, name: str
) -> None:
    url = pooler.url(name)
    several = [await stores(url) for _ in range(3)]
    await asyncio.gather(*[work(store) for store in several])
    left = """
        SELECT (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_listening_channels()),
               (SELECT count(*) FROM pg_settings WHERE source = 'session' AND name NOT IN ('application_name')),
               (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')
    """
    seen = set()
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        for _ in range(20):
            seen.add(connection.execute(left.encode()).fetchone())
    assert seen == {(0, 0, 0, 0)}
    assert await several[0]._open.run(is_direct) is False
    straight = await stores(postgres.url(name))
    assert await straight._open.run(is_direct) is True


async def is_direct(connection: Any) -> bool:
    found: bool = connection.is_direct
    return found


async def work(store: Store) -> None:
    world = World(store)
    await world.turns(await world.create(), 5)


async def test_prepared_statements_behind_a_pooler_that_knows_none_are_told_of(
    poolers: Callable[..., PgBouncer], stores: Any, name: str
) -> None:
    one, other = [await stores(poolers(size=2).url(name, perdure_prepare="on", perdure_hints="off")) for _ in range(2)]

    async def quarrel() -> None:
        for _ in range(20):
            await asyncio.gather(*[work(store) for store in (one, other, one, other)])

    if version() < (1, 21):
        with pytest.raises(StoreError, match="does not know prepared statements"):
            await quarrel()
    else:
        await quarrel()


# --- hints


async def until_heard(store: Store) -> None:
    async with asyncio.timeout(20):
        while not store.hints_heard:
            await asyncio.sleep(0.01)


async def check_told(told: Store, writer: Store) -> None:
    """Check that one store hears of what another has done."""
    heard = asyncio.Event()
    session = await World(writer).create()
    told.subscribe(lambda news: heard.set() if news.head.id == session.id and news.head.last_turn == 1 else None)
    await World(writer).enqueue(session)
    async with asyncio.timeout(20):
        await heard.wait()


async def test_hints_come_by_a_straight_way_if_one_is_named(
    pooler: PgBouncer, stores: Any, postgres: PostgresServer, name: str
) -> None:
    url = pooler.url(name, perdure_listen=quote(postgres.url(name), safe=""))
    one, other = await stores(url), await stores(url)
    await until_heard(one)
    await check_told(one, other)


async def test_hints_of_a_pooler_that_keeps_sessions_apart_are_heard_when_asked_for(
    poolers: Callable[..., PgBouncer], stores: Any, name: str
) -> None:
    url = poolers(mode="session", size=30).url(name, perdure_hints="on")
    one, other = await stores(url), await stores(url)
    await until_heard(one)
    await check_told(one, other)


async def test_a_store_behind_a_pooler_says_that_it_hears_nothing_and_tells_others_all_the_same(
    pooler: PgBouncer, stores: Any, postgres: PostgresServer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    deaf = await stores(pooler.url(name))
    async with asyncio.timeout(20):
        while "perdure_listen" not in caplog.text:
            await asyncio.sleep(0.01)
    assert not deaf.hints_heard
    straight = await stores(postgres.url(name))
    await until_heard(straight)
    await check_told(straight, deaf)
    assert not deaf.hints_heard


async def test_a_store_that_is_told_to_listen_where_nothing_can_be_heard_knows_that_it_hears_nothing(
    pooler: PgBouncer, stores: Any, name: str
) -> None:
    deaf = await stores(pooler.url(name, perdure_hints="on"))
    world = World(deaf)
    session = await world.create()
    async with asyncio.timeout(20):
        # For longer than it takes to hear, if anything were to be heard.
        while (await world.enqueue(session)) and (await deaf.head(session.id)).last_turn < 50:
            assert not deaf.hints_heard
    assert not deaf.hints_heard


# --- what goes wrong


async def test_a_pooler_that_is_restarted_loses_and_doubles_nothing(
    poolers: Callable[..., PgBouncer], stores: Any, name: str
) -> None:
    pooler = poolers()
    store = await stores(pooler.url(name))
    session = await World(store).create()
    sent: list[asyncio.Future[Any]] = []
    for _ in range(3):
        for restart in (pooler.stop, pooler.start):
            doing = asyncio.ensure_future(asyncio.to_thread(restart))
            while not doing.done():
                sent.append(asyncio.ensure_future(store.apply(enqueue(session.id, str(len(sent))))))
                await asyncio.wait([doing], timeout=0.02)
            await doing
    answers = await asyncio.gather(*sent)
    assert [receipt(answer)["sequence"] for answer in answers] == list(range(1, len(sent) + 1))
    assert await said(store, session) == [text(str(number)) for number in range(len(sent))]


async def test_servers_that_a_pooler_loses_are_nobodys_result(
    pooler: PgBouncer, stores: Any, postgres: PostgresServer, name: str
) -> None:
    store = await stores(pooler.url(name))
    session = await World(store).create()
    ending = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
    for number in range(40):
        answer = asyncio.ensure_future(store.apply(enqueue(session.id, str(number))))
        await asyncio.sleep(0)
        if number % 2:
            await asyncio.to_thread(postgres.sql, ending, name)
        else:
            pooler.ask("RECONNECT")
        assert receipt(await answer)["sequence"] == number + 1
    assert await said(store, session) == [text(str(number)) for number in range(40)]


async def test_a_pool_that_is_exhausted_is_waited_for_and_told_of_when_it_lasts(
    poolers: Callable[..., PgBouncer], stores: Any, name: str
) -> None:
    pooler = poolers(size=1, patience=1)
    patient = [await stores(pooler.url(name)) for _ in range(3)]
    sessions = [await World(store).create() for store in patient]
    await asyncio.gather(*[work(store) for store in patient for _ in range(3)])
    impatient = await stores(pooler.url(name, perdure_patience="500ms"))
    with psycopg.connect(pooler.url(name)) as holder:
        holder.execute("SELECT 1")
        waiting = [asyncio.ensure_future(store.apply(enqueue(sessions[0].id))) for store in patient]
        with pytest.raises(StoreError) as failed:
            await impatient.apply(enqueue(sessions[0].id))
        assert failed.value.details["retry_after_seconds"] > 0
    answers = await asyncio.gather(*waiting)
    assert sorted(receipt(answer)["sequence"] for answer in answers) == [1, 2, 3]
    assert receipt(await impatient.apply(enqueue(sessions[0].id)))["sequence"] == 4
