"""Servers for the tests: one of its own for who ends or edits it, one that all others share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from dev_parts import PROJECT, Dev, prepared, running
from many_parts import Parts, PostgresServer, database_server, parts_on

from perdure.client.aio import AsyncClient


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Dev]:
    """A server of the test's own on the stage project."""
    with running(PROJECT, tmp_path / "server", "--no-reload") as dev:
        yield dev


@pytest.fixture
def unstarted(tmp_path: Path) -> Iterator[Dev]:
    """The same, for the test to start."""
    with prepared(PROJECT, tmp_path / "server", "--no-reload") as dev:
        yield dev


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """A server on the stage project that tests share; they do not end it, and use session keys of their own."""
    with running(PROJECT, tmp_path_factory.mktemp("shared"), "--no-reload") as dev:
        yield dev


@pytest.fixture
async def client(shared: Dev) -> AsyncIterator[AsyncClient]:
    """A client of the shared server."""
    async with shared.client() as client:
        yield client


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server that tests share, each with a database of its own."""
    with database_server() as server:
        yield server


@pytest.fixture
def parts(postgres: PostgresServer, tmp_path: Path) -> Iterator[Parts]:
    """Servers and workers on a database of the test's own, for the test to start."""
    database = postgres.new_database()
    with parts_on(postgres.url(database), tmp_path) as parts:
        yield parts
    postgres.drop_database(database)


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A file that does not exist yet, for which handlers wait."""
    return tmp_path / "gate"
