"""Workers that share a store: who is alive by the database's clock, who takes over, and who may not write any more."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

import psycopg
import pytest
from msgspec import structs
from postgres_server import PostgresServer
from store_world import World

from perdure.errors import StaleFence
from perdure.records.ids import new_id
from perdure.records.sessions import ComputerState, SessionHead
from perdure.rules import commands
from perdure.rules.decision import Decision
from perdure.store.postgres import PostgresStore, leases
from perdure.store.postgres.batch import Batch
from perdure.store.postgres.database import trip
from perdure.store.postgres.rows import Rows
from perdure.store.postgres.statements import sql

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
    assert await store.leases.claim("w0", None, 10) == []  # without a lease
    for name in names:
        assert await store.leases.renew(name, LONG)
    claims = await asyncio.gather(*[store.leases.claim(name, None, 7) for name in names])
    rest = [await store.leases.claim(name, None, 100) for name in names]
    claimed = [session for claim in [*claims, *rest] for session in claim]
    assert sorted(claimed) == waiting
    assert all(len(claim) <= 7 for claim in claims)


async def test_sessions_of_a_worker_whose_lease_ran_out_go_to_another_and_its_writes_are_refused(
    store: PostgresStore,
) -> None:
    world = World(store)
    session = await world.create(said="first")
    assert await store.leases.renew("old", LONG, "http://old")
    assert await store.leases.claim("old", None, 10) == [session.id]
    owned = await start(store, session, "old")
    ready = commands.RunReady(session_id=session.id, fence=owned.fence, run_id=owned.run.id)  # type: ignore[union-attr]
    await store.apply(ready)
    assert await store.leases.owner_address(session.id) == "http://old"
    write = await world.write(session)

    assert await store.leases.renew("new", LONG)
    assert await store.leases.claim("new", None, 10) == []
    await store.leases.release("old")
    assert await store.leases.owner_address(session.id) is None
    assert await store.leases.claim("new", None, 10) == [session.id]
    assert await store.leases.claim("new", None, 10) == []
    assert owned.run is not None
    await store.apply(commands.AdoptRun(session_id=session.id, fence=owned.fence, worker="new", run_id=owned.run.id))
    with pytest.raises(StaleFence):
        await store.apply(write)


async def test_those_who_are_alive_are_seen(store: PostgresStore) -> None:
    assert await store.leases.alive() == []
    assert await store.leases.renew("b", LONG, "http://b", "machine-b")
    assert await store.leases.renew("a", LONG)
    await run_out(store, "c")
    first, second = await store.leases.alive()
    assert (first.worker, first.address, first.machine) == ("a", None, None)
    assert (second.worker, second.address, second.machine) == ("b", "http://b", "machine-b")
    assert LONG / 2 < second.expires_in <= LONG


async def test_a_session_whose_computer_is_on_a_machine_waits_for_workers_of_that_machine(store: PostgresStore) -> None:
    world = World(store)
    at_home = ComputerState(new_id(), "template", home="here")
    bound = await world.create(host="process", computer=at_home, said="x")
    free = await world.create(host="process", computer=ComputerState(new_id(), "template"), said="x")
    for worker in ("elsewhere", "nowhere", "here"):
        assert await store.leases.renew(worker, LONG)
    assert await store.leases.claim("elsewhere", "there", 10) == [free.id]
    assert await store.leases.claim("nowhere", None, 10) == []
    assert await store.leases.claim("here", "here", 10) == [bound.id]
    for session, worker in ((bound, "here"), (free, "elsewhere")):
        await start(store, session, worker)
        await store.leases.release(worker)
    assert await store.leases.claim("nowhere", "there", 10) == [free.id]
    assert await store.leases.renew("again", LONG)
    assert await store.leases.claim("again", "here", 10) == [bound.id]


async def test_a_session_that_finds_a_home_in_a_commit_keeps_it(store: PostgresStore, postgres: PostgresServer) -> None:
    world = World(store)
    session = await world.create(host="process", computer=ComputerState(new_id(), "template"), said="x")
    head = await world.head(session)
    moved = structs.replace(head, computer=structs.replace(head.computer, home="here"))  # type: ignore[type-var]
    rows = Rows()
    batch = Batch({}, None)
    rows.add(session.id, Decision(moved, [], []), batch._columns(head), batch._columns(moved))
    await store._open.run(lambda connection: trip(connection, rows.statements(lambda _: False, 0)))
    assert await store.leases.renew("w", LONG)
    assert await store.leases.claim("w", "there", 10) == []
    assert await store.leases.claim("w", "here", 10) == [session.id]


async def test_sessions_of_a_worker_that_never_had_a_lease_are_claimed(store: PostgresStore) -> None:
    """As those of an installation that was copied here are."""
    world = World(store)
    sessions = [(await world.create(said="x", start=True)).id for _ in range(3)]
    assert await store.leases.renew("w", LONG)
    assert sorted(await store.leases.claim("w", None, 10)) == sessions


SLEEPING = 200_000


async def test_sleeping_sessions_cost_a_claim_nothing(store: PostgresStore, postgres: PostgresServer) -> None:
    """What a claim reads is counted, with many sessions that sleep and many that a living worker owns."""
    name = str(store._address.conninfo).partition("?")[0].rpartition("/")[2]
    postgres.sql(
        "INSERT INTO perdure.sessions (id, environment, agent, status, owned, worker, home) "
        "SELECT gen_random_uuid(), 'demo/production', 'a', 'open', mod(n, 10) = 0, "
        "CASE WHEN mod(n, 2) = 0 THEN 'lives' END, CASE WHEN mod(n, 3) = 0 THEN 'here' ELSE '' END "
        f"FROM generate_series(1, {SLEEPING}) n",
        database=name,
    )
    postgres.sql("ANALYZE perdure.sessions", database=name)
    for worker in ("lives", "w"):
        assert await store.leases.renew(worker, LONG, None, "here")
    claimable = [(await World(store).create(said="x")).id for _ in range(3)]
    statements = {
        "claim_free": ("w", 100, ["", "here"]),
        "dead_owners": (),
        "claim_from_dead": ("w", 100, ["", "here"], ["dead", "gone"]),
    }
    for statement, values in statements.items():
        plan = explain(postgres, name, sql(statement), values)
        assert "Seq Scan on sessions" not in plan, plan
        assert rows_read(plan) <= 20, plan
    assert sorted(await store.leases.claim("w", "here", 10)) == claimable


def explain(postgres: PostgresServer, database: str, statement: str, values: Sequence[object]) -> str:
    """Return the plan of a statement, with what it has read in a run that is undone."""
    with psycopg.connect(postgres.url(database), cursor_factory=psycopg.RawCursor) as connection:
        rows = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT TEXT) {statement}", values).fetchall()
        connection.rollback()
    return "\n".join(str(line) for (line,) in rows)


def rows_read(plan: str) -> int:
    """Return how many rows the scans of `sessions` have found or thrown away."""
    found = re.findall(r"Scan.* on sessions.*actual time=\S+ rows=(\d+) loops=(\d+)", plan)
    return sum(int(rows) * int(loops) for rows, loops in found) + sum(map(int, re.findall(r"Removed.*: (\d+)", plan)))


async def test_a_claim_that_was_never_used_goes_on_to_the_next(store: PostgresStore) -> None:
    session = await World(store).create(said="first")
    assert await store.leases.renew("dies", LONG)
    assert await store.leases.claim("dies", None, 1) == [session.id]
    await store.leases.release("dies")
    assert await store.leases.renew("lives", LONG)
    assert await store.leases.claim("lives", None, 1) == [session.id]


async def test_a_claim_whose_answer_was_lost_is_not(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await World(store).create(said="first")
    assert await store.leases.renew("w", LONG)
    real = leases._claim

    async def lose(*args: Any) -> list[str]:
        monkeypatch.setattr(leases, "_claim", real)
        await real(*args)
        raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(leases, "_claim", lose)
    assert await store.leases.claim("w", None, 10) == [session.id]


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
    assert await store.leases.claim("w", None, 10) == []
    await world.enqueue(session)
    assert await store.leases.claim("w", None, 10) == [session.id]
