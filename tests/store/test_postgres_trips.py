"""Round trips: what is sent together is answered together, what fails leaves the connection as it was, and who has
waited in vain is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import psycopg
import pytest
import uvloop
from faulty_proxy import FaultyProxy
from postgres_server import PostgresServer
from psycopg.pq import PipelineStatus, TransactionStatus

from perdure.store.postgres import address, database
from perdure.store.postgres.arrays import array
from perdure.store.postgres.database import Connection, Database, all_rows, is_lost, roll_back, trip
from perdure.store.postgres.failures import sqlstate

SUM = "SELECT $1::int8 + $2::int8"
BEGIN, COMMIT = ("BEGIN", ()), ("COMMIT", ())
FAILING = ("SELECT 1 / $1::int4", (0,))


@pytest.fixture(params=["on", "off"])
def prepare(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def name(postgres: PostgresServer) -> Iterator[str]:
    name = postgres.new_database()
    postgres.sql("CREATE TABLE kept (id int PRIMARY KEY, data bytea)", database=name)
    yield name
    postgres.drop_database(name)


@pytest.fixture
async def connection(postgres: PostgresServer, name: str, prepare: str) -> AsyncIterator[Connection]:
    connection = await Database(address.parse(postgres.url(name, perdure_prepare=prepare))).connect()
    yield connection
    await connection.close()


async def prepared(connection: Connection) -> int:
    """Return how many statements the server has prepared."""
    ((count,),) = await all_rows(connection, "SELECT count(*) FROM pg_prepared_statements")
    return int(count)


async def test_statements_are_answered_in_order_each_with_its_rows(connection: Connection, prepare: str) -> None:
    statements: list[Any] = [(SUM, (number, 1)) for number in range(5)]
    for _ in range(3):
        found = await trip(
            connection, [*statements, ("SELECT 1 WHERE false", ()), ("SELECT * FROM generate_series(1, 3)", ())]
        )
        assert found == [[(number + 1,)] for number in range(5)] + [[], [(1,), (2,), (3,)]]
    assert await prepared(connection) == (4 if prepare == "on" else 0)
    assert await trip(connection, []) == []


@pytest.mark.parametrize(
    "value",
    [0, -1, 2**62, True, None, "", "ünï\U0001f642", b"", b"\0\xff", 1.5],
    ids=repr,
)
async def test_values_come_back_as_they_went(connection: Connection, value: Any) -> None:
    kinds = {bool: "bool", int: "int8", str: "text", bytes: "bytea", float: "float8"}
    kind = kinds.get(type(value), "text")
    for _ in range(2):
        assert await all_rows(connection, f"SELECT $1::{kind}, $2::int4", value, 7) == [(value, 7)]
    assert await all_rows(connection, "SELECT unnest($1::text[])", array("text", ["a", None])) == [("a",), (None,)]


async def test_a_statement_that_fails_is_told_of_as_psycopg_does_and_ends_the_trip(connection: Connection) -> None:
    insert = ("INSERT INTO kept (id) VALUES ($1)", (1,))
    for _ in range(3):
        with pytest.raises(psycopg.errors.DivisionByZero) as failed:
            await trip(connection, [BEGIN, insert, FAILING, (SUM, (1, 2)), COMMIT])
        assert failed.value.diag.message_primary == "division by zero"
        assert sqlstate(failed.value) == "22012"
        assert connection.info.transaction_status == TransactionStatus.INERROR
        assert connection.pgconn.pipeline_status == PipelineStatus.OFF
        await roll_back(connection)
        assert connection.info.transaction_status == TransactionStatus.IDLE
        assert await all_rows(connection, "SELECT count(*) FROM kept") == [(0,)]
    await trip(connection, [BEGIN, insert, COMMIT])
    with pytest.raises(psycopg.errors.UniqueViolation) as conflict:
        await trip(connection, [insert])
    assert conflict.value.diag.constraint_name == "kept_pkey"
    assert await trip(connection, [(SUM, (1, 2))]) == [[(3,)]]


@pytest.mark.parametrize("value", ["with \0 in it", object(), "\ud800", 2**70])
async def test_a_value_that_cannot_be_sent_harms_nothing(connection: Connection, value: Any) -> None:
    with pytest.raises((psycopg.Error, ValueError, TypeError)):
        await trip(connection, [BEGIN, ("SELECT $1::text", (value,)), ("SELECT $1::int8", (value,)), COMMIT])
    await roll_back(connection)
    assert not is_lost(connection)
    assert await trip(connection, [(SUM, (1, 2))]) == [[(3,)]]


async def test_more_than_fits_into_any_buffer_goes_through_both_ways(connection: Connection) -> None:
    large = bytes(range(256)) * 16384
    inserts: list[Any] = [("INSERT INTO kept VALUES ($1, $2) RETURNING data", (number, large)) for number in range(6)]
    assert await trip(connection, inserts) == [[(large,)]] * 6


async def test_a_connection_that_was_ended_says_why_and_is_lost(
    connection: Connection, postgres: PostgresServer
) -> None:
    postgres.sql("SELECT pg_terminate_backend(%s, 5000)", connection.info.backend_pid)
    with pytest.raises(psycopg.errors.AdminShutdown):
        await trip(connection, [(SUM, (1, 2))])
    assert is_lost(connection)
    with pytest.raises(psycopg.OperationalError, match="lost"):
        await trip(connection, [(SUM, (1, 2))])


async def test_a_trip_that_is_cancelled_closes_its_connection(connection: Connection) -> None:
    waiting = asyncio.ensure_future(trip(connection, [("SELECT pg_sleep(60)", ())]))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert is_lost(connection)


async def test_an_answer_that_does_not_come_is_not_waited_for(
    postgres: PostgresServer, name: str, prepare: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_SHORTEST_PATIENCE", 0.1)
    url = postgres.url(name, perdure_prepare=prepare, perdure_patience="100ms")
    connection = await Database(address.parse(url)).connect()
    with pytest.raises(psycopg.OperationalError, match=r"not answered for 0\.1 s"):
        await trip(connection, [("SELECT pg_sleep(60)", ())])
    assert is_lost(connection)
    await connection.close()


async def test_answers_may_come_in_pieces(postgres: PostgresServer, name: str) -> None:
    proxy = FaultyProxy(postgres.folder / ".s.PGSQL.5432")
    await proxy.open()
    connection = await Database(address.parse(proxy.url(name))).connect()
    statements: list[Any] = [(SUM, (1, 2)), ("SELECT pg_sleep(0.05)", ()), ("SELECT repeat('x', 300000)", ())]
    found = await trip(connection, statements)
    assert (found[0], len(found[2][0][0])) == ([(3,)], 300000)
    await connection.close()
    await proxy.close()


async def test_a_table_that_a_migration_changes_makes_prepared_statements_useless_and_that_passes(
    postgres: PostgresServer, name: str
) -> None:
    pooled = Database(address.parse(postgres.url(name, perdure_prepare="on")))

    async def look(connection: Connection) -> Any:
        return await all_rows(connection, "SELECT * FROM kept")

    assert await pooled.run(look) == []
    postgres.sql("ALTER TABLE kept ADD COLUMN more int", database=name)
    postgres.sql("INSERT INTO kept VALUES (1, 'x', 2)", database=name)
    assert await pooled.run(look) == [(1, b"x", 2)]
    await pooled.close()


LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.mark.parametrize("make", LOOPS, ids=["asyncio", "uvloop"])
def test_any_loop_will_do(postgres: PostgresServer, name: str, make: Any, prepare: str) -> None:
    async def work() -> None:
        connection = await Database(address.parse(postgres.url(name, perdure_prepare=prepare))).connect()
        with pytest.raises(psycopg.errors.DivisionByZero):
            await trip(connection, [FAILING])
        large = bytes(2**22)
        assert await trip(connection, [("SELECT $1::bytea", (large,)), (SUM, (1, 2))]) == [[(large,)], [(3,)]]
        waiting = asyncio.ensure_future(trip(connection, [("SELECT pg_sleep(60)", ())]))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await connection.close()

    run(work(), make)


def run(work: Coroutine[Any, Any, None], make: Any) -> None:
    with asyncio.Runner(loop_factory=make) as runner:
        runner.run(work)
