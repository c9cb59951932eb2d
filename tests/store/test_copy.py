"""Moving an installation between stores of any two kinds: all of it or nothing, and sessions go on where they were."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from postgres_server import PostgresServer
from store_engines import PostgresEngine, SqliteEngine
from store_life import Life
from store_world import ENVIRONMENT, Clock, Engine, World, key

from perdure.errors import BadRequest, Conflict, PerdureError, StoreCorrupt, StoreInUse
from perdure.store.moving import KINDS
from perdure.store.port import SessionFilter
from perdure.store.tools.copy import copy
from perdure.store.tools.places import open_source, open_target

PAIRS = [("sqlite", "postgres"), ("postgres", "sqlite"), ("sqlite", "sqlite"), ("postgres", "postgres")]
Make = Callable[[str, str], Engine]


@pytest.fixture
def make(tmp_path: Path, clock: Clock, postgres: PostgresServer, postgres_template: str) -> Iterator[Make]:
    """Return stores of any kind by name."""
    made: list[PostgresEngine] = []

    def new(kind: str, name: str) -> Engine:
        if kind == "sqlite":
            return SqliteEngine(tmp_path / name, clock)
        made.append(PostgresEngine(postgres, postgres_template, clock))
        return made[-1]

    yield new
    for engine in made:
        engine.server.drop_database(engine.database)


async def using(engine: Engine, work: Callable[[World], Awaitable[Any]]) -> Any:
    store = engine.store()
    await store.open()
    try:
        return await work(World(store))
    finally:
        await store.close()


@pytest.fixture
async def life() -> Life:
    return Life()


async def everything(address: str) -> dict[str, list[Any]]:
    """Return all rows of a store that nobody uses."""
    source = open_source(address)
    await source.open()
    try:
        return {kind: [row async for page in source.pages(kind) for row in page] for kind in KINDS}
    finally:
        await source.close()


@pytest.mark.parametrize(("kind", "other"), PAIRS)
async def test_all_of_it_is_there_and_comes_back_as_it_was(make: Make, life: Life, kind: str, other: str) -> None:
    source, target, back = make(kind, "a"), make(other, "b"), make(kind, "c")
    await using(source, life.live)
    before = await everything(source.address)
    assert [kind for kind in KINDS if not before[kind]] == []
    copied = await copy(source.address, target.address)
    assert copied.rows == {kind: len(rows) for kind, rows in before.items()}
    assert any("1 deployments have no source" in note for note in copied.notes)
    assert await everything(target.address) == before
    await copy(target.address, back.address)
    assert await everything(back.address) == before
    assert await everything(source.address) == before


@pytest.mark.parametrize(("kind", "other"), PAIRS[:2])
async def test_sessions_go_on_where_they_were(make: Make, life: Life, kind: str, other: str) -> None:
    source, target = make(kind, "a"), make(other, "b")
    await using(source, life.live)
    await copy(source.address, target.address)

    async def go_on(world: World) -> None:
        store = world.store
        assert await world.head(life.running) is not None
        # The turn that ran is settled by its fence, as if nothing had happened.
        await world.output(life.running, 1, "after")
        (answer,) = await store.asks(life.running.id, "pending", "", 10)
        assert answer.id == life.ask
        await world.complete(life.running)
        assert await store.log((await store.runs(life.running.id, 0, 1))[0].id, 0, 100) == b"printed\0"
        # An operation that is sent again gets the first one's receipt, under keys that are taken.
        assert (await world.enqueue(life.waiting, "two", idempotency=key("two"))).replayed
        assert await store.find_key(ENVIRONMENT, "assistant", "closed") == life.closed.id
        with pytest.raises(PerdureError, match="belongs to"):
            await world.create(name="waiting \N{GRINNING FACE}")
        # The run of the closed one has yet to be ended.
        assert [head.id for head in await store.unsettled("", 10)] == [life.closed.id, life.hibernated.id]
        assert len(await store.sessions(SessionFilter(ENVIRONMENT), None, 100)) == 7
        environment = await store.environment(ENVIRONMENT)
        assert environment is not None
        assert environment.current_deployment == life.deployment.id
        assert await store.archive(life.deployment.id) == b"\0source" * 1_000
        fresh = await world.create()
        await world.turns(fresh, 2)
        page = await store.feed(ENVIRONMENT, "", 1000)
        last = page.events[-1]
        assert (last.session_id, last.type) == (fresh.id, "turn.completed")
        per_session: dict[str, list[int]] = {}
        for event in page.events:
            per_session.setdefault(event.session_id, []).append(event.seq)
        assert all(seqs == list(range(1, len(seqs) + 1)) for seqs in per_session.values())
        assert len(per_session) == 8

    await using(target, go_on)


async def test_whoever_had_a_session_before_has_it_no_more(make: Make, life: Life) -> None:
    source, target = make("postgres", "a"), make("postgres", "b")
    await using(source, life.live)
    await copy(source.address, target.address)

    async def claim(world: World) -> None:
        leases = world.store.leases
        assert leases is not None
        assert await leases.alive() == []
        assert await leases.renew("w", 60_000_000)
        # Those that run, and those that wait for a run; what is at home on a machine waits for that.
        claimed = await leases.claim("w", None, 100)
        assert life.running.id in claimed
        assert life.hibernated.id not in claimed
        assert life.hibernated.id in await leases.claim("w", "here", 100)

    await using(target, claim)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_store_that_is_used_is_not_moved(make: Make, life: Life, kind: str) -> None:
    source, target, unused = make(kind, "a"), make(kind, "b"), make("sqlite", "c")
    await using(source, life.live)
    before = await everything(source.address)

    async def refused(world: World) -> None:
        for way in ((source.address, unused.address), (unused.address, source.address)):
            with pytest.raises((StoreInUse, BadRequest)):
                await copy(*way)
        with pytest.raises(StoreInUse, match="in use by"):
            await copy(source.address, unused.address)

    await using(source, refused)
    assert await everything(source.address) == before

    async def taken(world: World) -> None:
        with pytest.raises(StoreInUse, match="in use by"):
            await copy(source.address, target.address)

    await using(target, taken)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_target_with_something_in_it_is_left_alone(make: Make, life: Life, kind: str) -> None:
    source, target = make("sqlite", "a"), make(kind, "b")
    await using(source, life.live)
    await using(target, lambda world: world.create())
    before = target.contents()
    with pytest.raises(Conflict, match="is not empty: it has 1 sessions"):
        await copy(source.address, target.address)
    assert kind == "sqlite" or target.contents() == before
    assert len((await everything(target.address))["sessions"]) == 1


async def test_nothing_is_moved_from_nowhere(make: Make, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="There is no store"):
        await copy(str(tmp_path / "nowhere"), make("sqlite", "b").address)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_what_differs_afterwards_does_not_count(
    make: Make, life: Life, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = make("sqlite", "a"), make(kind, "b")
    await using(source, life.live)
    place = open_target(target.address)
    real = type(place).put

    async def wrong(self: Any, name: str, rows: list[Any]) -> None:
        if name == "turns":
            rows = [(*row[:-1], "wrong") for row in rows]
        await real(self, name, rows)

    monkeypatch.setattr(type(place), "put", wrong)
    with pytest.raises(StoreCorrupt, match="turns, first at session"):
        await copy(source.address, target.address)
    monkeypatch.undo()
    assert (await copy(source.address, target.address)).rows["turns"] > 0


CRASHES = ["store.copy.begun", "store.copy.page=events", "store.copy.page=commits", "store.copy.done"]


@pytest.mark.parametrize("point", CRASHES)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_copy_that_is_killed_leaves_all_or_nothing(make: Make, life: Life, kind: str, point: str) -> None:
    source, target = make("sqlite", "a"), make(kind, "b")
    await using(source, life.live)
    before = await everything(source.address)
    where = f"{source.address!r}, {target.address!r}"
    code = f"import asyncio; from perdure.store.tools.copy import copy; asyncio.run(copy({where}))"
    child = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", code],
        env={**os.environ, "PERDURE_CRASH_POINT": f"{point}:kill"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    if point != "store.copy.done":
        await retried(source.address, target.address)
    assert await everything(target.address) == before
    assert await everything(source.address) == before


async def retried(source: str, target: str) -> None:
    """Copy once the server has noticed that the process before is gone."""
    while True:
        try:
            await copy(source, target)
            return
        except StoreInUse:
            await asyncio.sleep(0.02)


async def test_pages_that_are_full_are_moved_whole(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.store.moving._PAGE", 7)
    monkeypatch.setattr("perdure.store.sqlite.moving._MANY", 7)
    monkeypatch.setitem(__import__("perdure.store.moving", fromlist=["PAGE"]).PAGE, "events", 11)

    async def many(world: World) -> None:
        for number in range(15):
            session = await world.create(idempotency=key(str(number)))
            await world.turns(session, 5)

    source, target, back = make("sqlite", "a"), make("postgres", "b"), make("sqlite", "c")
    await using(source, many)
    before = await everything(source.address)
    await copy(source.address, target.address)
    await copy(target.address, back.address)
    assert await everything(target.address) == await everything(back.address) == before


async def test_progress_is_told(make: Make, life: Life) -> None:
    source, target = make("sqlite", "a"), make("sqlite", "b")
    await using(source, life.live)
    told: list[tuple[str, str, int]] = []
    copied = await copy(source.address, target.address, lambda *news: told.append(news))
    assert {(what, kind) for what, kind, _ in told} == {(what, kind) for what in ("copy", "verify") for kind in KINDS}
    assert ("verify", "events", copied.rows["events"]) in told
