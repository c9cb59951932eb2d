"""Sessions by the million: one that has really run and sleeps is multiplied in the database, row by row.

What comes of it is what the engine itself would have written: heads can be decoded, and sessions wake and go on.
"""

from __future__ import annotations

from typing import Any

import psycopg

ENVIRONMENT, AGENT = "demo/development", "plain"
PREFIX = "01900000-0000-7000-8000-"
"""Ids in the order of their making, as real ones are, and older than all that are made now."""
OTHERS = "01900000-0003-7000-8000-"
"""Questions, messages, holds, live slots and logs belong to sessions of these ids, which are otherwise not there."""
A_STEP = 50_000
GROWING = frozenset(
    {
        *("sessions", "heads", "events", "turns", "runs", "holds", "asks", "messages", "live"),
        *("idempotency", "commits", "run_logs"),
    }
)
"""Tables whose length goes with the number of sessions, or with what has happened in them."""

_SIZES = """
SELECT c.relname, pg_table_size(c.oid), pg_indexes_size(c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'perdure' AND c.relkind = 'r'"""

# $1 is the session that is multiplied, $2 and $3 the first and the last number.
_COPIES = (
    """
    INSERT INTO perdure.sessions (id, environment, agent, key, status, wake_at, owned, worker, home)
    SELECT ('{prefix}' || lpad(to_hex(n), 12, '0'))::uuid, environment, agent, 'user-' || n, status,
           wake_at + n, owned, worker, home
    FROM perdure.sessions, generate_series(%(first)s::bigint, %(last)s) n WHERE id = %(session)s""",
    """
    INSERT INTO perdure.heads (session, live, body, seq, mark)
    SELECT ('{prefix}' || lpad(to_hex(n), 12, '0'))::uuid, live,
           convert_to(replace(replace(convert_from(body, 'UTF8'), '"user-0"', '"user-' || n || '"'),
                              session::text, '{prefix}' || lpad(to_hex(n), 12, '0')), 'UTF8'), seq, n * 16
    FROM perdure.heads, generate_series(%(first)s::bigint, %(last)s) n WHERE session = %(session)s""",
    """
    INSERT INTO perdure.events (session, seq, at, turn, run, op, type, data)
    SELECT ('{prefix}' || lpad(to_hex(n), 12, '0'))::uuid, seq, at, turn, run, op, type, data
    FROM generate_series(%(first)s::bigint, %(last)s) n, perdure.events WHERE session = %(session)s
    ORDER BY n, seq""",
    """
    INSERT INTO perdure.turns
           (session, number, id, status, queued_seq, created_at, run, started_at, ended_seq, ended_at, reason)
    SELECT ('{prefix}' || lpad(to_hex(n), 12, '0'))::uuid, number,
           ('01900000-0001-7000-8' || lpad(number::text, 3, '0') || '-' || lpad(to_hex(n), 12, '0'))::uuid,
           status, queued_seq, created_at, run, started_at, ended_seq, ended_at, reason
    FROM generate_series(%(first)s::bigint, %(last)s) n, perdure.turns WHERE session = %(session)s""",
    """
    INSERT INTO perdure.runs (session, number, id, recovery, deployment, started_at, ended_at, end_reason)
    SELECT ('{prefix}' || lpad(to_hex(n), 12, '0'))::uuid, number,
           ('01900000-0002-7000-8' || lpad(number::text, 3, '0') || '-' || lpad(to_hex(n), 12, '0'))::uuid,
           recovery, deployment, started_at, ended_at, end_reason
    FROM generate_series(%(first)s::bigint, %(last)s) n, perdure.runs WHERE session = %(session)s""",
    """
    INSERT INTO perdure.commits (environment, mark, xid, at, sessions, firsts, lasts)
    SELECT environment, n * 16 + row_number() OVER (PARTITION BY n ORDER BY mark), 1, at,
           ARRAY[('{prefix}' || lpad(to_hex(n), 12, '0'))::uuid], firsts, lasts
    FROM generate_series(%(first)s::bigint, %(last)s) n, perdure.commits WHERE sessions = ARRAY[%(session)s::uuid]""",
    """
    INSERT INTO perdure.asks (session, id, turn, status, created_at, control, prompt)
    SELECT ('{others}' || lpad(to_hex(n), 12, '0'))::uuid, gen_random_uuid(), 1, 'answered', n, '{}', '{}'
    FROM generate_series(%(first)s::bigint, %(last)s, %(every)s) n WHERE %(session)s::uuid IS NOT NULL""",
    """
    INSERT INTO perdure.messages (session, id, turn, status, created_at, content)
    SELECT ('{others}' || lpad(to_hex(n), 12, '0'))::uuid, gen_random_uuid(), 1, 'delivered', n, '{}'
    FROM generate_series(%(first)s::bigint, %(last)s, %(every)s) n WHERE %(session)s::uuid IS NOT NULL""",
    """
    INSERT INTO perdure.holds (session, id, reason, issuer_kind, issuer_id, created_at)
    SELECT ('{others}' || lpad(to_hex(n), 12, '0'))::uuid, gen_random_uuid(), 'paused', 'user', 'bench', n
    FROM generate_series(%(first)s::bigint, %(last)s, %(every)s) n WHERE %(session)s::uuid IS NOT NULL""",
    """
    INSERT INTO perdure.live (session, slot, turn, at, content)
    SELECT ('{others}' || lpad(to_hex(n), 12, '0'))::uuid, 'output', 1, n, '{}'
    FROM generate_series(%(first)s::bigint, %(last)s, %(every)s) n WHERE %(session)s::uuid IS NOT NULL""",
    """
    INSERT INTO perdure.run_logs (run, start, data)
    SELECT ('{others}' || lpad(to_hex(n), 12, '0'))::uuid, 0, convert_to(repeat('said ', 20), 'UTF8')
    FROM generate_series(%(first)s::bigint, %(last)s, %(every)s) n WHERE %(session)s::uuid IS NOT NULL""",
    """
    INSERT INTO perdure.idempotency (scope, request, receipt, environment, at)
    SELECT sha256(n::text::bytea), sha256(n::text::bytea), convert_to(repeat('r', 150), 'UTF8'), '{environment}', n
    FROM generate_series(%(first)s::bigint, %(last)s) n WHERE %(session)s::uuid IS NOT NULL""",
)


def session(number: int) -> str:
    """The id of a copy, by its number from 1 on."""
    return f"{PREFIX}{number:012x}"


def turn(number: int) -> str:
    """The id of its first turn."""
    return f"01900000-0001-7000-8001-{number:012x}"


def multiply(connection: psycopg.Connection[Any], original: str, count: int) -> None:
    """Make copies of a session, which has the key `user-0` and sleeps."""
    every = 1 if count <= A_STEP else 10
    connection.execute("SET synchronous_commit = off")
    for first in range(1, count + 1, A_STEP):
        span = {"session": original, "first": first, "last": min(first + A_STEP - 1, count), "every": every}
        for copy in _COPIES:
            statement = copy.replace("{prefix}", PREFIX).replace("{others}", OTHERS)
            statement = statement.replace("{environment}", ENVIRONMENT)
            connection.execute(statement.encode(), span)
    connection.execute("RESET synchronous_commit")


def sizes(connection: psycopg.Connection[Any]) -> dict[str, tuple[int, int]]:
    """Bytes of each table, and of its indexes."""
    return {name: (table, indexes) for name, table, indexes in connection.execute(_SIZES)}
