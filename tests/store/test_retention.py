"""What goes by retention, what stays, and that nobody is stopped by it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from store_world import ADA, ENVIRONMENT, WORKER, Clock, Engine, World, enqueue, key, text

from perdure import crashpoints
from perdure.crashpoints import TOOL_POINTS, CrashPointReached
from perdure.errors import BadRequest, CursorExpired, EnvironmentNotFound, SessionNotFound
from perdure.records.ids import new_id
from perdure.records.sessions import SessionHead
from perdure.rules import commands
from perdure.rules.retention import Trim, gone
from perdure.store.port import Deployment, Pruned, Retention, Store
from perdure.store.tools.prune import prune

DAY = 86_400_000_000
ALL = Retention(events=DAY, sessions=DAY, receipts=DAY)


@pytest.fixture
async def world(store: Store) -> World:
    await store.put_deployment(Deployment(new_id(), ENVIRONMENT, "d", 1, "/source", ()))
    return World(store)


async def swept(world: World, clock: Clock, policy: Retention = ALL, rows: int = 50) -> Pruned:
    """Set a policy and remove all that is due."""
    await world.store.set_retention(ENVIRONMENT, policy)
    return (await prune(world.store, clock.now, rows=rows))[ENVIRONMENT]


async def close(world: World, session: SessionHead) -> SessionHead:
    """End a session for good: its run, too."""
    head = await world.head(session)
    if head.run is not None:
        await world.apply(
            commands.Sleep(session_id=head.id, fence=head.fence, run_id=head.run.id, reason="idle", start=False)
        )
    await world.apply(commands.Close(session_id=session.id, control_id=new_id(), issuer=ADA))
    return await world.head(session)


async def seqs(store: Store, session: SessionHead, after: int) -> list[int]:
    return [event.seq for event in (await store.events(session.id, after, 1000)).events]


# --- the policy


async def test_a_policy_is_kept_with_its_environment(world: World, engine: Engine) -> None:
    assert await world.store.retention(ENVIRONMENT) == Retention()
    policy = Retention(events=5, receipts=7)
    await world.store.set_retention(ENVIRONMENT, policy)
    await world.store.close()
    again = engine.store()
    await again.open()
    assert await again.retention(ENVIRONMENT) == policy
    await again.set_retention(ENVIRONMENT, Retention())
    assert await again.retention(ENVIRONMENT) == Retention()
    with pytest.raises(EnvironmentNotFound):
        await again.retention("demo/unknown")
    with pytest.raises(EnvironmentNotFound):
        await again.set_retention("demo/unknown", policy)
    with pytest.raises(EnvironmentNotFound):
        await again.prune("demo/unknown", 1, 1)
    for wrong in (Retention(events=0), Retention(sessions=-1)):
        with pytest.raises(BadRequest, match="Nothing was changed"):
            await again.set_retention(ENVIRONMENT, wrong)
    await again.close()


async def test_without_a_policy_nothing_goes(world: World, clock: Clock) -> None:
    session = await world.create(idempotency=key("k"))
    await world.turns(session, 2)
    await close(world, session)
    before = await world.log(session)
    clock.now += 1000 * DAY
    assert await swept(world, clock, Retention()) == Pruned(done=True)
    assert await world.log(session) == before


# --- events of sessions that go on


async def test_old_events_go_with_what_they_tell_of_and_newer_ones_stay(world: World, clock: Clock) -> None:
    session = await world.create()
    await world.turns(session, 3)
    old = await world.head(session)
    (first, *_) = await world.store.turns(session.id, 0, 10)
    clock.now += 2 * DAY
    await world.turns(session, 2)
    newest = await world.store.turns(session.id, 3, 10)
    gone_now = await swept(world, clock, Retention(events=DAY))
    assert (gone_now.done, gone_now.turns, gone_now.events) == (True, 3, old.last_seq)
    head = await world.head(session)
    assert head.retained_after == old.last_seq
    assert await seqs(world.store, session, old.last_seq) == list(range(old.last_seq + 1, head.last_seq + 1))
    for after in (0, old.last_seq - 1):
        with pytest.raises(CursorExpired) as told:
            await world.store.events(session.id, after, 10)
        assert told.value.details == {"retained_after": old.last_seq}
    assert await world.store.turn(session.id, first.id) is None
    assert await world.store.turns(session.id, 0, 10) == newest
    assert (await world.store.snapshot(session.id, 10)).turns == newest  # type: ignore[union-attr]
    assert gone(head) == f"What had ended by event {old.last_seq} is gone by retention."
    assert gone(session) == ""
    assert await swept(world, clock, Retention(events=DAY)) == Pruned(done=True)
    await world.turns(session, 1)


async def test_what_an_unfinished_turn_needs_stays(world: World, clock: Clock) -> None:
    session = await world.create()
    await world.turns(session, 1)
    done = (await world.head(session)).last_seq
    await world.enqueue(session, "runs for days", start=True)
    await world.enqueue(session, "waits for days")
    await world.output(session)
    before = await world.store.turns(session.id, 1, 10)
    clock.now += 5 * DAY
    await swept(world, clock, Retention(events=DAY))
    assert (await world.head(session)).retained_after == done
    assert await world.store.turns(session.id, 0, 10) == before
    await world.output(session, 2)
    await world.complete(session)
    ended = await world.head(session)
    clock.now += 5 * DAY
    await swept(world, clock, Retention(events=DAY))
    # The turn that waited runs now; the one before it may go.
    assert [turn.number for turn in await world.store.turns(session.id, 0, 10)] == [3]
    assert (await world.head(session)).retained_after < ended.last_seq
    await world.complete(session)


async def test_questions_messages_runs_and_logs_go_with_their_turns(world: World, clock: Clock) -> None:
    session = await world.create(said="x", start=True)
    assert session.run is not None
    worker = {"session_id": session.id, "fence": session.fence, "turn": 1}
    asked, told = new_id(), new_id()
    await world.apply(
        commands.CreateAsk(ask_id=asked, prompt_json=text("?"), control_json=b'{"kind":"text"}', **worker)
    )
    await world.apply(commands.TakeMessages(**worker))
    turn = new_id()
    await world.apply(
        commands.Send(session_id=session.id, turn=commands.NewTurn(turn, text("psst")), message_id=told, permit=None)
    )
    await world.store.append_log(session.run.id, 0, b"printed")
    await world.complete(session)
    head = await world.head(session)
    await world.apply(
        commands.Sleep(session_id=head.id, fence=head.fence, run_id=session.run.id, reason="idle", start=False)
    )
    clock.now += 2 * DAY
    assert await world.store.ask(session.id, asked)
    assert await world.store.message(session.id, told)
    await world.turns(session, 1)
    (old_run, new_run) = await world.store.runs(session.id, 0, 10)
    await world.store.append_log(new_run.id, 0, b"fresh")
    await swept(world, clock, Retention(events=DAY))
    assert await world.store.ask(session.id, asked) is None
    assert await world.store.message(session.id, told) is None
    assert await world.store.runs(session.id, 0, 10) == [new_run]
    assert await world.store.log(old_run.id, 0, 100) == b""
    assert await world.store.log(new_run.id, 0, 100) == b"fresh"


async def test_only_the_environment_that_is_meant_is_swept(world: World, clock: Clock) -> None:
    other = await world.create(environment="demo/other")
    session = await world.create()
    await world.turns(session, 1)
    clock.now += 2 * DAY
    await swept(world, clock)
    assert (await world.head(session)).retained_after > 0
    assert (await world.head(other)).retained_after == 0


# --- whole sessions


async def test_sessions_that_ended_long_ago_go_whole_and_free_their_key(world: World, clock: Clock) -> None:
    ended, open_still = await world.create(name="k"), await world.create(name="other")
    for session in (ended, open_still):
        await world.turns(session, 2)
    assert (await close(world, ended)).status == "closed"
    clock.now += 2 * DAY
    late = await world.create()
    await close(world, late)
    assert (await swept(world, clock, Retention(sessions=DAY))).sessions == 1
    assert await world.store.head(ended.id) is None
    assert await world.store.snapshot(ended.id, 1) is None
    assert await world.store.find_key(ENVIRONMENT, "assistant", "k") is None
    with pytest.raises(SessionNotFound):
        await world.store.events(ended.id, 0, 10)
    with pytest.raises(SessionNotFound):
        await world.enqueue(ended)
    assert (await world.head(open_still)).retained_after == 0
    assert (await world.head(late)).status == "closed"
    again = await world.create(name="k")
    await world.turns(again, 1)
    assert await world.store.find_key(ENVIRONMENT, "assistant", "k") == again.id


async def test_a_session_that_has_ended_but_whose_process_has_not_stays(world: World, clock: Clock) -> None:
    session = await world.create(said="x", start=True)
    await world.apply(commands.Cancel(session_id=session.id, control_id=new_id(), issuer=ADA))
    clock.now += 2 * DAY
    assert (await swept(world, clock, Retention(sessions=DAY))).sessions == 0
    head = await world.head(session)
    assert head.run is not None
    await world.apply(commands.RunStopped(session_id=head.id, run_id=head.run.id, reason="done", fence=head.fence))
    assert (await swept(world, clock, Retention(sessions=DAY))).sessions == 1


# --- receipts


async def test_old_receipts_go_and_newer_ones_answer(world: World, clock: Clock) -> None:
    session = await world.create(idempotency=key("create"))
    await world.enqueue(session, idempotency=key("old"))
    clock.now += 2 * DAY
    first = await world.enqueue(session, idempotency=key("new"))
    assert (await swept(world, clock, Retention(receipts=DAY))).receipts == 2
    assert (await world.enqueue(session, idempotency=key("new"))).receipt == first.receipt
    assert await world.store.receipt(key("old")) is None
    assert not (await world.enqueue(session, idempotency=key("old"))).replayed


# --- the feed


async def test_the_feed_has_a_floor(world: World, clock: Clock) -> None:
    session = await world.create()
    await world.turns(session, 2)
    old = (await world.store.feed(ENVIRONMENT, "", 3)).cursor
    newest = (await world.store.feed(ENVIRONMENT, "", 1000)).cursor
    clock.now += 2 * DAY
    await world.enqueue(session)
    await swept(world, clock)
    with pytest.raises(CursorExpired) as told:
        await world.store.feed(ENVIRONMENT, old, 10)
    floor = told.value.details["retained_after"]
    for after in (floor, newest, ""):
        page = await world.store.feed(ENVIRONMENT, after, 10)
        assert [event.type for event in page.events] == ["turn.queued"]
    clock.now += 1_000
    await swept(world, clock, Retention(events=1))
    assert (await world.store.feed(ENVIRONMENT, "", 10)).events == []
    await world.enqueue(session)
    assert len((await world.store.feed(ENVIRONMENT, page.cursor, 10)).events) == 1


async def test_the_feed_of_a_store_that_was_swept_goes_on_after_a_restart(
    world: World, clock: Clock, engine: Engine
) -> None:
    session = await world.create()
    clock.now += 2 * DAY
    await swept(world, clock)
    end = (await world.store.feed(ENVIRONMENT, "now", 1)).cursor
    await world.store.close()
    again = engine.store()
    await again.open()
    await again.apply(enqueue(session.id))
    assert len((await again.feed(ENVIRONMENT, end, 10)).events) == 1
    await again.close()


# --- bounds, breaks and beside whom


async def test_a_call_removes_about_as_much_as_it_may(world: World, clock: Clock) -> None:
    sessions = [await world.create() for _ in range(5)]
    for session in sessions:
        await world.turns(session, 6)
    clock.now += 2 * DAY
    await world.store.set_retention(ENVIRONMENT, ALL)
    calls = 0
    while True:
        done = await world.store.prune(ENVIRONMENT, clock.now, 20)
        calls += 1
        assert done.events + done.turns + done.receipts + done.sessions <= 40
        if done.done:
            break
    assert calls > 5
    for session in sessions:
        head = await world.head(session)
        assert await seqs(world.store, session, head.retained_after) == []


POINTS = [point for point in TOOL_POINTS if point.startswith("store.prune")]


@pytest.mark.parametrize("point", POINTS)
async def test_it_is_broken_off_anywhere_and_begun_again(world: World, clock: Clock, point: str) -> None:
    live, ended = await world.create(), await world.create(name="k")
    await world.turns(live, 4)
    await world.turns(ended, 4)
    await close(world, ended)
    clock.now += 2 * DAY
    await world.turns(live, 1)
    await world.store.set_retention(ENVIRONMENT, ALL)
    for nth in range(1, 40):
        crashpoints.arm(f"{point}:raise:{nth}")
        try:
            with pytest.raises(CrashPointReached):
                await prune(world.store, clock.now, rows=7)
            crashpoints.arm(None)
            head = await world.head(live)
            log = await seqs(world.store, live, head.retained_after)
            assert log == list(range(head.retained_after + 1, head.last_seq + 1))
        except pytest.fail.Exception:
            break
        finally:
            crashpoints.arm(None)
    assert nth > 1, "the point was never reached"
    await swept(world, clock)
    assert await world.store.head(ended.id) is None
    assert len(await world.store.turns(live.id, 0, 10)) == 1


async def test_turns_go_on_beside_it(world: World, clock: Clock) -> None:
    """Whatever is removed, no turn of a session that goes on fails, waits or loses what it needs."""
    sessions = [await world.create(name=f"n{number}") for number in range(6)]
    for session in sessions:
        await world.turns(session, 10)
    clock.now += 2 * DAY
    await world.store.set_retention(ENVIRONMENT, ALL)
    done = asyncio.Event()

    async def talk(session: SessionHead) -> int:
        count = 0
        while not done.is_set() or count < 5:
            await world.turns(session, 1)
            count += 1
        return count

    talks = [asyncio.create_task(talk(session)) for session in sessions]
    gone_now = await prune(world.store, clock.now, rows=15)
    done.set()
    assert gone_now[ENVIRONMENT].events > 100
    for session, count in zip(sessions, await asyncio.gather(*talks), strict=True):
        kept = await world.store.turns(session.id, 0, 1000)
        assert len(kept) >= count
        assert all(turn.status == "completed" for turn in kept)
        head = await world.head(session)
        assert await seqs(world.store, session, head.retained_after) == list(
            range(head.retained_after + 1, head.last_seq + 1)
        )


# --- the rule


async def test_trimming_says_where_the_floor_is(world: World) -> None:
    session = await world.create()
    await world.turns(session, 1)
    end = (await world.head(session)).last_seq
    assert (await world.apply(Trim(session_id=session.id, upto=3))).receipt == 3
    assert (await world.apply(Trim(session_id=session.id, upto=2))).receipt == 3
    assert (await world.apply(Trim(session_id=session.id, upto=10**6))).receipt == end
    await world.enqueue(session)
    assert (await world.apply(Trim(session_id=session.id, upto=10**6))).receipt == end
    assert msgspec.structs.asdict(await world.head(session))["worker"] == WORKER
