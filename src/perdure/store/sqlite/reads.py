"""What readers ask, as functions over a connection that is in one read transaction."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from typing import Final

from perdure.errors import SessionNotFound
from perdure.records.canonical import digest
from perdure.records.sessions import Ask, LoggedEvent, Message, Run, SessionHead, Turn
from perdure.rules.commands import Idempotency
from perdure.rules.dispatch import needs_owner
from perdure.store.codec import unpack_head
from perdure.store.port import EventPage, LiveSlot, SessionFilter, Snapshot
from perdure.store.records import check_cursor, check_receipt
from perdure.store.sqlite import lookups
from perdure.store.sqlite.codec import (
    ABOVE_ALL_IDS,
    LARGEST_NUMBER,
    pack_id,
    position,
    sid_at,
    unpack_id,
)
from perdure.store.sqlite.database import Database, one
from perdure.store.sqlite.records import to_ask, to_event, to_run, to_turn
from perdure.store.sqlite.statements import sql

_ALL: Final = ("open", "closing", "closed", "cancelled")


def session(database: Database, session_id: str) -> tuple[int, SessionHead] | None:
    """Return a session's number and head."""
    row = one(database, sql("load_head"), (pack_id(session_id),))
    return None if row is None else (row[0], unpack_head(row[1]))


def sid_of(database: Database, session_id: str) -> int | None:
    """Return a session's number."""
    row = one(database, sql("sid"), (pack_id(session_id),))
    return None if row is None else row[0]


def head(database: Database, session_id: str) -> SessionHead | None:
    """Return a session's head."""
    found = session(database, session_id)
    return found[1] if found else None


def heads(database: Database, session_ids: list[str]) -> list[SessionHead]:
    """Return the heads of some sessions."""
    found = (head(database, session_id) for session_id in session_ids)
    return [one for one in found if one is not None]


def receipt(database: Database, identity: Idempotency) -> bytes | None:
    """Return the receipt that an idempotency key stands for."""
    row = one(database, sql("find_receipt"), (digest(identity.scope),))
    return check_receipt(row, identity)


def sessions(database: Database, which: SessionFilter, before: str | None, limit: int) -> list[SessionHead]:
    """Return heads, newest first: one range of an index for each status, merged."""
    below = ABOVE_ALL_IDS if before is None else pack_id(before)
    if which.key is not None:
        return _of_key(database, which, below)[:limit]
    ranges = [_of_status(database, which, status, below, limit) for status in which.statuses or _ALL]
    merged = heapq.merge(*ranges, key=lambda found: found.id, reverse=True)
    return list(islice(merged, limit))


def _of_key(database: Database, which: SessionFilter, below: bytes | str) -> list[SessionHead]:
    rows = database.execute(sql("list_by_key"), (which.environment, which.key, below))
    found = [unpack_head(body) for (body,) in rows]
    statuses = which.statuses or _ALL
    return [one for one in found if which.agent in (None, one.agent) and one.status in statuses]


def _of_status(
    database: Database, which: SessionFilter, status: str, below: bytes | str, limit: int
) -> Iterator[SessionHead]:
    values = (which.environment, status, below, limit)
    if which.agent is None:
        rows = database.execute(sql("list_by_status"), values)
    else:
        rows = database.execute(sql("list_by_agent"), (*values, which.agent))
    return (unpack_head(body) for (body,) in rows)


def due(database: Database, until: int, limit: int) -> list[tuple[str, int]]:
    """Return sessions whose wake time has come."""
    return [(unpack_id(found), at) for found, at in database.execute(sql("due"), (until, limit))]


def unsettled(database: Database, after: str, limit: int) -> list[SessionHead]:
    """Return heads of sessions that need an owner."""
    rows = database.execute(sql("maybe_owned"), (pack_id(after),))
    marked = (unpack_head(body) for (body,) in rows)
    found = list(islice(filter(needs_owner, marked), limit))
    rows.close()
    return found


def snapshot(database: Database, session_id: str, count: int) -> Snapshot | None:
    """Return a session's head, newest turns and live slots."""
    found = session(database, session_id)
    if found is None:
        return None
    sid, known = found
    earlier = max(known.last_turn - count, 0)
    newest = _turns(database, session_id, sid, earlier, count)
    slots = {
        slot: LiveSlot(unpack_id(turn_id), content, at)
        for slot, turn_id, content, at in database.execute(sql("live"), (sid,))
    }
    return Snapshot(known, newest, slots, earlier > 0)


def events(database: Database, session_id: str, after: int, limit: int, max_bytes: int) -> EventPage:
    """Return a page of a session's log."""
    found = session(database, session_id)
    if found is None:
        raise SessionNotFound(session_id)
    sid, known = found
    check_cursor(known, after)
    page = _read_page(database, session_id, sid, after, limit, max_bytes) if limit > 0 else []
    last = page[-1].seq if page else after
    return EventPage(page, last, last < known.last_seq, known.retained_after)


def _read_page(
    database: Database, session_id: str, sid: int, after: int, limit: int, max_bytes: int
) -> list[LoggedEvent]:
    page: list[LoggedEvent] = []
    size = 0
    rows = database.execute(sql("events"), (position(sid, after), position(sid, LARGEST_NUMBER), limit))
    for row in rows:
        size += len(row[3])
        if page and size > max_bytes:
            break
        page.append(to_event(session_id, row))
    rows.close()
    return page


def _turns(database: Database, session_id: str, sid: int, after: int, limit: int) -> list[Turn]:
    bounds = (position(sid, after), position(sid, LARGEST_NUMBER), limit)
    return [to_turn(session_id, row) for row in database.execute(sql("turns"), bounds)]


def turns(database: Database, session_id: str, after: int, limit: int) -> list[Turn]:
    """Return turns in order of number."""
    sid = sid_of(database, session_id)
    return [] if sid is None else _turns(database, session_id, sid, after, limit)


def turn(database: Database, session_id: str, turn_id: str) -> Turn | None:
    """Return one turn by its id."""
    sid = sid_of(database, session_id)
    return None if sid is None else lookups.turn_by_id(database, session_id, sid, turn_id)


def turn_by_number(database: Database, session_id: str, number: int) -> Turn | None:
    """Return one turn by its number."""
    sid = sid_of(database, session_id)
    row = None if sid is None else lookups.turn_row(database, sid, number)
    return None if row is None else to_turn(session_id, row)


def asks(database: Database, session_id: str, status: str | None, after: str, limit: int) -> list[Ask]:
    """Return questions in order of id."""
    sid = sid_of(database, session_id)
    if sid is None:
        return []
    values: tuple[object, ...] = (sid, pack_id(after), limit)
    if status is None:
        return [to_ask(row) for row in database.execute(sql("asks"), values)]
    return [to_ask(row) for row in database.execute(sql("asks_by_status"), (*values, status))]


def ask(database: Database, session_id: str, ask_id: str) -> Ask | None:
    """Return one question."""
    sid = sid_of(database, session_id)
    return None if sid is None else lookups.ask(database, session_id, sid, ask_id)


def message(database: Database, session_id: str, message_id: str) -> Message | None:
    """Return one steering message."""
    sid = sid_of(database, session_id)
    return None if sid is None else lookups.message(database, session_id, sid, message_id)


def runs(database: Database, session_id: str, after: int, limit: int) -> list[Run]:
    """Return runs in order of number."""
    sid = sid_of(database, session_id)
    if sid is None:
        return []
    bounds = (position(sid, after), position(sid, LARGEST_NUMBER), limit)
    return [to_run(session_id, row) for row in database.execute(sql("runs"), bounds)]


def run(database: Database, session_id: str, run_id: str) -> Run | None:
    """Return one run by its id."""
    sid = sid_of(database, session_id)
    row = one(database, sql("run"), (pack_id(run_id),))
    if row is None or sid_at(row[0]) != sid:
        return None
    return to_run(session_id, row)
