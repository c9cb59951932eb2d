"""What engines ask of PostgreSQL does not get dearer with sessions that sleep: its own plans say so.

`python -m bench pg-sleepers` does the same with a million of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from bench import multiply, plans
from bench.multiply import GROWING, session
from bench.ours.engine import RESTLESS, Perdure
from many_parts import database_server

from perdure.store.codec import unpack_head

SLEEPERS = 30_000


async def _original(url: str, folder: Path) -> str:
    """Return a session that has run and sleeps."""
    perdure = Perdure(folder, RESTLESS, url)
    await perdure.open()
    made = await perdure.keyed("user-0")
    await perdure.asleep()
    await perdure.close()
    return made


@pytest.fixture(scope="module")
def sleeping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[psycopg.Connection[Any]]:
    with database_server() as server:
        url = server.url(server.new_database())
        original = asyncio.run(_original(url, tmp_path_factory.mktemp("original")))
        with psycopg.connect(url, autocommit=True) as connection:
            multiply.multiply(connection, original, SLEEPERS)
            connection.execute("VACUUM ANALYZE")
            yield connection


def _faults(connection: psycopg.Connection[Any]) -> list[str]:
    with plans.staged(connection, SLEEPERS):
        return [
            f"{asked.title}, {mode}: {fault}"
            for asked in plans.asked(SLEEPERS)
            for mode in plans.ASKED_MODES
            for fault in plans.explain(connection, asked, mode).faults(asked)
        ]


def test_sleepers_are_whole(sleeping: psycopg.Connection[Any]) -> None:
    rows = sleeping.execute(
        "SELECT session, body FROM perdure.heads WHERE session = %s", (session(SLEEPERS),)
    ).fetchall()
    ((found, body),) = rows
    head = unpack_head(body)
    assert (head.id, head.key, head.run) == (str(found), f"user-{SLEEPERS}", None)


def test_nothing_that_is_asked_again_and_again_grows_with_sleepers(sleeping: psycopg.Connection[Any]) -> None:
    assert _faults(sleeping) == []


def test_no_statement_reads_what_grows_from_end_to_end(sleeping: psycopg.Connection[Any]) -> None:
    names = plans.all_statements()
    assert len(names) > 80
    found = {name: plans.shape(sleeping, name) & GROWING for name in names}
    assert {name: tables for name, tables in found.items() if tables} == {}


@pytest.mark.parametrize(
    ("index", "statement"),
    [("sessions_due", "due"), ("sessions_by_owner", "dead_owners"), ("sessions_by_key", "find_key")],
)
def test_an_index_that_is_missing_is_noticed(sleeping: psycopg.Connection[Any], index: str, statement: str) -> None:
    with sleeping.transaction(force_rollback=True):
        sleeping.execute(f"DROP INDEX perdure.{index}".encode())
        assert [fault for fault in _faults(sleeping) if fault.startswith(statement)]
