"""Does any statement of the store get dearer with sessions that sleep? Asked of PostgreSQL's own plans.

Two questions. Of every statement that the store has: does its plan read a table that grows from one end to the other?
Of those that engines run again and again, with real values: how many rows does a node of the plan touch, and how many
pages does the whole of it look at? Both with the plan for these very values (`custom`) and with the one that PostgreSQL
settles on for a prepared statement after a few uses (`settled`), which may be one for any values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import psycopg
from psycopg import sql as compose

from bench import multiply
from bench.multiply import AGENT, ENVIRONMENT, GROWING, session
from perdure.store.postgres.statements import FOLDER, statements

MODES = {"custom": "force_custom_plan", "settled": "auto", "generic": "force_generic_plan"}
ASKED_MODES = ("custom", "settled")
USES = 8
"""After five uses of a prepared statement PostgreSQL decides whether one plan will do for all values."""
WORKER, OTHER, DEAD, MACHINE = "worker-a", "worker-b", "worker-dead", "machine-a"
OWNED, FREE, ORPHANS, DUE = 200, 20, 30, 10
ANY_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"
NO_ID = "00000000-0000-0000-0000-000000000000"
LONG_AGO, FAR_AHEAD = 0, 1 << 60
WHOLE_STORE = ("moving.sql", "doctor.sql")
"""Files of statements that people run once, whose purpose it is to read all of a store: copying and mending one."""
_PLANNED = ("INSERT", "UPDATE", "DELETE", "SELECT", "WITH")
_PAGES_EACH = 24
"""Pages that one thing asked for may take: a few levels of a few indexes, the row, what the planner itself looks up."""


@dataclass(frozen=True)
class Asked:
    """A statement with its values, and how many things it is about: what it may touch goes with that alone."""

    name: str
    values: tuple[Any, ...]
    things: int
    what: str = ""
    before: tuple[tuple[Any, ...], ...] = ()
    """The values that it is asked with before, in turn, where they are others."""

    @property
    def title(self) -> str:
        return f"{self.name} ({self.what})" if self.what else self.name


@dataclass(frozen=True)
class Plan:
    """What a plan looks like, and what it did: `rows` is the most that any node of it gave or threw away."""

    scanned: frozenset[str]
    indexes: tuple[str, ...]
    rows: int
    pages: int
    ms: float

    def faults(self, asked: Asked) -> list[str]:
        """What of it would grow with the sessions that sleep."""
        most, pages = 4 * asked.things + 16, _PAGES_EACH * (asked.things + 4)
        found = [f"reads all of {table}" for table in sorted(self.scanned & GROWING)]
        if self.rows > most:
            found.append(f"touches {self.rows} rows for {asked.things} things")
        if self.pages > pages:
            found.append(f"looks at {self.pages} pages for {asked.things} things")
        return found


def asked(count: int) -> list[Asked]:
    """What engines run in their loops, for each commit and for each request, among `count` sleeping sessions."""
    some = [session(number) for number in range(count // 2, count // 2 + 64)]
    here, page = ["", MACHINE], 50
    floors = ([session(number) for number in range(1, 11)], [7] * 10, FAR_AHEAD, 500)
    return [
        *_loops(count, some, here),
        *_commits(some),
        *_requests(some[0], page),
        *_retention(floors),
    ]


def _loops(count: int, some: list[str], here: list[str]) -> Iterator[Asked]:
    """What every worker and server asks by the clock."""
    yield Asked("claim_free", (WORKER, 64, here), 64)
    yield Asked("dead_owners", (), 3)
    yield Asked("claim_from_dead", (WORKER, 64, here, [DEAD]), 64)
    yield Asked("claimed", (DEAD,), OWNED + FREE + ORPHANS)
    yield Asked("alive", (), 3)
    yield Asked("renew_lease", (WORKER, 15_000_000, None, MACHINE), 1)
    yield Asked("forget_leases", (), 3)
    yield Asked("due", (1, 100), 1, "nothing is due")
    yield Asked("due", (FAR_AHEAD, 100), 100, "all are due")
    yield Asked("changed", (some, [7] * len(some)), len(some), "nothing has changed")
    yield Asked("changed", (some, [0] * len(some)), len(some), "all have changed")
    yield Asked("heads", (some,), len(some))
    yield Asked("maybe_owned", (NO_ID, 64), 64)
    yield Asked("owner_address", (session(count),), 1)
    yield Asked("api_keys", (), 1)
    yield Asked("environments", (), 1)


def _commits(some: list[str]) -> Iterator[Asked]:
    """What commits read and write, for many sessions at once."""
    count = len(some)
    yield Asked("lock_heads", (some,), count)
    yield Asked("find_receipts", ([bytes(32)] * count,), count)
    yield Asked("find_keys", ([ENVIRONMENT] * count, [AGENT] * count, [f"user-{n}" for n in range(count)]), count)
    yield Asked("find_key", (ENVIRONMENT, AGENT, "user-9"), 1)
    yield Asked("start_turns", (some, [1] * count, [1] * count, [1] * count), count)
    yield Asked("clear_live", (some,), count)
    yield Asked("output_position", (some[0], 0, 1, 1), 8)
    yield Asked("end_run", (some[0], 1, 1, "slept"), 1)


def _requests(one: str, page: int) -> Iterator[Asked]:
    """What is asked from outside."""
    yield Asked("head", (one,), 1)
    yield Asked("list_by_status", (ENVIRONMENT, "open", ANY_ID, page), page)
    statuses = tuple((ENVIRONMENT, status, ANY_ID, page) for status in ("open", "closing", "closed", "cancelled"))
    yield Asked("list_by_status", statuses[2], page, "none, of all statuses", statuses)
    yield Asked("list_by_status", statuses[2], page, "none, after open ones", statuses[:1])
    agents = tuple((*status, AGENT) for status in statuses)
    yield Asked("list_by_agent", agents[0], page)
    yield Asked("list_by_agent", agents[2], page, "none, of all statuses", agents)
    yield Asked("list_by_agent", (*statuses[0], "other"), page, "none, after another agent's", agents[:1])
    yield Asked("list_by_key", (ENVIRONMENT, "user-9", ANY_ID), 1)
    yield Asked("events", (one, 0, page, 1 << 20), 8)
    yield Asked("turn", (one, 1), 1)
    yield Asked("turn_by_id", (one, multiply.turn(1)), 1)
    yield Asked("turns", (one, 0, page), 4)
    yield Asked("newest_turns", (one, page), 4)
    yield Asked("runs", (one, 0, page), 4)
    yield Asked("live", (one,), 4)
    yield Asked("asks", (one, NO_ID, page), 4)
    yield Asked("asks_by_status", (one, NO_ID, page, "pending"), 4)
    yield Asked("find_receipt", (bytes(32),), 1)
    yield Asked("feed", (ENVIRONMENT,), 1)
    yield Asked("commits", (ENVIRONMENT, 0, 0, page), page, "from the beginning")
    yield Asked("commits", (ENVIRONMENT, FAR_AHEAD, 0, page), page, "from the end")
    yield Asked("newest_commit", (ENVIRONMENT,), 1)
    pieces = list(range(page))
    yield Asked("feed_events", (pieces, [session(n + 1) for n in pieces], [1] * page, [2] * page, 1 << 22), 2 * page)


def _retention(floors: tuple[Any, ...]) -> Iterator[Asked]:
    """What prunes old rows, a batch at a time."""
    sessions = len(floors[0])
    yield Asked("oldest_commits", (ENVIRONMENT, 0, 0, 500), 500)
    yield Asked("raise_feed_floor", (ENVIRONMENT, 1, 1), 1)
    yield Asked("drop_commits", (ENVIRONMENT, 16 * 50, FAR_AHEAD), 500)
    for name, each in (
        ("turns", 1),
        ("asks", 1),
        ("messages", 1),
        ("holds", 1),
        ("logs", 1),
        ("runs", 1),
        ("events", 8),
    ):
        yield Asked(f"prune_{name}", floors, sessions * each)
    yield Asked("ended_sessions", (ENVIRONMENT, FAR_AHEAD, 500), 500)
    yield Asked("prune_receipts", (ENVIRONMENT, LONG_AGO, 500), 500, "none is old")
    yield Asked("forget_session", (session(5),), 1)
    yield Asked("forget_rows", (session(5),), 16)
    yield Asked("prune_receipts", (ENVIRONMENT, FAR_AHEAD, 500), 500)


# --- asking PostgreSQL


@contextmanager
def staged(connection: psycopg.Connection[Any], count: int, *, analyzed: bool = True) -> Iterator[None]:
    """Among the sleeping sessions some that are owned, free, orphaned or due; undone afterwards."""
    with connection.transaction(force_rollback=True):
        for worker, lasts in ((WORKER, 3600), (OTHER, 3600), (DEAD, -60)):
            connection.execute(_LEASE, (worker, lasts))
        first = 1
        for owner, some in ((OTHER, OWNED), (None, FREE), (DEAD, ORPHANS)):
            ids = [session(number) for number in range(first, first + some)]
            connection.execute("UPDATE perdure.sessions SET owned = true, worker = %s WHERE id = ANY(%s)", (owner, ids))
            first += some
        last = [session(number) for number in range(count - DUE, count)]
        connection.execute("UPDATE perdure.sessions SET wake_at = 1 WHERE id = ANY(%s)", (last,))
        if analyzed:
            connection.execute("ANALYZE perdure.sessions")
        yield


_LEASE = "INSERT INTO perdure.leases (worker, expires_at) VALUES (%s, clock_timestamp() + %s * interval '1 second')"


def explain(connection: psycopg.Connection[Any], question: Asked, mode: str) -> Plan:
    """Run a statement as it would be run in a mode, and return its plan; what it changes is undone."""
    with connection.transaction(force_rollback=True), _prepared(connection, question.name, mode):
        if mode == "settled":
            for values in islice(cycle(question.before or (question.values,)), USES):
                connection.execute(compose.SQL("EXPLAIN {}").format(_call(values)))
        explained = compose.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {}").format(_call(question.values))
        ((found,),) = connection.execute(explained).fetchall()
    return _plan(found[0])


def _call(values: tuple[Any, ...]) -> compose.Composable:
    if not values:
        return compose.SQL("EXECUTE asked")
    return compose.SQL("EXECUTE asked ({})").format(compose.SQL(", ").join(map(compose.Literal, values)))


def shape(connection: psycopg.Connection[Any], name: str) -> frozenset[str]:
    """The tables that the generic plan of a statement reads from one end to the other."""
    with connection.transaction(force_rollback=True), _prepared(connection, name, "generic"):
        ((types,),) = connection.execute("SELECT parameter_types FROM pg_prepared_statements WHERE name = 'asked'")
        nothing = ", ".join(["NULL"] * len(str(types).strip("{}").split(","))) if str(types) != "{}" else ""
        call = f"EXPLAIN (FORMAT JSON) EXECUTE asked ({nothing})" if nothing else "EXPLAIN (FORMAT JSON) EXECUTE asked"
        ((found,),) = connection.execute(call.encode()).fetchall()
    return frozenset(str(node["Relation Name"]) for node in _nodes(found[0]["Plan"]) if node["Node Type"] == "Seq Scan")


def all_statements() -> list[str]:
    """The names of those that can be planned and do not belong to copying a whole store."""
    texts = [(FOLDER / file).read_text() for file in WHOLE_STORE]
    whole = {name for text in texts for name in re.findall(r"^-- name: (\w+)$", text, re.MULTILINE)}
    planned = [name for name, text in statements().items() if text.lstrip().upper().startswith(_PLANNED)]
    return [name for name in planned if name not in whole]


@contextmanager
def _prepared(connection: psycopg.Connection[Any], name: str, mode: str) -> Iterator[None]:
    connection.execute(f"SET LOCAL plan_cache_mode = {MODES[mode]}".encode())
    connection.execute(f"PREPARE asked AS {statements()[name]}".encode())
    try:
        yield
    finally:
        if connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS:
            connection.execute("DEALLOCATE asked")


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def _plan(found: dict[str, Any]) -> Plan:
    nodes = list(_nodes(found["Plan"]))
    top = found["Plan"]
    return Plan(
        scanned=frozenset(str(node["Relation Name"]) for node in nodes if node["Node Type"] == "Seq Scan"),
        indexes=tuple(str(node["Index Name"]) for node in nodes if "Index Name" in node),
        rows=max(_touched(node) for node in nodes),
        pages=top["Shared Hit Blocks"] + top["Shared Read Blocks"],
        ms=found["Execution Time"],
    )


def _touched(node: dict[str, Any]) -> int:
    thrown = sum(node.get(f"Rows Removed by {why}", 0) for why in ("Filter", "Index Recheck", "Join Filter"))
    return int((node["Actual Rows"] + thrown) * node["Actual Loops"])
