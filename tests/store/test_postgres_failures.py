"""PostgreSQL shared, restarted, cut off and overloaded: nothing is lost, nothing done twice, nothing stays behind."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from faulty_proxy import FaultyProxy
from postgres_server import USER, PostgresServer
from store_world import ADA, NO_LIMITS, World, enqueue, key, receipt, text

from conftest import need_postgres
from perdure.errors import StaleFence, StoreError, StoreReadOnly
from perdure.records import instants
from perdure.records.ids import new_id
from perdure.records.sessions import SessionHead
from perdure.rules import commands
from perdure.store import open_store
from perdure.store.port import Applied, Committed, Store
from perdure.store.postgres import PostgresStore, hints, reads, writer
from perdure.store.postgres.hints import pack, unpack

CHILD = Path(__file__).with_name("postgres_child.py")


@pytest.fixture(scope="module")
def crashing() -> Iterator[PostgresServer]:
    """A server for tests that stop it; it flushes what it says it has."""
    need_postgres()
    server = PostgresServer()
    yield server
    server.remove()


@pytest.fixture
def server(request: pytest.FixtureRequest) -> PostgresServer:
    found: PostgresServer = request.getfixturevalue("crashing" if "restarts" in request.keywords else "postgres")
    return found


@pytest.fixture
def database(request: pytest.FixtureRequest, server: PostgresServer) -> Iterator[str]:
    shared = "restarts" not in request.keywords
    name = server.new_database(request.getfixturevalue("postgres_template") if shared else None)
    yield name
    server.drop_database(name)


@pytest.fixture
async def store(server: PostgresServer, database: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(server.url(database))
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def other(server: PostgresServer, database: str, store: Store) -> AsyncIterator[Store]:
    """Another server on the same database, which soon gives up."""
    other = open_store(server.url(database, perdure_patience="700ms"))
    await other.open()
    yield other
    await other.close()


async def check_whole(store: Store, session: SessionHead, turns: int) -> None:
    """Check that a session has so many queued turns, each once, and a log without a gap."""
    found = await store.turns(session.id, 0, 1000)
    assert [turn.number for turn in found] == list(range(1, turns + 1))
    log = await World(store).log(session)
    assert [number for number, _ in log] == list(range(1, turns + 2))
    head = await store.head(session.id)
    assert head is not None
    assert (head.last_turn, head.last_seq) == (turns, turns + 1)


# --- several servers


async def test_processes_that_write_to_one_session_leave_no_gap(
    server: PostgresServer, database: str, store: Store
) -> None:
    session = await World(store).create()
    arguments = (str(CHILD), server.url(database), session.id, "60")
    children = [
        await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
        for _ in range(2)
    ]
    mine = await asyncio.gather(*[store.apply(enqueue(session.id)) for _ in range(60)])
    theirs = [(await child.communicate())[0].split() for child in children]
    given = [receipt(answer)["sequence"] for answer in mine] + [int(number) for line in theirs for number in line]
    assert sorted(given) == list(range(1, 181))
    await check_whole(store, session, 180)


async def test_an_owner_whose_session_was_taken_over_elsewhere_is_refused(store: Store, other: Store) -> None:
    session = await World(store).create(said="first", start=True)
    assert session.run is not None
    stale = await World(store).write(session)
    await other.apply(
        commands.AdoptRun(session_id=session.id, fence=session.fence, worker="worker-2", run_id=session.run.id)
    )
    with pytest.raises(StaleFence):
        await store.apply(stale)
    await World(other).output(session)
    assert await store.head(session.id) == await other.head(session.id)


async def test_one_idempotency_key_on_two_servers_is_done_once(store: Store, other: Store) -> None:
    def create(turn: str) -> commands.CreateSession:
        return commands.CreateSession(
            session_id=new_id(),
            environment="demo/development",
            agent="a",
            deployment=new_id(),
            host="inline",
            limits=NO_LIMITS,
            key=turn,
            idempotency=key(turn),
        )

    for round_number in range(15):
        name = f"k{round_number}"
        answers = await asyncio.gather(*[at.apply(create(name)) for at in (store, other, store, other)])
        assert len({answer.receipt for answer in answers}) == 1
        assert [answer.replayed for answer in answers].count(False) == 1


async def test_time_is_the_databases(store: Store, monkeypatch: pytest.MonkeyPatch, server: PostgresServer) -> None:
    monkeypatch.setattr(instants, "now", lambda: 0)
    ((before,),) = server.sql("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
    session = await World(store).create()
    assert before < session.created_at < int(str(before)) + 60_000_000  # type: ignore[operator]


# --- hints


class Heard:
    """What a store's listener was told of others' commits."""

    def __init__(self, store: Store) -> None:
        self.heads: dict[str, SessionHead] = {}
        self.count = 0
        self._more = asyncio.Event()
        store.subscribe(self._told)

    def _told(self, committed: Committed) -> None:
        if committed.command is None:
            assert list(committed.events) == []
            self.count += 1
            self.heads[committed.head.id] = committed.head
            self._more.set()

    async def until(self, head: SessionHead) -> None:
        async with asyncio.timeout(10):
            while self.heads.get(head.id) != head:
                self._more.clear()
                await self._more.wait()


async def listening(store: PostgresStore) -> None:
    assert store._hints is not None
    async with asyncio.timeout(10):
        await store._hints.listening.wait()


async def test_commits_of_others_are_heard_of_together(store: PostgresStore, other: Store) -> None:
    await listening(store)
    heard = Heard(store)
    mine = await World(store).create()
    sessions = [await World(other).create() for _ in range(3)]
    for _ in range(40):
        await asyncio.gather(*[other.apply(enqueue(session.id)) for session in sessions])
    for session in sessions:
        await heard.until(await World(other).head(session))
    assert heard.count < 3 * 41
    assert mine.id not in heard.heads


async def test_hints_come_back_after_their_connection_was_lost(
    store: PostgresStore, other: Store, server: PostgresServer
) -> None:
    await listening(store)
    heard = Heard(store)
    assert store._hints is not None
    server.sql("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE query = 'LISTEN perdure'")
    while store._hints.listening.is_set():
        await asyncio.sleep(0)
    session = await World(other).create()
    await listening(store)
    await World(other).enqueue(session)
    await heard.until(await World(other).head(session))
    # A connection that was left open would be complained of now.
    gc.collect()


async def test_whoever_says_what_matters_hears_of_nothing_else(
    store: PostgresStore, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing else is read for it: of what others commit, each process bears what is its own."""
    await listening(store)
    mine, theirs = [await World(other).create() for _ in range(2)]
    looked: list[str] = []
    read = reads.heads

    async def looking(connection: Any, sessions: list[str]) -> list[SessionHead]:
        looked.extend(sessions)
        return await read(connection, sessions)

    monkeypatch.setattr(reads, "heads", looking)
    heads: dict[str, SessionHead] = {}
    told = asyncio.Event()

    def hear(committed: Committed) -> None:
        heads[committed.head.id] = committed.head
        told.set()

    store.subscribe(hear, lambda session_id: session_id == mine.id)
    await World(other).create(said="a turn that needs an owner")
    for session in (theirs, mine):
        await other.apply(commands.Close(session_id=session.id, control_id=new_id(), issuer=ADA))
    async with asyncio.timeout(10):
        while len(heads) < 2 or heads[mine.id].status != "closed":
            told.clear()
            await told.wait()
    assert theirs.id not in {*heads, *looked}


async def test_a_store_that_hears_nothing_any_more_knows_it_and_listens_anew(
    server: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "QUIET", 0.2)
    monkeypatch.setattr(hints, "ECHO", 0.3)
    proxy = FaultyProxy(server.folder / ".s.PGSQL.5432")
    await proxy.open()
    # Only what it hears goes through the proxy: its connection stays open, and nothing comes any more.
    store = PostgresStore(
        server.url(database, perdure_listen=quote(f"postgresql://{USER}@127.0.0.1:{proxy.port}/{database}", safe=""))
    )
    await store.open()
    await listening(store)
    assert store.hints_heard
    proxy.stall()
    async with asyncio.timeout(10):
        while store.hints_heard:
            await asyncio.sleep(0.01)
    proxy.resume()
    await listening(store)
    assert proxy.connected > 1
    await store.close()
    await proxy.close()


def test_hints_of_many_sessions_fit_into_notifications() -> None:
    changed = {new_id(): number % 4 for number in range(1000)}
    messages = list(pack(new_id(), changed))
    assert all(len(message) < 8000 for message in messages)
    me = new_id()
    found: dict[str, int] = {}
    for message in messages:
        found |= unpack(me, message)
    assert found == changed
    assert unpack(me, next(pack(me, changed))) == {}
    assert unpack(me, new_id() + "of another version") == {}


# --- connections lost


class Cutter:
    """Ends the connection of the next transaction, before or after its commit was sent."""

    def __init__(self, server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self._server = server
        self._trip = writer.trip
        self.when = ""
        monkeypatch.setattr(writer, "trip", self._cut)

    async def _cut(self, connection: Any, statements: Any) -> Any:
        when, self.when = (self.when, "") if statements[-1] == writer._COMMIT else ("", self.when)
        if when == "before":
            self._end(connection)
        found = await self._trip(connection, statements)
        if when == "after":
            self._end(connection)
            await connection.execute("SELECT 1")
        return found

    def _end(self, connection: Any) -> None:
        self._server.sql("SELECT pg_terminate_backend(%s, 5000)", connection.info.backend_pid)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_connection_lost_around_the_commit_changes_nothing_for_anybody(
    store: Store, server: PostgresServer, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    session = await World(store).create()
    cutter = Cutter(server, monkeypatch)
    cutter.when = when
    answers = await asyncio.gather(*[store.apply(enqueue(session.id, str(number))) for number in range(5)])
    assert [receipt(answer)["sequence"] for answer in answers] == [1, 2, 3, 4, 5]
    assert cutter.when == ""
    await check_whole(store, session, 5)


SLOW_COMMIT = """
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.4); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON perdure.turns DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION slow();
"""
COMMITTING = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = 'COMMIT' AND wait_event = 'PgSleep'"


async def test_a_backend_that_is_ended_in_the_middle_of_its_commit(
    store: Store, server: PostgresServer, database: str
) -> None:
    session = await World(store).create()
    server.sql(SLOW_COMMIT, database=database)
    answer = asyncio.ensure_future(store.apply(enqueue(session.id)))
    while not await asyncio.to_thread(server.sql, COMMITTING):
        assert not answer.done()
    assert receipt(await answer)["sequence"] == 1
    await check_whole(store, session, 1)


@pytest.mark.restarts
@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_a_server_that_is_restarted_loses_and_doubles_nothing(
    store: Store, server: PostgresServer, mode: str
) -> None:
    session = await World(store).create()
    sent: list[asyncio.Future[Applied]] = []
    restarting = asyncio.ensure_future(asyncio.to_thread(server.restart, mode))
    while not restarting.done():
        sent.append(asyncio.ensure_future(store.apply(enqueue(session.id, str(len(sent))))))
        await asyncio.wait([restarting], timeout=0.02)
    await restarting
    answers = await asyncio.gather(*sent)
    assert [receipt(answer)["sequence"] for answer in answers] == list(range(1, len(sent) + 1))
    found = await store.turns(session.id, 0, 1000)
    assert [turn.input_json for turn in found] == [text(str(number)) for number in range(len(sent))]
    await check_whole(store, session, len(sent))


# --- errors that pass, and those that do not


FAILING = """
CREATE SEQUENCE public.failures;
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
    IF nextval('public.failures') <= {times} THEN RAISE EXCEPTION 'injected' USING ERRCODE = '{code}'; END IF;
    RETURN NULL;
END$$;
CREATE TRIGGER fail AFTER INSERT ON perdure.turns FOR EACH ROW EXECUTE FUNCTION fail();
"""
PASSING = ("40001", "40P01", "53300", "57P01", "57P03", "08006", "57014", "55P03", "25006")


@pytest.mark.parametrize("code", PASSING)
async def test_a_failure_that_passes_is_not_noticed(
    store: Store, server: PostgresServer, database: str, code: str
) -> None:
    session = await World(store).create()
    server.sql(FAILING.format(times=3, code=code), database=database)
    answers = await asyncio.gather(*[store.apply(enqueue(session.id)) for _ in range(3)])
    assert [receipt(answer)["sequence"] for answer in answers] == [1, 2, 3]
    await check_whole(store, session, 3)


@pytest.mark.parametrize(("code", "kind"), [("40001", StoreError), ("25006", StoreReadOnly), ("53300", StoreError)])
async def test_a_failure_that_lasts_is_told_and_leaves_nothing(
    other: Store, server: PostgresServer, database: str, code: str, kind: type[StoreError]
) -> None:
    session = await World(other).create()
    server.sql(FAILING.format(times=10**9, code=code), database=database)
    with pytest.raises(kind, match=code) as failed:
        await other.apply(enqueue(session.id, idempotency=key("k")))
    assert (failed.value.status, failed.value.details) == (503, {"retry_after_seconds": 2})
    await check_whole(other, session, 0)
    server.sql("DROP TRIGGER fail ON perdure.turns", database=database)
    done = await other.apply(enqueue(session.id, idempotency=key("k")))
    assert not done.replayed
    await check_whole(other, session, 1)


async def test_a_head_that_others_hold_is_waited_for_and_a_timeout_is_nobodys_result(
    store: Store, other: Store, server: PostgresServer, database: str
) -> None:
    session, free = await World(store).create(), await World(store).create()
    server.sql(f"ALTER DATABASE {database} SET statement_timeout = '150ms'")
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", database)
    with psycopg.connect(server.url(database)) as holder:
        holder.execute("SELECT 1 FROM perdure.heads WHERE session = %s FOR UPDATE", (session.id,))
        patient = asyncio.ensure_future(store.apply(enqueue(session.id)))
        with pytest.raises(StoreError, match="57014"):
            await other.apply(enqueue(session.id))
        await other.apply(enqueue(free.id))
    assert receipt(await patient)["sequence"] == 1
    await check_whole(store, session, 1)


@pytest.mark.restarts
async def test_a_server_that_is_away_is_told_and_is_back_when_it_is_back(
    store: Store, other: Store, server: PostgresServer
) -> None:
    session = await World(other).create()
    await asyncio.to_thread(server.stop)
    try:
        with pytest.raises(StoreError) as failed:
            await other.apply(enqueue(session.id))
        assert failed.value.details["retry_after_seconds"] > 0
        with pytest.raises(StoreError):
            await other.head(session.id)
        patient = asyncio.ensure_future(store.apply(enqueue(session.id)))
    finally:
        await asyncio.to_thread(server.start)
    assert receipt(await patient)["sequence"] == 1
    await check_whole(other, session, 1)


# --- behind a pooler


async def test_nothing_is_left_in_a_session_of_the_server(server: PostgresServer, database: str) -> None:
    store = PostgresStore(server.url(database, perdure_prepare="off"))
    await store.open()
    world = World(store)
    await world.turns(await world.create(), 3)
    left = """
        SELECT (SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_listening_channels()),
               (SELECT count(*) FROM pg_settings WHERE source = 'session'),
               (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')
    """

    async def look(connection: Any) -> Any:
        return await (await connection.execute(left)).fetchone()

    assert await store._open.run(look) == (0, 0, 0, 0)
    await store.close()
