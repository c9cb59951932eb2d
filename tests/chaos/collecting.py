"""The store as it is in the end, read through its port and written as the API would show it."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.engine.service import SessionView
from perdure.server import wire
from perdure.store import open_store
from perdure.store.port import SessionFilter, Store
from perdure.testing import History

SCOPE = "demo/development"
_PAGE = 1000


async def collect(url: str) -> dict[str, History]:
    """Return the history of every session in a store, by session."""
    store = open_store(url)
    await store.open()
    try:
        return {session: await _history(store, session) for session in await _sessions(store)}
    finally:
        await store.close()


async def _sessions(store: Store) -> list[str]:
    found: list[str] = []
    before: str | None = None
    while page := await store.sessions(SessionFilter(SCOPE), before, _PAGE):
        found += [head.id for head in page]
        before = page[-1].id
    return found


async def _history(store: Store, session: str) -> History:
    head = await store.head(session)
    assert head is not None
    events: list[Any] = []
    more = True
    while more:
        page = await store.events(session, len(events), _PAGE)
        events += msgspec.json.decode(wire.event_page_bytes(page))["events"]
        more = page.has_more
    turns: list[Any] = []
    while rows := await store.turns(session, len(turns), _PAGE):
        turns += _plain(wire.turns(rows))
    runs: list[Any] = []
    while found := await store.runs(session, len(runs), _PAGE):
        runs += _plain([wire.run(row) for row in found])
    return History(_plain(wire.session(SessionView(head, None))), turns, events, runs)


def _plain(document: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(document))
