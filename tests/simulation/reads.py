"""What readers ask of the truth."""

from __future__ import annotations

from tests.simulation.truth import Truth

from perdure.errors import InvalidCursor, SessionNotFound
from perdure.records.sessions import Ask, LoggedEvent, Message, Run, SessionHead, Turn
from perdure.rules.dispatch import needs_owner
from perdure.store.port import FEED_END, Deployment, EventPage, FeedPage, SessionFilter, Snapshot
from perdure.store.records import check_cursor


def sessions(truth: Truth, which: SessionFilter, before: str | None, limit: int) -> list[SessionHead]:
    """Return heads, newest first."""
    found = [
        entry.head
        for key, entry in sorted(truth.entries.items(), reverse=True)
        if entry.head.environment == which.environment
        and which.agent in (None, entry.head.agent)
        and which.key in (None, entry.head.key)
        and (not which.statuses or entry.head.status in which.statuses)
        and (before is None or key < before)
    ]
    return found[:limit]


def due(truth: Truth, until: int, limit: int) -> list[tuple[str, int]]:
    """Return sessions that are to be looked at, earliest first."""
    times = ((entry.columns[1], key) for key, entry in truth.entries.items())
    return [(key, at) for at, key in sorted((at, key) for at, key in times if at is not None and at <= until)][:limit]


def unsettled(truth: Truth, after: str, limit: int) -> list[SessionHead]:
    """Return heads of sessions that need an owner."""
    found = (entry.head for key, entry in sorted(truth.entries.items()) if key > after)
    return [head for head in found if needs_owner(head)][:limit]


def snapshot(truth: Truth, session_id: str, count: int) -> Snapshot | None:
    """Return a session's head, newest turns and live slots."""
    head = truth.head(session_id)
    if head is None:
        return None
    earlier = max(head.last_turn - count, 0)
    return Snapshot(head, turns(truth, session_id, earlier, count), dict(truth.rows[session_id].live), earlier > 0)


def events(truth: Truth, session_id: str, after: int, limit: int, max_bytes: int) -> EventPage:
    """Return a page of a session's log."""
    head = truth.head(session_id)
    if head is None:
        raise SessionNotFound(session_id)
    check_cursor(head, after)
    rows = truth.rows[session_id]
    page: list[LoggedEvent] = []
    size = 0
    for event in rows.events[after : after + max(limit, 0)]:
        size += len(event.data)
        if page and size > max_bytes:
            break
        page.append(rows.event(event))
    last = page[-1].seq if page else after
    return EventPage(page, last, last < head.last_seq, head.retained_after)


def feed(truth: Truth, environment: str, after: str, limit: int) -> FeedPage:
    """Return events of all sessions of an environment; cursors are places in the order of all commits."""
    end = len(truth.order)
    if after not in ("", FEED_END) and not (after.isascii() and after.isdigit() and int(after) <= end):
        raise InvalidCursor(f"There is no place {after!r} in the feed.")
    start = end if after == FEED_END else int(after or 0)
    found: list[LoggedEvent] = []
    for where, rows, event in truth.order[start:]:
        if len(found) >= limit:
            break
        start += 1
        if where == environment:
            found.append(rows.event(event))
    return FeedPage(found, str(start), any(where == environment for where, _, _ in truth.order[start:]))


def turns(truth: Truth, session_id: str, after: int, limit: int) -> list[Turn]:
    """Return turns in order of number."""
    rows = truth.rows.get(session_id)
    if rows is None:
        return []
    found = (rows.turn(row.number) for row in rows.turns[after : after + max(limit, 0)])
    return [turn for turn in found if turn is not None]


def turn(truth: Truth, session_id: str, turn_id: str) -> Turn | None:
    """Return one turn by its id."""
    rows = truth.rows.get(session_id)
    return None if rows is None else rows.turn_by_id(turn_id)


def turn_by_number(truth: Truth, session_id: str, number: int) -> Turn | None:
    """Return one turn by its number."""
    rows = truth.rows.get(session_id)
    return None if rows is None else rows.turn(number)


def asks(truth: Truth, session_id: str, status: str | None, after: str, limit: int) -> list[Ask]:
    """Return questions in order of id."""
    rows = truth.rows.get(session_id)
    if rows is None:
        return []
    return [ask for key, ask in sorted(rows.asks.items()) if key > after and status in (None, ask.status)][:limit]


def ask(truth: Truth, session_id: str, ask_id: str) -> Ask | None:
    """Return one question."""
    rows = truth.rows.get(session_id)
    return None if rows is None else rows.asks.get(ask_id)


def message(truth: Truth, session_id: str, message_id: str) -> Message | None:
    """Return one steering message."""
    rows = truth.rows.get(session_id)
    return None if rows is None else rows.messages.get(message_id)


def runs(truth: Truth, session_id: str, after: int, limit: int) -> list[Run]:
    """Return runs in order of number."""
    rows = truth.rows.get(session_id)
    return [] if rows is None else rows.runs[after : after + max(limit, 0)]


def run(truth: Truth, session_id: str, run_id: str) -> Run | None:
    """Return one run by its id."""
    return next((run for run in runs(truth, session_id, 0, 1 << 30) if run.id == run_id), None)


def deployments(truth: Truth, environment: str, before: str | None, limit: int) -> list[Deployment]:
    """Return an environment's deployments, newest first."""
    found = [one for key, one in sorted(truth.deployments.items(), reverse=True) if before is None or key < before]
    return [one for one in found if one.environment == environment][:limit]
