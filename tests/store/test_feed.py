"""The feed over all sessions of an environment: all events, in the order of commits, and nothing behind a cursor."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator

import psycopg
import pytest
from postgres_server import PostgresServer
from store_world import ENVIRONMENT, Engine, World, enqueue, key

from perdure.errors import InvalidCursor
from perdure.records.ids import new_id
from perdure.records.sessions import LoggedEvent
from perdure.rules import commands
from perdure.store import feed
from perdure.store.port import FEED_END, Store
from perdure.store.postgres import PostgresStore

Seen = list[tuple[str, int]]


def seen(events: list[LoggedEvent]) -> Seen:
    return [(event.session_id, event.seq) for event in events]


async def rest(store: Store, after: str = "", limit: int = 1000) -> tuple[list[LoggedEvent], str]:
    """Return all that can be read from a cursor on, and the cursor behind it."""
    found: list[LoggedEvent] = []
    while True:
        page = await store.feed(ENVIRONMENT, after, limit)
        assert len(page.events) <= limit
        found += page.events
        after = page.cursor
        if not page.has_more:
            return found, after


async def test_a_feed_has_all_events_as_sessions_have_them(world: World) -> None:
    sessions = [await world.create() for _ in range(5)]
    await world.create(environment="demo/other")
    for session in sessions:
        await world.turns(session, 3)
    found, end = await rest(world.store)
    logs = {session.id: await world.log(session) for session in sessions}
    assert Counter(seen(found)) == Counter((one, seq) for one, log in logs.items() for seq, _ in log)
    for session in sessions:
        log = await world.store.events(session.id, 0, 1000)
        assert [event for event in found if event.session_id == session.id] == log.events
    assert (await world.store.feed(ENVIRONMENT, end, 10)).events == []
    await world.enqueue(sessions[2])
    more, _ = await rest(world.store, end)
    assert [(event.session_id, event.type) for event in more] == [(sessions[2].id, "turn.queued")]
    assert (await world.store.feed("demo/unknown", "", 10)).events == []


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
async def test_pages_of_any_size_make_the_whole(world: World, limit: int) -> None:
    sessions = [await world.create(said="x", start=True) for _ in range(3)]
    for session in sessions:
        await world.complete(session)
    await asyncio.gather(*[world.enqueue(session, start=True) for session in sessions])
    whole, _ = await rest(world.store)
    assert seen((await rest(world.store, "", limit))[0]) == seen(whole)


async def test_a_page_has_an_end_in_bytes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for engine in ("sqlite", "postgres"):
        monkeypatch.setattr(f"perdure.store.{engine}.feed.MAX_BYTES", 3_000)
    session = await world.create(said="x" * 2_000, start=True)
    for number in range(1, 6):
        await world.output(session, number, "y" * 1_300)
    page = await world.store.feed(ENVIRONMENT, "", 1000)
    assert page.has_more
    assert sum(len(event.data) for event in page.events) <= 3_000
    more, _ = await rest(world.store, page.cursor)
    assert seen(page.events + more) == [(session.id, seq) for seq, _ in await world.log(session)]


async def test_a_feed_can_be_read_from_now_on(world: World) -> None:
    session = await world.create()
    page = await world.store.feed(ENVIRONMENT, FEED_END, 10)
    assert (page.events, page.has_more) == ([], False)
    await world.enqueue(session)
    await world.enqueue(session)
    later, _ = await rest(world.store, page.cursor)
    assert [event.type for event in later] == ["turn.queued", "turn.queued"]
    for environment in (ENVIRONMENT, "demo/unknown"):
        empty = await world.store.feed(environment, (await world.store.feed(environment, FEED_END, 1)).cursor, 5)
        assert empty.events == []


async def test_a_limit_of_nothing_gives_nothing(world: World) -> None:
    await world.create()
    page = await world.store.feed(ENVIRONMENT, "", 0)
    assert page.events == []
    assert len((await rest(world.store, page.cursor))[0]) == 1


async def test_a_refusal_and_a_replay_are_not_in_the_feed(world: World) -> None:
    session = await world.create(name="k")
    await world.enqueue(session, idempotency=key("a"))
    _, end = await rest(world.store)
    assert (await world.enqueue(session, idempotency=key("a"))).replayed
    with pytest.raises(Exception, match="belongs to"):
        await world.create(name="k")
    assert (await rest(world.store, end))[0] == []
    await world.enqueue(session)
    assert len((await rest(world.store, end))[0]) == 1


async def test_a_cursor_of_another_feed_is_refused(world: World) -> None:
    good = (await world.store.feed(ENVIRONMENT, "", 1)).cursor
    other = ("0" if good[0] != "0" else "1") + good[1:]
    for wrong in ("x", "0", "-1", good + "-", good + "-1-1", other, good.upper() + " "):
        with pytest.raises(InvalidCursor, match="no cursor of this feed"):
            await world.store.feed(ENVIRONMENT, wrong, 10)


async def test_readers_of_a_busy_environment_miss_nothing_and_see_sessions_in_order(
    world: World, engine: Engine
) -> None:
    """Several writers, several readers that page at their own pace, and a check against the logs."""
    stores = [world.store]
    if engine.address.startswith("postgresql"):
        for _ in range(2):
            other = engine.store()
            await other.open()
            stores.append(other)
    sessions = [await world.create() for _ in range(12)]
    done = asyncio.Event()
    dice = random.Random(7)

    async def write(store: Store) -> None:
        for _ in range(60):
            few = [dice.choice(sessions) for _ in range(3)]
            await asyncio.gather(
                *[store.apply(enqueue(session.id)) for session in few],
                *[
                    store.apply(commands.PlaceHold(session_id=one.id, hold_id=new_id(), reason="r", message="m"))
                    for one in few[:1]
                ],
                return_exceptions=True,
            )

    async def read(store: Store, limit: int) -> Seen:
        found: Seen = []
        after, last = "", False
        while True:
            page = await store.feed(ENVIRONMENT, after, limit)
            found += seen(page.events)
            after = page.cursor
            if not page.has_more and last:
                return found
            last = done.is_set() and not page.has_more

    readers = [asyncio.create_task(read(store, 5 + number * 17)) for number, store in enumerate(stores)]
    await asyncio.gather(*[write(store) for store in stores])
    done.set()
    logs = {session.id: [seq for seq, _ in await world.log(session)] for session in sessions}
    for reader in readers:
        found = await reader
        assert {session: [seq for one, seq in found if one == session] for session in logs} == logs
        assert len(found) == sum(map(len, logs.values()))
    for other in stores[1:]:
        await other.close()


async def test_a_feed_goes_on_after_a_restart(world: World, engine: Engine) -> None:
    session = await world.create()
    _, end = await rest(world.store)
    await world.store.close()
    again = engine.store()
    await again.open()
    assert (await again.feed(ENVIRONMENT, end, 10)).events == []
    await again.apply(enqueue(session.id))
    assert [event.seq for event in (await again.feed(ENVIRONMENT, end, 10)).events] == [2]
    await again.close()


# --- transactions that stay open


@pytest.fixture
async def shared(postgres: PostgresServer, postgres_template: str) -> AsyncIterator[tuple[PostgresStore, str]]:
    name = postgres.new_database(postgres_template)
    store = PostgresStore(postgres.url(name))
    await store.open()
    yield store, name
    await store.close()
    postgres.drop_database(name)


async def test_what_commits_late_does_not_come_up_behind_a_reader(
    shared: tuple[PostgresStore, str], postgres: PostgresServer
) -> None:
    store, name = shared
    world = World(store)
    early, late = await world.create(), await world.create()
    _, cursor = await rest(store)
    with psycopg.connect(postgres.url(name)) as slow:
        # As a commit of another process that has begun, written what it writes, and now stands still.
        slow.execute(
            "INSERT INTO perdure.commits SELECT %s, pg_current_xact_id()::text::bigint << 16, "
            "pg_current_xact_id()::text::bigint, 0, ARRAY[%s::uuid], ARRAY[1::bigint], ARRAY[1::bigint]",
            (ENVIRONMENT, late.id),
        )
        await world.enqueue(early)
        # The reader waits for it, with all that came after.
        page = await store.feed(ENVIRONMENT, cursor, 10)
        assert (page.events, page.has_more) == ([], False)
        now = await store.feed(ENVIRONMENT, FEED_END, 10)
        assert now.cursor == cursor
        slow.commit()
    found, _ = await rest(store, page.cursor)
    assert seen(found) == [(late.id, 1), (early.id, 2)]


async def test_a_transaction_that_began_first_and_came_second_to_a_session_comes_second_in_the_feed(
    shared: tuple[PostgresStore, str], postgres: PostgresServer
) -> None:
    """Numbers of transactions are not the order of commits; marks are."""
    store, name = shared
    world = World(store)
    session = await world.create()
    _, cursor = await rest(store)
    with psycopg.connect(postgres.url(name)) as second:
        (xid,) = second.execute("SELECT pg_current_xact_id()::text::bigint").fetchone() or (0,)
        await world.enqueue(session)
        first_mark, first_xid = postgres.sql(
            "SELECT mark, xid FROM perdure.commits ORDER BY mark DESC LIMIT 1", database=name
        )[0]
        assert xid < first_xid  # type: ignore[operator]
        # It finds the head as the first one has left it.
        (seen_mark,) = second.execute("SELECT mark FROM perdure.heads FOR UPDATE").fetchone() or (0,)
        assert seen_mark == first_mark
        second.execute(
            "INSERT INTO perdure.commits SELECT %s, greatest(%s::bigint << 16, %s), %s, 0, ARRAY[%s::uuid], "
            "ARRAY[3::bigint], ARRAY[3::bigint]",
            (ENVIRONMENT, xid, seen_mark + 1, xid, session.id),
        )
        second.execute(
            "INSERT INTO perdure.events (session, seq, type, at, data) VALUES (%s, 3, 'x', 0, '{}')", (session.id,)
        )
        second.commit()
    found, _ = await rest(store, cursor)
    assert [event.seq for event in found] == [2, 3]


async def test_our_own_commits_mark_what_they_have_seen(
    shared: tuple[PostgresStore, str], postgres: PostgresServer
) -> None:
    store, name = shared
    world = World(store)
    session = await world.create()
    postgres.sql("UPDATE perdure.heads SET mark = mark + (1000 << 16)", database=name)
    await world.enqueue(session)
    found = postgres.sql("SELECT mark, xid FROM perdure.commits ORDER BY mark", database=name)
    ((head,),) = postgres.sql("SELECT mark FROM perdure.heads", database=name)
    (first, _), (second, xid) = found
    assert second == head == first + (1000 << 16) + 1  # type: ignore[operator]
    assert second > xid << 16  # type: ignore[operator]


# --- the arithmetic of pages


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
def test_pieces_lead_through_commits_without_gap(limit: int) -> None:
    commits = [
        feed.Commit((5, 0), [feed.Range("a", 3, 6), feed.Range("b", 1, 1)]),
        feed.Commit((7, 2), [feed.Range("a", 7, 7)]),
        feed.Commit((7, 3), [feed.Range("b", 2, 9), feed.Range("c", 1, 4)]),
    ]
    whole = [
        (one.session, seq) for commit in commits for one in commit.ranges for seq in range(one.first, one.last + 1)
    ]
    found: Seen = []
    cursor = feed.Cursor((0, 0))
    while True:
        left = [c for c in commits if c.place > cursor.place or (c.place == cursor.place and not cursor.is_whole)]
        asked = feed.pieces(left, cursor, limit)
        got = [(piece.session, seq) for piece in asked for seq in range(piece.first, piece.last + 1)]
        assert len(got) <= limit
        found += got
        page = feed.page("01234567", cursor, left, asked, feed.Read([], cut=False))
        read = feed.read_cursor(page.cursor)
        assert read is not None
        cursor = read[1]
        assert page.has_more == (len(found) < len(whole))
        if not page.has_more:
            break
    assert found == whole
