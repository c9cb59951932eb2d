"""Migrations, statements and addresses of the PostgreSQL engine."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from postgres_server import PostgresServer

from perdure.errors import PerdureError, StoreError
from perdure.store.postgres import PostgresStore, address, schema
from perdure.store.postgres.database import Database
from perdure.store.postgres.schema import Migration
from perdure.store.postgres.statements import FOLDER, statements


@pytest.fixture
async def empty(postgres: PostgresServer) -> AsyncIterator[tuple[str, Database]]:
    name = postgres.new_database()
    database = Database(address.parse(postgres.url(name, perdure_patience="1s")))
    yield name, database
    await database.close()
    postgres.drop_database(name)


def shape(postgres: PostgresServer, name: str) -> str:
    return postgres.dump(name, "--schema-only")


async def test_migrations_lead_to_the_schema_file(
    postgres: PostgresServer, postgres_template: str, empty: tuple[str, Database]
) -> None:
    name, _ = empty
    postgres.sql(schema.SCHEMA.read_text(), database=name)
    assert shape(postgres, name) == shape(postgres, postgres_template)


async def test_each_step_from_each_version_leads_to_the_same_schema(
    postgres: PostgresServer, postgres_template: str, empty: tuple[str, Database]
) -> None:
    name, database = empty
    for stop in range(1, len(schema.migrations()) + 1):
        await schema.open_schema(database, schema.migrations()[:stop])
        await schema.open_schema(database, finish=True)
        await schema.open_schema(database, finish=True)  # and again, for nothing
        assert shape(postgres, name) == shape(postgres, postgres_template)
        postgres.sql("DROP SCHEMA perdure CASCADE", database=name)


PRE = Migration(9001, "pre", "CREATE TABLE perdure.added (x int)")
POST = Migration(9001, "post", "ALTER TABLE perdure.events DROP COLUMN op")


async def test_what_is_added_is_done_at_once_and_what_is_removed_when_it_is_asked_for(
    postgres: PostgresServer, empty: tuple[str, Database]
) -> None:
    name, database = empty
    await schema.open_schema(database)
    newer = [*schema.migrations(), PRE, POST]
    await schema.open_schema(database, newer)
    assert "perdure.added" in shape(postgres, name)
    assert "op integer" in shape(postgres, name)
    await schema.open_schema(database)  # an older server beside it goes on
    await schema.open_schema(database, newer, finish=True)
    assert "op integer" not in shape(postgres, name)
    before = postgres.dump(name)
    with pytest.raises(StoreError, match="newer Perdure"):
        await schema.open_schema(database)
    assert postgres.dump(name) == before


async def test_a_migration_that_fails_leaves_nothing(postgres: PostgresServer, empty: tuple[str, Database]) -> None:
    name, database = empty
    await schema.open_schema(database)
    before = postgres.dump(name)
    broken = Migration(9001, "pre", "CREATE TABLE perdure.fine (x int); CREATE TABLE perdure.broken (;")
    with pytest.raises(PerdureError, match="syntax error"):
        await schema.open_schema(database, [*schema.migrations(), broken])
    assert postgres.dump(name) == before


async def test_servers_that_start_at_once_migrate_once(postgres: PostgresServer, empty: tuple[str, Database]) -> None:
    name, _ = empty
    stores = [PostgresStore(postgres.url(name)) for _ in range(4)]
    await asyncio.gather(*[store.open() for store in stores])
    await asyncio.gather(*[store.close() for store in stores])
    assert postgres.sql("SELECT count(*) FROM perdure.migrations", database=name) == [(len(schema.migrations()),)]


async def test_a_schema_of_others_is_left_alone(postgres: PostgresServer, empty: tuple[str, Database]) -> None:
    name, database = empty
    postgres.sql("CREATE SCHEMA perdure", database=name)
    with pytest.raises(StoreError, match="not Perdure's"):
        await schema.open_schema(database)


async def test_every_statement_is_understood_by_the_server(postgres: PostgresServer, postgres_template: str) -> None:
    for text in statements().values():
        if not text.startswith(("BEGIN", "COMMIT", "ROLLBACK", "LISTEN", "ANALYZE", "LOCK")):
            postgres.sql(f"PREPARE s AS {text}", database=postgres_template)


def test_every_statement_says_what_it_is_for_and_is_used() -> None:
    for file in FOLDER.glob("*.sql"):
        pieces = re.split(r"^-- name: (\w+)\n", file.read_text(), flags=re.MULTILINE)
        assert pieces[0] == ""
        for name, text in zip(pieces[1::2], pieces[2::2], strict=True):
            assert re.match(r"(-- .*\n)*-- .*\.\n", text), name
    engine = Path(FOLDER).parent
    source = "".join(file.read_text() for file in [*engine.glob("*.py"), *engine.parent.glob("*.py")])
    assert [name for name in statements() if f'"{name}"' not in source] == []


def test_an_address_keeps_ours_from_the_server() -> None:
    found = address.parse("postgresql://ada:secret@db1,db2/x?target_session_attrs=read-write&perdure_connections=9")
    assert found.conninfo == "postgresql://ada:secret@db1,db2/x?target_session_attrs=read-write"
    assert found.connections == 9
    assert (found.prepare, found.hints, found.listen) == (None, None, None)
    found = address.parse("postgresql://h/x?perdure_prepare=on&perdure_hints=off&perdure_listen=postgresql://ada@db1/x")
    assert (found.prepare, found.hints, found.listen) == (True, False, "postgresql://ada@db1/x")
    assert address.safe("postgresql://ada:secret@db1/x?password=y") == "postgresql://db1/x"


@pytest.mark.parametrize(
    "option",
    [
        "perdure_nonsense=1",
        "perdure_prepare=maybe",
        "perdure_patience=soon",
        "perdure_connections=few",
        "perdure_listen=db1",
        "perdure_listen=postgresql://db1/x%3Fperdure_hints=on",
    ],
)
def test_an_option_that_does_not_exist_is_refused(option: str) -> None:
    with pytest.raises(PerdureError):
        address.parse(f"postgresql://h/x?{option}")
