"""A server that hangs up is noticed at once, on the event loop that servers and workers use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
import uvloop
from postgres_cluster import PostgresCluster, until

from conftest import need_postgres
from perdure.store import open_store

OURS = "pg_stat_activity WHERE application_name = 'perdure'"


@pytest.fixture
def server() -> Iterator[PostgresCluster]:
    """A server on TCP: who writes to a unix socket that is closed hears of it in another way."""
    need_postgres()
    server = PostgresCluster(1, fsync=False)
    yield server
    server.remove()


def test_connections_that_were_ended_while_nobody_used_them_cost_no_wait(server: PostgresCluster) -> None:
    async def read_again() -> float:
        store = open_store(server.url(server.new_database()))
        await store.open()
        await asyncio.gather(*(store.environments() for _ in range(4)))
        assert server.sql(f"SELECT pg_terminate_backend(pid) FROM {OURS}")
        until(lambda: not server.sql(f"SELECT 1 FROM {OURS}"), "all connections are closed")
        began = time.monotonic()
        await asyncio.gather(*(store.environments() for _ in range(4)))
        took = time.monotonic() - began
        await store.close()
        return took

    # An answer that nobody hears of is given up after five seconds.
    assert uvloop.run(read_again()) < 4
