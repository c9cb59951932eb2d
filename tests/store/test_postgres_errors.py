"""What goes wrong between a store and its server, made to happen for real: nobody is told what is not so, nothing is
done twice, nothing is waited for without end, and all is well once the fault is over."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from faulty_proxy import Fault, FaultyProxy
from postgres_server import PostgresServer
from store_world import World, enqueue, key, opening, receipt, said, text

from perdure.errors import StoreError, StoreFull
from perdure.records.ids import new_id
from perdure.store.port import Store
from perdure.store.postgres import PostgresStore, database, writer
from perdure.store.postgres.failures import RETRY_AFTER_SECONDS
from perdure.telemetry import notes

CHILD = Path(__file__).with_name("crash_child.py")


@pytest.fixture
def name(postgres: PostgresServer, postgres_template: str) -> Iterator[str]:
    found = postgres.new_database(postgres_template)
    yield found
    postgres.drop_database(found)


@pytest.fixture
async def proxy(postgres: PostgresServer) -> AsyncIterator[FaultyProxy]:
    proxy = FaultyProxy(postgres.folder / ".s.PGSQL.5432")
    await proxy.open()
    yield proxy
    await proxy.close()


@pytest.fixture
async def stores(name: str) -> AsyncIterator[Callable[[str], Any]]:
    """Opens stores, which are closed in the end."""
    async with opening() as open_at:
        yield open_at


@pytest.fixture
async def straight(stores: Any, postgres: PostgresServer, name: str) -> Store:
    """A store that has nothing to do with any proxy."""
    store: Store = await stores(postgres.url(name))
    return store


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers are waited for only shortly."""
    monkeypatch.setattr(database, "_SHORTEST_PATIENCE", 0.4)


def passes(failure: pytest.ExceptionInfo[StoreError]) -> bool:
    """Whether a caller is told to come back."""
    details = failure.value.details
    return failure.value.status == 503 and details["retry_after_seconds"] == RETRY_AFTER_SECONDS


# --- the outcome of a commit


@pytest.mark.parametrize("fault", ["before", "unanswered", "late"])
@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
async def test_a_commit_whose_answer_is_lost_happens_once(
    proxy: FaultyProxy, stores: Any, straight: Store, name: str, fault: Fault, first: bool
) -> None:
    session = await World(straight).create()
    store = await stores(proxy.url(name, perdure_hints="off"))
    if not first:
        # Both lanes have left a row that says how far they are.
        await asyncio.gather(store.apply(enqueue(session.id, "earlier")), World(store).create())
        await World(store).create()
    proxy.commit = fault
    sent = asyncio.gather(*[store.apply(enqueue(session.id, str(number))) for number in range(3)])
    await proxy.happened.wait()
    if fault == "late":
        # The server gets it only when somebody already asks what has become of it.
        await until_somebody_waits(straight)
        proxy.deliver()
    answers = await sent
    earlier = [] if first else ["earlier"]
    assert await said(straight, session) == [text(word) for word in [*earlier, "0", "1", "2"]]
    assert [receipt(answer)["sequence"] for answer in answers] == [len(earlier) + number for number in (1, 2, 3)]


async def until_somebody_waits(store: Any) -> None:
    async def waits(connection: Any) -> Any:
        looked = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        return await (await connection.execute(looked)).fetchall()

    async with asyncio.timeout(20):
        while not await store._open.run(waits):
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("impatient")
async def test_an_outcome_that_cannot_be_read_is_called_unknown_and_is_found_later(
    proxy: FaultyProxy, stores: Any, straight: Store, name: str
) -> None:
    session = await World(straight).create()
    store = await stores(proxy.url(name, perdure_hints="off", perdure_patience="500ms"))
    proxy.commit = "unanswered"
    sent = asyncio.ensure_future(store.apply(enqueue(session.id, "once", idempotency=key("k"))))
    await proxy.happened.wait()
    proxy.refuse()
    with pytest.raises(StoreError) as failed:
        await sent
    assert passes(failed)
    assert failed.value.details["outcome"] == "unknown"
    await proxy.open()
    again = await store.apply(enqueue(session.id, "once", idempotency=key("k")))
    assert again.replayed
    assert await said(straight, session) == [text("once")]


async def test_a_commit_that_is_acknowledged_with_a_warning_is_read_before_it_is_believed(
    straight: Any, postgres: PostgresServer, name: str
) -> None:
    session = await World(straight).create()
    postgres.sql(WARNING_COMMIT, database=name)
    asked: list[object] = []
    happened = straight._writer._happened

    async def count(lane: object) -> bool:
        asked.append(lane)
        postgres.sql("DROP TRIGGER warn ON perdure.turns", database=name)
        answer: bool = await happened(lane)
        return answer

    straight._writer._happened = count
    await straight.apply(enqueue(session.id, "once"))
    assert len(asked) == 1
    assert await said(straight, session) == [text("once")]


WARNING_COMMIT = """
CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
    RAISE WARNING 'canceling wait for synchronous replication due to user request'; RETURN NULL;
END$$;
CREATE CONSTRAINT TRIGGER warn AFTER INSERT ON perdure.turns DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION warn();
"""


# --- the network


async def test_connections_that_are_reset_all_the_time_cost_nothing_but_time(
    proxy: FaultyProxy, stores: Any, straight: Store, name: str
) -> None:
    session = await World(straight).create()
    store = await stores(proxy.url(name))
    sent: list[asyncio.Future[Any]] = []
    for number in range(40):
        sent.append(asyncio.ensure_future(store.apply(enqueue(session.id, str(number)))))
        proxy.left = 200 + number * 150
        await asyncio.wait(sent, timeout=0.01)
        assert await store.head(session.id) is not None
    proxy.left = None
    answers = await asyncio.gather(*sent)
    assert [receipt(answer)["sequence"] for answer in answers] == list(range(1, 41))
    assert await said(straight, session) == [text(str(number)) for number in range(40)]


async def test_a_server_that_refuses_is_asked_seldom_and_found_again(
    proxy: FaultyProxy, stores: Any, straight: Store, name: str
) -> None:
    session = await World(straight).create()
    store = await stores(proxy.url(name, perdure_patience="1s", perdure_hints="off"))
    proxy.refuse()
    proxy.cut()
    tries = count_tries(store)
    with pytest.raises(StoreError, match="refused") as failed:
        await store.apply(enqueue(session.id))
    assert passes(failed)
    assert 3 < len(tries) < 12
    assert sorted(tries[3:]) == tries[3:]
    await proxy.open()
    assert receipt(await store.apply(enqueue(session.id)))["sequence"] == 1


def count_tries(store: Any) -> list[float]:
    """Return a list of when the store tries to connect from now on."""
    pool = store._open._pool
    connect, tries = pool._connect, []

    async def counted() -> Any:
        tries.append(time.monotonic())
        return await connect()

    pool._connect = counted
    return tries


@pytest.mark.usefixtures("impatient")
async def test_a_network_that_swallows_everything_is_noticed_in_time(
    proxy: FaultyProxy, stores: Any, straight: Store, name: str
) -> None:
    session = await World(straight).create()
    store = await stores(proxy.url(name, perdure_patience="800ms", connect_timeout="2", perdure_hints="off"))
    proxy.stall()
    began = time.monotonic()
    results = await asyncio.gather(
        store.head(session.id), store.apply(enqueue(session.id, "lost")), return_exceptions=True
    )
    assert time.monotonic() - began < 10
    assert all(isinstance(result, StoreError) and result.status == 503 for result in results)
    proxy.cut()
    proxy.resume()
    assert receipt(await store.apply(enqueue(session.id, "found")))["sequence"] == 1
    assert await said(straight, session) == [text("found")]


@pytest.mark.usefixtures("impatient")
async def test_one_connection_that_is_deaf_costs_nobody_an_error(
    proxy: FaultyProxy, stores: Any, straight: Store, name: str
) -> None:
    session = await World(straight).create()
    store = await stores(proxy.url(name, perdure_hints="off"))
    proxy.stall()
    waiting = asyncio.ensure_future(store.apply(enqueue(session.id, "late")))
    await asyncio.sleep(0)
    done, _ = await asyncio.wait([waiting], timeout=0.1)
    assert not done
    # Swallowed for ever, while new connections are fine.
    stalled, proxy._flows = proxy._flows, asyncio.Event()
    proxy._flows.set()
    assert receipt(await waiting)["sequence"] == 1
    stalled.set()
    assert await said(straight, session) == [text("late")]


async def test_who_waits_for_a_connection_does_not_wait_for_ever(
    stores: Any, postgres: PostgresServer, name: str
) -> None:
    store = await stores(postgres.url(name, perdure_connections="3", perdure_patience="300ms", perdure_hints="off"))
    free = asyncio.Event()

    def hold(taken: asyncio.Event) -> asyncio.Future[None]:
        async def work(_: object) -> None:
            taken.set()
            await free.wait()

        holder: asyncio.Future[None] = asyncio.ensure_future(store._open.run(work))
        return holder

    taken = [asyncio.Event() for _ in range(3)]
    holders = [hold(mine) for mine in taken]
    for mine in taken:
        await mine.wait()
    with pytest.raises(StoreError, match="all 3 connections were in use") as failed:
        await store.head(new_id())
    assert passes(failed)
    free.set()
    await asyncio.gather(*holders)
    assert await store.head(new_id()) is None


# --- the server's own errors


async def test_a_deadlock_is_nobodys_result(straight: Store, postgres: PostgresServer, name: str) -> None:
    low, high = sorted([await World(straight).create(), await World(straight).create()], key=lambda head: head.id)
    lock = "SELECT 1 FROM perdure.heads WHERE session = %s FOR UPDATE"
    with psycopg.connect(postgres.url(name)) as rival:
        rival.execute("SET LOCAL deadlock_timeout = '60s'")
        rival.execute(lock, (high.id,))
        answers = asyncio.gather(*[straight.apply(enqueue(session.id)) for session in (low, high)])
        await until_somebody_waits(straight)
        # It gets what it wants only because the other is refused.
        await asyncio.to_thread(rival.execute, lock, (low.id,))
    assert [receipt(answer)["sequence"] for answer in await answers] == [1, 1]
    await flushed_statistics(postgres, name)


async def flushed_statistics(postgres: PostgresServer, name: str) -> None:
    """Check that the server has seen one deadlock; it says so a little later."""
    async with asyncio.timeout(20):
        while postgres.sql("SELECT deadlocks FROM pg_stat_database WHERE datname = %s", name) != [(1,)]:
            await asyncio.sleep(0.05)


async def test_a_lock_that_is_held_too_long_is_asked_for_again(
    straight: Store, postgres: PostgresServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    statement, (standstill, _) = writer._BOUNDS
    monkeypatch.setattr(writer, "_BOUNDS", (statement, (standstill, "50ms")))
    seen: list[str | None] = []
    monkeypatch.setattr(notes, "retried", seen.append)
    session = await World(straight).create()
    with psycopg.connect(postgres.url(name)) as holder:
        holder.execute("SELECT 1 FROM perdure.heads WHERE session = %s FOR UPDATE", (session.id,))
        waiting = asyncio.ensure_future(straight.apply(enqueue(session.id)))
        async with asyncio.timeout(10):
            while "55P03" not in seen:
                await asyncio.sleep(0.01)
    assert receipt(await waiting)["sequence"] == 1


@pytest.fixture
def few(postgres: PostgresServer, name: str) -> Iterator[str]:
    """A user who may have three connections and no more."""
    user = f"few_{name}"
    postgres.sql(f"CREATE ROLE {user} LOGIN CONNECTION LIMIT 3")
    for what in (
        "USAGE ON SCHEMA perdure",
        "ALL ON ALL TABLES IN SCHEMA perdure",
        "ALL ON ALL SEQUENCES IN SCHEMA perdure",
    ):
        postgres.sql(f"GRANT {what} TO {user}", database=name)
    yield user
    postgres.sql(f"DROP OWNED BY {user}", database=name)
    postgres.sql(f"DROP ROLE {user}")


CONNECTED = "SELECT pid FROM pg_stat_activity WHERE application_name = 'perdure' AND usename = %s"
ENDING = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'perdure' AND usename = %s
"""


async def test_too_many_connections_are_shared_and_come_back(
    stores: Any, straight: Store, postgres: PostgresServer, name: str, few: str
) -> None:
    url = postgres.url(name, user=few, perdure_hints="off", perdure_patience="2s")
    session = await World(straight).create()
    with ExitStack() as others:
        for _ in range(2):
            others.enter_context(psycopg.connect(postgres.url(name, user=few)))
        store = await stores(url)
        one = postgres.sql(CONNECTED, few)
        # There is one connection for all of them; asking in vain for more must not cost the one.
        asked = [store.apply(enqueue(session.id)) for _ in range(5)] + [store.head(session.id) for _ in range(20)]
        answers = await asyncio.gather(*asked)
        assert [receipt(answer)["sequence"] for answer in answers[:5]] == [1, 2, 3, 4, 5]
        assert postgres.sql(CONNECTED, few) == one
        postgres.sql(ENDING, few)
        others.enter_context(psycopg.connect(postgres.url(name, user=few)))
        with pytest.raises(StoreError, match="too many connections") as failed:
            await store.apply(enqueue(session.id))
        assert passes(failed)
    assert receipt(await store.apply(enqueue(session.id)))["sequence"] == 6


async def test_backends_that_are_ended_all_the_time_are_nobodys_result(
    straight: Store, postgres: PostgresServer, name: str
) -> None:
    sessions = [await World(straight).create() for _ in range(4)]
    ending = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
    )
    over = asyncio.Event()

    async def end() -> None:
        while not over.is_set():
            await asyncio.to_thread(postgres.sql, ending, name)
            await asyncio.sleep(0.03)

    ends = asyncio.ensure_future(end())
    for number in range(25):
        answers = await asyncio.gather(*[straight.apply(enqueue(session.id, str(number))) for session in sessions])
        assert [receipt(answer)["sequence"] for answer in answers] == [number + 1] * 4
    over.set()
    await ends
    for session in sessions:
        assert await said(straight, session) == [text(str(number)) for number in range(25)]


@pytest.mark.parametrize("options", [{"user": "nobody_we_know"}, {"dbname": "no_such_database"}])
async def test_who_is_not_let_in_is_told_at_once(postgres: PostgresServer, options: dict[str, str]) -> None:
    store = PostgresStore(postgres.url("postgres", **options))
    began = time.monotonic()
    with pytest.raises(StoreError, match="refuses this user or this database"):
        await store.open()
    assert time.monotonic() - began < 5


# --- a full disk


@pytest.fixture
def small_disk(postgres: PostgresServer, name: str) -> Iterator[Path]:
    """A file system of a few megabytes, on which the log of sessions is."""
    folder = postgres.folder / f"small-{name}"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "perdure-test", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("who runs these tests may not mount a small file system")
    try:
        shutil.chown(folder, "nobody", "nogroup")
        postgres.sql(f"CREATE TABLESPACE {name} LOCATION '{folder}'")
        postgres.sql(f"ALTER TABLE perdure.events SET TABLESPACE {name}", database=name)
        yield folder
        postgres.sql("ALTER TABLE perdure.events SET TABLESPACE pg_default", database=name)
        postgres.sql(f"DROP TABLESPACE {name}")
    finally:
        subprocess.run(["umount", str(folder)], check=True)


async def test_a_full_disk_is_told_and_over_when_there_is_room(
    small_disk: Path, stores: Any, postgres: PostgresServer, name: str
) -> None:
    store = await stores(postgres.url(name, perdure_patience="300ms"))
    session = await World(store).create()
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="No space left"):
        filler.write_bytes(bytes(2**23))
    done = 0

    async def fill() -> None:
        nonlocal done
        while done < 100:
            await store.apply(enqueue(session.id, os.urandom(4000).hex()))
            done += 1

    with pytest.raises(StoreFull, match="53100") as failed:
        await fill()
    assert passes(failed)
    assert len(await said(store, session)) == done
    filler.unlink()
    assert receipt(await store.apply(enqueue(session.id)))["sequence"] == done + 1


# --- a process that stands still


async def test_a_process_that_stands_still_in_a_transaction_lets_go_of_its_locks(
    straight: Store, postgres: PostgresServer, name: str
) -> None:
    arguments = (str(CHILD), postgres.url(name, perdure_hints="off"), "store.commit.before", "hang", "3")
    child = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    lines: list[bytes] = []
    while b"reached\n" not in lines:
        lines.append(await child.stdout.readline())
    child.send_signal(signal.SIGSTOP)
    try:
        session = await straight.head(lines[0].split()[1].decode())
        assert session is not None
        began = time.monotonic()
        assert receipt(await straight.apply(enqueue(session.id, "mine")))["sequence"] == 3
        assert time.monotonic() - began < float(writer.STANDSTILL.removesuffix("s")) + 3
        assert (await said(straight, session))[2] == text("mine")
    finally:
        child.kill()
        await child.wait()


async def test_a_process_that_stood_still_and_goes_on_does_its_commit_once(
    straight: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await World(straight).create()
    statement, (_, lock_wait) = writer._BOUNDS
    monkeypatch.setattr(writer, "_BOUNDS", (statement, ("50ms", lock_wait)))
    finish = writer._finish
    ended: list[int] = []

    async def stand_still(connection: Any, statements: Any) -> None:
        if not ended:
            ended.append(connection.info.backend_pid)
            await until_ended(straight, ended[0])
        await finish(connection, statements)

    monkeypatch.setattr(writer, "_finish", stand_still)
    assert receipt(await straight.apply(enqueue(session.id, "once")))["sequence"] == 1
    assert len(ended) == 1
    assert await said(straight, session) == [text("once")]


async def until_ended(store: Any, process: int) -> None:
    async def lives(connection: Any) -> Any:
        looked = f"SELECT 1 FROM pg_stat_activity WHERE pid = {process}"
        return await (await connection.execute(looked)).fetchall()

    async with asyncio.timeout(20):
        while await store._open.run(lives):
            await asyncio.sleep(0.01)
