"""Workers that share a store: who is alive by the database's clock, who takes over, and who may not write any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from postgres_server import PostgresServer
from store_world import World

from perdure.errors import StaleFence
from perdure.records.ids import new_id
from perdure.records.sessions import SessionHead
from perdure.rules import commands
from perdure.store.postgres import PostgresStore, leases

LONG = 60_000_000


@pytest.fixture
async def store(postgres: PostgresServer, postgres_template: str) -> AsyncIterator[PostgresStore]:
    name = postgres.new_database(postgres_template)
    store = PostgresStore(postgres.url(name))
    await store.open()
    yield store
    await store.close()
    postgres.drop_database(name)


async def run_out(store: PostgresStore, worker: str) -> None:
    """Begin a lease and wait until it has run out."""
    assert await store.leases.renew(worker, 1_000)
    while await store.leases.renew(worker, 1):
        await asyncio.sleep(0.002)


async def start(store: PostgresStore, session: SessionHead, worker: str) -> SessionHead:
    made = await store.apply(
        commands.StartRun(
            session_id=session.id,
            fence=session.fence,
            worker=worker,
            run_id=new_id(),
            deployment=new_id(),
            limits=session.limits,
        )
    )
    assert made.head is not None
    return made.head


async def test_a_lease_is_renewed_while_it_lasts_and_never_after(store: PostgresStore) -> None:
    assert await store.leases.renew("a", LONG)
    assert await store.leases.renew("a", LONG)
    await store.leases.release("a")
    assert not await store.leases.renew("a", LONG)
    await run_out(store, "b")
    assert not await store.leases.renew("b", LONG)


async def test_what_needs_an_owner_is_claimed_by_one(store: PostgresStore) -> None:
    world = World(store)
    waiting = [(await world.create(said="x")).id for _ in range(20)]
    await world.create()  # idle: needs nobody
    names = [f"w{number}" for number in range(4)]
    assert await store.leases.claim("w0", 10) == []  # without a lease
    for name in names:
        assert await store.leases.renew(name, LONG)
    claims = await asyncio.gather(*[store.leases.claim(name, 7) for name in names])
    rest = [await store.leases.claim(name, 100) for name in names]
    claimed = [session for claim in [*claims, *rest] for session in claim]
    assert sorted(claimed) == waiting
    assert all(len(claim) <= 7 for claim in claims)


async def test_sessions_of_a_worker_whose_lease_ran_out_go_to_another_and_its_writes_are_refused(
    store: PostgresStore,
) -> None:
    world = World(store)
    session = await world.create(said="first")
    assert await store.leases.renew("old", LONG, "http://old")
    assert await store.leases.claim("old", 10) == [session.id]
    owned = await start(store, session, "old")
    ready = commands.RunReady(session_id=session.id, fence=owned.fence, run_id=owned.run.id)  # type: ignore[union-attr]
    await store.apply(ready)
    assert await store.leases.owner_address(session.id) == "http://old"
    write = await world.write(session)

    assert await store.leases.renew("new", LONG)
    assert await store.leases.claim("new", 10) == []
    await store.leases.release("old")
    assert await store.leases.owner_address(session.id) is None
    assert await store.leases.claim("new", 10) == [session.id]
    assert await store.leases.claim("new", 10) == []
    assert owned.run is not None
    await store.apply(commands.AdoptRun(session_id=session.id, fence=owned.fence, worker="new", run_id=owned.run.id))
    with pytest.raises(StaleFence):
        await store.apply(write)


async def test_a_claim_that_was_never_used_goes_on_to_the_next(store: PostgresStore) -> None:
    session = await World(store).create(said="first")
    assert await store.leases.renew("dies", LONG)
    assert await store.leases.claim("dies", 1) == [session.id]
    await store.leases.release("dies")
    assert await store.leases.renew("lives", LONG)
    assert await store.leases.claim("lives", 1) == [session.id]


async def test_a_claim_whose_answer_was_lost_is_not(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await World(store).create(said="first")
    assert await store.leases.renew("w", LONG)
    real = leases._claim

    async def lose(*args: Any) -> list[str]:
        monkeypatch.setattr(leases, "_claim", real)
        await real(*args)
        raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(leases, "_claim", lose)
    assert await store.leases.claim("w", 10) == [session.id]


async def test_a_session_that_has_ended_its_run_belongs_to_nobody(store: PostgresStore) -> None:
    world = World(store)
    session = await world.create(said="first", start=True)
    assert session.run is not None
    await world.complete(session)
    head = await world.head(session)
    await store.apply(
        commands.Sleep(session_id=session.id, fence=head.fence, run_id=session.run.id, reason="idle", start=False)
    )
    assert await store.leases.renew("w", LONG)
    assert await store.leases.claim("w", 10) == []
    await world.enqueue(session)
    assert await store.leases.claim("w", 10) == [session.id]
