"""What readers ask, each as one round trip that sees one instant."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from perdure.errors import SessionNotFound
from perdure.records.canonical import digest
from perdure.records.sessions import Ask, Message, Run, SessionHead, Turn
from perdure.rules.commands import Idempotency
from perdure.rules.dispatch import needs_owner
from perdure.store import records
from perdure.store.codec import is_canonical, unpack_head
from perdure.store.port import EventPage, SessionFilter, Snapshot
from perdure.store.postgres.arrays import array, arrays
from perdure.store.postgres.database import Connection, all_rows, one_row, read_together
from perdure.store.postgres.lookups import look_up
from perdure.store.postgres.records import to_event, to_live, to_run, to_turn
from perdure.store.postgres.statements import sql
from perdure.store.records import check_cursor, check_receipt

_ALL: Final = ("open", "closing", "closed", "cancelled")
_BELOW_ALL: Final = "00000000-0000-0000-0000-000000000000"
_ABOVE_ALL: Final = "ffffffff-ffff-ffff-ffff-ffffffffffff"
_SPARE: Final = 16


def after_id(text: str) -> str:
    """Return the id that a page begins after."""
    return text if is_canonical(text) else _BELOW_ALL


def before_id(text: str | None) -> str:
    """Return the id that a page, newest first, begins below."""
    if text is None:
        return _ABOVE_ALL
    return text if is_canonical(text) else _BELOW_ALL


async def head(connection: Connection, session_id: str) -> SessionHead | None:
    """Return a session's head."""
    row = await one_row(connection, sql("head"), session_id) if is_canonical(session_id) else None
    return None if row is None else unpack_head(row[0])


async def heads(connection: Connection, session_ids: list[str]) -> list[SessionHead]:
    """Return some heads, in no order."""
    rows = await all_rows(connection, sql("heads"), array("uuid", session_ids))
    return [unpack_head(body) for (body,) in rows]


async def changed(connection: Connection, known: Mapping[str, int]) -> list[SessionHead]:
    """Return the heads of those of the sessions whose logs are longer than was known."""
    asked = [(session_id, seq) for session_id, seq in known.items() if is_canonical(session_id)]
    if not asked:
        return []
    rows = await all_rows(connection, sql("changed"), *arrays(("uuid", "int8"), asked))
    return [unpack_head(body) for (body,) in rows]


async def receipt(connection: Connection, identity: Idempotency) -> bytes | None:
    """Return the receipt that an idempotency key stands for."""
    row = await one_row(connection, sql("find_receipt"), digest(identity.scope))
    return check_receipt(None if row is None else (row[0], row[1]), identity)


async def find_key(connection: Connection, environment: str, agent: str, key: str) -> str | None:
    """Return the id of the session that has a key."""
    row = await one_row(connection, sql("find_key"), environment, agent, key)
    return None if row is None else row[0]


async def sessions(connection: Connection, which: SessionFilter, before: str | None, limit: int) -> list[SessionHead]:
    """Return heads, newest first: one range of an index for each status, merged."""
    below = before_id(before)
    if which.key is not None:
        rows = await all_rows(connection, sql("list_by_key"), which.environment, which.key, below)
        return _of_key([unpack_head(body) for (body,) in rows], which)[:limit]
    values: list[tuple[Any, ...]] = [(which.environment, status, below, limit) for status in which.statuses or _ALL]
    if which.agent is None:
        ranges = await read_together(connection, *[(sql("list_by_status"), found) for found in values])
    else:
        ranges = await read_together(connection, *[(sql("list_by_agent"), (*found, which.agent)) for found in values])
    unpacked = [[unpack_head(body) for (body,) in rows] for rows in ranges]
    return list(islice(heapq.merge(*unpacked, key=lambda found: found.id, reverse=True), limit))


def _of_key(found: list[SessionHead], which: SessionFilter) -> list[SessionHead]:
    statuses = which.statuses or _ALL
    return [one for one in found if which.agent in (None, one.agent) and one.status in statuses]


async def due(connection: Connection, until: int, limit: int) -> list[tuple[str, int]]:
    """Return sessions whose wake time has come."""
    return [(found, at) for found, at in await all_rows(connection, sql("due"), until, limit)]


async def unsettled(connection: Connection, after: str, limit: int) -> list[SessionHead]:
    """Return heads of sessions that need an owner."""
    found: list[SessionHead] = []
    at, size = after_id(after), limit + _SPARE
    while len(found) < limit:
        marked = [unpack_head(body) for (body,) in await all_rows(connection, sql("maybe_owned"), at, size)]
        found += filter(needs_owner, marked)
        if len(marked) < size:
            break
        at = marked[-1].id
    return found[:limit]


async def snapshot(connection: Connection, session_id: str, count: int) -> Snapshot | None:
    """Return a session's head, newest turns and live slots."""
    if not is_canonical(session_id):
        return None
    found, newest, live = await read_together(
        connection,
        (sql("head"), (session_id,)),
        (sql("newest_turns"), (session_id, count)),
        (sql("live"), (session_id,)),
    )
    if not found:
        return None
    known = unpack_head(found[0][0])
    turns = [to_turn(session_id, row) for row in reversed(newest)]
    return Snapshot(known, turns, to_live(live), known.last_turn > count)


async def events(connection: Connection, session_id: str, after: int, limit: int, max_bytes: int) -> EventPage:
    """Return a page of a session's log."""
    if not is_canonical(session_id):
        raise SessionNotFound(session_id)
    found, page = await read_together(
        connection, (sql("head"), (session_id,)), (sql("events"), (session_id, after, max(limit, 0), max_bytes))
    )
    if not found:
        raise SessionNotFound(session_id)
    known = unpack_head(found[0][0])
    check_cursor(known, after)
    events = [to_event(session_id, row) for row in page]
    last = events[-1].seq if events else after
    return EventPage(events, last, last < known.last_seq, known.retained_after)


async def turns(connection: Connection, session_id: str, after: int, limit: int) -> list[Turn]:
    """Return turns in order of number."""
    if not is_canonical(session_id):
        return []
    return [to_turn(session_id, row) for row in await all_rows(connection, sql("turns"), session_id, after, limit)]


async def found(connection: Connection, session_id: str, kind: str, key: Any) -> Any:
    """Return one row of a session as rules see it, or None."""
    look = look_up(session_id, kind, key)
    if look.statement is None or not is_canonical(session_id):
        return None
    statement, values = look.statement
    return look.result(await all_rows(connection, statement, *values))


async def asks(connection: Connection, session_id: str, status: str | None, after: str, limit: int) -> list[Ask]:
    """Return questions in order of id."""
    if not is_canonical(session_id):
        return []
    values = (session_id, after_id(after), limit)
    if status is None:
        rows = await all_rows(connection, sql("asks"), *values)
    else:
        rows = await all_rows(connection, sql("asks_by_status"), *values, status)
    return [records.to_ask(*row) for row in rows]


async def ask(connection: Connection, session_id: str, ask_id: str) -> Ask | None:
    """Return one question."""
    one: Ask | None = await found(connection, session_id, "ask", ask_id)
    return one


async def message(connection: Connection, session_id: str, message_id: str) -> Message | None:
    """Return one steering message."""
    one: Message | None = await found(connection, session_id, "message", message_id)
    return one


async def turn(connection: Connection, session_id: str, turn_id: str) -> Turn | None:
    """Return one turn by its id."""
    one: Turn | None = await found(connection, session_id, "turn_id", turn_id)
    return one


async def turn_by_number(connection: Connection, session_id: str, number: int) -> Turn | None:
    """Return one turn by its number."""
    one: Turn | None = await found(connection, session_id, "turn", number)
    return one


async def runs(connection: Connection, session_id: str, after: int, limit: int) -> list[Run]:
    """Return runs in order of number."""
    if not is_canonical(session_id):
        return []
    return [to_run(session_id, row) for row in await all_rows(connection, sql("runs"), session_id, after, limit)]


async def run(connection: Connection, session_id: str, run_id: str) -> Run | None:
    """Return one run by its id."""
    known = is_canonical(session_id) and is_canonical(run_id)
    row = await one_row(connection, sql("run"), session_id, run_id) if known else None
    return None if row is None else to_run(session_id, row)
