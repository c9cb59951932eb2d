"""What retention and the feed read does not grow with what is kept: their plans on tables that are large."""

from __future__ import annotations

import re
from collections.abc import Iterator

import psycopg
import pytest
from postgres_server import PostgresServer

from perdure.store.postgres.statements import sql
from perdure.store.pruning import KINDS

ENVIRONMENT = "demo/production"
SESSIONS, EVENTS = 10_000, 10
FILL = (
    "INSERT INTO perdure.environments (id, created_at) VALUES ('demo/production', 1), ('demo/other', 1)",
    "INSERT INTO perdure.sessions (id, environment, agent, status, owned, ended_at) "
    "SELECT md5(n::text)::uuid, CASE WHEN mod(n, 10) = 0 THEN 'demo/other' ELSE 'demo/production' END, 'a', 'open', "
    f"false, CASE WHEN mod(n, 50) = 1 THEN n END FROM generate_series(1, {SESSIONS}) n",
    "INSERT INTO perdure.heads (session, live, body, seq) SELECT id, false, '{}', 10 FROM perdure.sessions",
    "INSERT INTO perdure.events (session, seq, type, at, turn, run, data) "
    f"SELECT s.id, n, 'x', 1, 1, 1, '{{}}' FROM perdure.sessions s, generate_series(1, {EVENTS}) n",
    "INSERT INTO perdure.turns (session, number, id, status, queued_seq, created_at, ended_seq) "
    "SELECT s.id, n, gen_random_uuid(), 'completed', n * 2, 1, n * 2 + 1 "
    "FROM perdure.sessions s, generate_series(1, 4) n",
    "INSERT INTO perdure.live SELECT s.id, 's', 1, 1, 'x' FROM perdure.sessions s",
    "INSERT INTO perdure.runs SELECT s.id, 1, gen_random_uuid(), 'initial', 'd', 1, 2, 'x' FROM perdure.sessions s",
    "INSERT INTO perdure.run_logs SELECT id, 0, 'x' FROM perdure.runs",
    "INSERT INTO perdure.holds SELECT s.id, gen_random_uuid(), 'r', 'k', 'i', NULL, 1, 2 FROM perdure.sessions s",
    "INSERT INTO perdure.asks SELECT s.id, gen_random_uuid(), 1, 'responded', 1, 2, NULL, NULL, NULL, 'x', 'x', 'x' "
    "FROM perdure.sessions s",
    "INSERT INTO perdure.messages SELECT s.id, gen_random_uuid(), 1, 'delivered', 1, NULL, 'x' FROM perdure.sessions s",
    "INSERT INTO perdure.steps SELECT s.id, n, 'x', 'safe', 'completed', 'x', 1, 1, 1, 2 "
    "FROM perdure.sessions s, generate_series(0, 3) n",
    "INSERT INTO perdure.memos SELECT s.id, n, 'x', 'x' FROM perdure.sessions s, generate_series(0, 3) n",
    "INSERT INTO perdure.idempotency SELECT decode(md5(id::text), 'hex'), 'x', 'x', environment, ended_at "
    "FROM perdure.sessions WHERE ended_at IS NOT NULL",
    "INSERT INTO perdure.idempotency SELECT decode(md5(id::text || 'x'), 'hex'), 'x', 'x', environment, 1000000 "
    "FROM perdure.sessions",
    "INSERT INTO perdure.commits SELECT environment, row_number() OVER (), 0, row_number() OVER (), ARRAY[id], "
    "ARRAY[1::bigint], ARRAY[10::bigint] FROM perdure.sessions",
    "ANALYZE",
)
ONE = "c4ca4238-a0b9-2382-0dcc-509a6f75849b"  # md5 of 1
FEW = [ONE, "c81e728d-9d4c-2f63-6f06-7f89cc14862c", "eccbc87e-4b5c-e2fe-2830-8fd9f2a7baf3"]
FLOORS = (FEW, [4, 4, 4], 1_000, 100)
STATEMENTS: dict[str, tuple[object, ...]] = {
    "oldest_commits": (ENVIRONMENT, 0, 0, 100),
    "drop_commits": (ENVIRONMENT, 50, 0),
    "commits": (ENVIRONMENT, 5_000, 0, 100),
    "newest_commit": (ENVIRONMENT,),
    "feed_events": ([0, 1, 2], FEW, [1, 1, 1], [10, 10, 10], 10_000),
    **{f"prune_{kind}": FLOORS for kind in KINDS},
    "ended_sessions": (ENVIRONMENT, 1_000, 100),
    "prune_receipts": (ENVIRONMENT, 1_000, 100),
    "changed": (FEW, [1, 1, 10]),
    "forget_rows": (ONE,),
}


@pytest.fixture(scope="module")
def large(postgres: PostgresServer, postgres_template: str) -> Iterator[str]:
    name = postgres.new_database(postgres_template)
    with psycopg.connect(postgres.url(name), autocommit=True) as connection:
        for statement in FILL:
            connection.execute(statement.encode())
    yield name
    postgres.drop_database(name)


@pytest.mark.parametrize("name", STATEMENTS)
def test_what_is_read_is_about_what_is_wanted(postgres: PostgresServer, large: str, name: str) -> None:
    with psycopg.connect(postgres.url(large), cursor_factory=psycopg.RawCursor) as connection:
        rows = connection.execute(f"EXPLAIN (ANALYZE, COSTS OFF) {sql(name)}".encode(), STATEMENTS[name]).fetchall()
        connection.rollback()
    plan = "\n".join(str(line) for (line,) in rows)
    assert not re.search(r"Seq Scan on (?!feed|environments)\w", plan), plan
    found = re.findall(r"Scan.*actual time=\S+ rows=(\d+) loops=(\d+)", plan)
    read = sum(int(count) * int(loops) for count, loops in found) + sum(map(int, re.findall(r"Removed.*: (\d+)", plan)))
    assert found
    assert read <= 2_000, plan


def test_a_scan_would_be_noticed(postgres: PostgresServer, large: str) -> None:
    with psycopg.connect(postgres.url(large)) as connection:
        plan = connection.execute("EXPLAIN SELECT * FROM perdure.events WHERE at = 7").fetchall()
    assert any("Seq Scan on events" in str(line) for (line,) in plan)
