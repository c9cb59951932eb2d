"""What readers see: whole pages in order, one instant at a time, bounded by count and bytes."""

from __future__ import annotations

import asyncio

import pytest
from store_world import ADA, ENVIRONMENT, Clock, Engine, World, enqueue, text

from perdure.errors import InvalidCursor, SessionNotFound
from perdure.records.ids import new_id
from perdure.records.sessions import ComputerState, Limits, SessionHead
from perdure.rules import commands
from perdure.rules.commands import NewTurn
from perdure.store.port import Deployment, SessionFilter

MINUTE = 60_000_000
SECOND = 1_000_000


async def fill(world: World, session: SessionHead, last: int) -> None:
    """Bring a session's log to exactly `last` events, with outputs of its running turn."""
    head = await world.head(session)
    assert head.active is not None
    first, count = head.active.op + 1, last - head.last_seq
    writes = [
        commands.WriteOutput(
            session_id=head.id, fence=head.fence, turn=head.active.number, op=first + index, content_json=b"[]"
        )
        for index in range(count)
    ]
    await asyncio.gather(*map(world.store.apply, writes))


async def test_5000_events_are_five_full_pages(world: World) -> None:
    session = await world.create(said="first", start=True)
    await fill(world, session, 5000)
    after, pages = 0, []
    while True:
        page = await world.store.events(session.id, after, 1000)
        pages.append([event.seq for event in page.events])
        after = page.next_after
        if not page.has_more:
            break
    assert [len(page) for page in pages] == [1000] * 5
    assert [seq for page in pages for seq in page] == list(range(1, 5001))
    rest = await world.store.events(session.id, 5000, 1000)
    assert (rest.events, rest.next_after, rest.has_more, rest.retained_after) == ([], 5000, False, 0)


async def test_a_reader_behind_a_writer_misses_nothing_and_sees_nothing_twice(world: World) -> None:
    session = await world.create(said="first", start=True)
    writing = asyncio.ensure_future(fill(world, session, 1500))
    seen: list[int] = []
    while len(seen) < 1500:
        page = await world.store.events(session.id, seen[-1] if seen else 0, 37)
        seen += [event.seq for event in page.events]
        assert page.next_after == (seen[-1] if seen else 0)
    await writing
    assert seen == list(range(1, 1501))


@pytest.mark.parametrize("after", [5, 1_000_000, 2**40, -1])
async def test_a_cursor_beyond_the_end_is_refused(world: World, after: int) -> None:
    session = await world.create(said="first", start=True)
    assert session.last_seq == 4
    with pytest.raises(InvalidCursor):
        await world.store.events(session.id, after, 10)
    assert (await world.store.events(session.id, 4, 10)).events == []


async def test_events_of_neighbours_are_not_mixed_in(world: World) -> None:
    sessions = [await world.create(said="first", start=True) for _ in range(3)]
    for session in sessions:
        await world.complete(session)
    for session in sessions:
        page = await world.store.events(session.id, 0, 100)
        assert [event.seq for event in page.events] == [1, 2, 3, 4, 5]
        assert {event.session_id for event in page.events} == {session.id}


async def test_pages_are_bounded_by_bytes_but_never_empty(world: World) -> None:
    session = await world.create(said="first", start=True)
    big = "x" * 100_000
    for op in range(1, 6):
        await world.output(session, op, big)
    page = await world.store.events(session.id, 4, 100, max_bytes=250_000)
    assert (len(page.events), page.next_after, page.has_more) == (2, 6, True)
    page = await world.store.events(session.id, 4, 100, max_bytes=1)
    assert (len(page.events), page.next_after, page.has_more) == (1, 5, True)
    page = await world.store.events(session.id, 8, 100, max_bytes=250_000)
    assert (len(page.events), page.next_after, page.has_more) == (1, 9, False)


async def test_events_of_nobody(world: World) -> None:
    with pytest.raises(SessionNotFound):
        await world.store.events(new_id(), 0, 10)


async def test_turns_are_paged_by_number(world: World) -> None:
    session = await world.create()
    await asyncio.gather(*[world.store.apply(enqueue(session.id, str(number))) for number in range(25)])
    first = await world.store.turns(session.id, 0, 10)
    second = await world.store.turns(session.id, first[-1].number, 10)
    third = await world.store.turns(session.id, second[-1].number, 10)
    assert [turn.number for turn in [*first, *second, *third]] == list(range(1, 26))
    assert await world.store.turns(session.id, 25, 10) == []
    assert await world.store.turn_by_number(session.id, 26) is None
    assert await world.store.turn(session.id, new_id()) is None


async def test_a_snapshot_is_one_instant(world: World) -> None:
    session = await world.create()
    stop = asyncio.Event()

    async def live() -> None:
        while not stop.is_set():
            await world.turns(session, 1)

    living = asyncio.ensure_future(live())
    for _ in range(30):
        seen = await world.store.snapshot(session.id, 3)
        assert seen is not None
        assert [turn.number for turn in seen.turns] == list(
            range(max(1, seen.head.last_turn - 2), seen.head.last_turn + 1)
        )
        running = [turn.id for turn in seen.turns if turn.status == "running"]
        assert running == ([seen.head.active.id] if seen.head.active else [])
        assert seen.has_earlier == (seen.head.last_turn > 3)
    stop.set()
    await living


async def test_a_snapshot_without_turns(world: World) -> None:
    session = await world.create(said="first")
    seen = await world.store.snapshot(session.id, 0)
    assert seen is not None
    assert (seen.turns, seen.live, seen.has_earlier) == ([], {}, True)


# --- lists of sessions


async def test_sessions_are_listed_newest_first_by_what_is_asked(world: World) -> None:
    made = [await world.create(agent=agent, name=name) for agent, name in
            [("a", None), ("b", "k"), ("a", "k"), ("a", "other")]]  # fmt: skip
    await world.create(environment="demo/staging", agent="a", name="k")
    await world.apply(commands.Cancel(session_id=made[0].id, control_id=new_id(), issuer=ADA))
    one, two, three, four = [session.id for session in made]

    async def listed(before: str | None = None, limit: int = 100, **which: object) -> list[str]:
        found = await world.store.sessions(SessionFilter(ENVIRONMENT, **which), before, limit)  # type: ignore[arg-type]
        return [head.id for head in found]

    assert await listed() == [four, three, two, one]
    assert await listed(limit=3) == [four, three, two]
    assert await listed(before=two) == [one]
    assert await listed(agent="a") == [four, three, one]
    assert await listed(agent="a", statuses=("open",)) == [four, three]
    assert await listed(statuses=("cancelled", "closed")) == [one]
    assert await listed(key="k") == [three, two]
    assert await listed(key="k", limit=1) == [three]
    assert await listed(key="k", before=three) == [two]
    assert await listed(agent="a", key="k") == [three]
    assert await listed(agent="a", key="k", statuses=("closed",)) == []
    assert await listed(agent="nobody") == []
    assert (await world.store.sessions(SessionFilter(ENVIRONMENT), None, 1))[0] == await world.head(made[3])


async def test_pages_of_sessions_meet_at_their_ids(world: World) -> None:
    made = [(await world.create()).id for _ in range(25)]
    seen: list[str] = []
    while page := await world.store.sessions(SessionFilter(ENVIRONMENT), seen[-1] if seen else None, 10):
        seen += [head.id for head in page]
    assert seen == made[::-1]


# --- what the engine feeds on


async def test_due_gives_what_time_has_reached_earliest_first(world: World, clock: Clock) -> None:
    limits = [Limits(close_after_idle=minutes * MINUTE) for minutes in (3, 1, 2)]
    three, one, two = [await world.create(limits=limit) for limit in limits]
    await world.create()
    start = clock.now
    assert await world.store.due(start, 10) == []
    soon = await world.store.due(start + 2 * MINUTE + MINUTE // 2, 10)
    assert [session_id for session_id, _ in soon] == [one.id, two.id]
    for (_, at), idle, after in zip(soon, (one, two), (MINUTE, 2 * MINUTE), strict=True):
        assert (idle.idle_since or 0) + after <= at < (idle.idle_since or 0) + after + after // 60
    assert [session_id for session_id, _ in await world.store.due(start + 10 * MINUTE, 10)] == [
        one.id,
        two.id,
        three.id,
    ]
    assert [session_id for session_id, _ in await world.store.due(start + 10 * MINUTE, 1)] == [one.id]


async def test_a_session_that_is_not_idle_any_more_is_not_due(world: World, clock: Clock) -> None:
    session = await world.create(limits=Limits(close_after_idle=MINUTE, max_turn_duration=5 * MINUTE))
    await world.enqueue(session, start=True)
    head = await world.head(session)
    assert head.active is not None
    assert await world.store.due(clock.now + 10 * MINUTE, 10) == [(session.id, head.active.deadline_at)]
    await world.complete(session)
    head = await world.head(session)
    [(found, at)] = await world.store.due(clock.now + 10 * MINUTE, 10)
    assert found == session.id
    assert (head.idle_since or 0) + MINUTE <= at < (head.idle_since or 0) + MINUTE + SECOND
    clock.now += 10 * MINUTE
    await world.apply(commands.Tick(session_id=session.id, hold_id=new_id()))
    assert (await world.head(session)).status == "closed"
    assert await world.store.due(clock.now + 10 * MINUTE, 10) == []


async def test_when_to_look_at_an_idle_session_stays_the_same_from_turn_to_turn(world: World, clock: Clock) -> None:
    """Else each turn would write it twice, and its index."""
    session = await world.create(limits=Limits(close_after_idle=90 * MINUTE))
    seen = set()
    for _ in range(50):
        clock.now += 100_000
        await world.enqueue(session, start=True)
        seen.update(at for _, at in await world.store.due(clock.now + 99 * MINUTE, 10))
        await world.complete(session)
        seen.update(at for _, at in await world.store.due(clock.now + 99 * MINUTE, 10))
    assert len(seen) <= 2


async def test_unsettled_are_those_that_need_an_owner(world: World) -> None:
    running = await world.create(said="first", start=True)
    await world.create()
    idle_inline = await world.create(said="first", start=True)
    await world.complete(idle_inline)
    computer = ComputerState(new_id(), "template")
    idle_process = await world.create(host="process", computer=computer, said="first", start=True)
    await world.apply(
        commands.StartRun(
            session_id=idle_process.id,
            fence=idle_process.fence,
            worker="w",
            run_id=new_id(),
            deployment=new_id(),
            limits=Limits(),
        )
    )
    waiting = await world.create(said="first")
    held = await world.create(said="first")
    await world.apply(commands.Interrupt(session_id=held.id, control_id=new_id(), hold_id=new_id(), issuer=ADA))
    wanted = [running.id, idle_process.id, waiting.id]
    assert [head.id for head in await world.store.unsettled("", 10)] == wanted
    assert [head.id for head in await world.store.unsettled("", 2)] == wanted[:2]
    assert [head.id for head in await world.store.unsettled(wanted[1], 10)] == wanted[2:]


# --- environments and deployments


def deployment(digest: str, environment: str = ENVIRONMENT) -> Deployment:
    from perdure.records.definitions import AgentDefinition

    agent = AgentDefinition(id="assistant", module="agents.assistant", file="agents/assistant.py", line=7)
    return Deployment(new_id(), environment, digest, 1_700_000_000_000_000, "/data/source", (agent,), live=True)


async def test_deployments_are_kept_once_a_digest_and_promoted(world: World, engine: Engine) -> None:
    from perdure.errors import DeploymentNotFound

    assert await world.store.environment(ENVIRONMENT) is None
    first, second = deployment("d1"), deployment("d2")
    staging = deployment("d1", "demo/staging")
    for one in (first, second, staging):
        assert await world.store.put_deployment(one) == one
    assert await world.store.put_deployment(deployment("d1")) == first
    environment = await world.store.environment(ENVIRONMENT)
    assert environment is not None
    assert (environment.current_deployment, environment.created_at) == (None, first.created_at)
    promoted = await world.store.promote(ENVIRONMENT, second.id)
    assert promoted == await world.store.environment(ENVIRONMENT)
    assert promoted.current_deployment == second.id
    for wrong in (staging.id, new_id(), "nonsense"):
        with pytest.raises(DeploymentNotFound):
            await world.store.promote(ENVIRONMENT, wrong)
    assert await world.store.deployments(ENVIRONMENT, None, 10) == [second, first]
    assert await world.store.deployments(ENVIRONMENT, second.id, 10) == [first]
    assert await world.store.deployment(staging.id) == staging
    assert await world.store.deployment(new_id()) is None
    assert [found.id for found in await world.store.environments()] == [ENVIRONMENT, "demo/staging"]

    await world.store.close()
    again = engine.store()
    await again.open()
    assert await again.environment(ENVIRONMENT) == promoted
    assert await again.deployment(first.id) == first
    await again.close()


# --- text that breaks others


AWKWARD = {
    "NUL": b'"a\\u0000b"',
    "emoji": '"\N{GRINNING FACE} \N{COMBINING ACUTE ACCENT}"'.encode(),
    "replacement character": '"\ufffd"'.encode(),
    "empty": b'""',
    "quotes": b'"\\"\\\\\'; DROP TABLE events; --"',
    "large": b'"' + b"x" * 200_000 + b'"',
    "numbers": b"[1e308,-0.0,9223372036854775807,18446744073709551615]",
    "deep": b"[" * 100 + b"]" * 100,
}


@pytest.mark.parametrize("kind", AWKWARD)
async def test_awkward_values_come_out_as_they_went_in(world: World, kind: str) -> None:
    value = AWKWARD[kind]
    session = await world.create()
    turn = commands.Enqueue(session_id=session.id, turn=NewTurn(new_id(), value))
    await world.apply(turn)
    await world.apply(
        commands.StartRun(
            session_id=session.id,
            fence=session.fence,
            worker="w",
            run_id=new_id(),
            deployment=session.deployment,
            limits=Limits(),
        )
    )
    head = await world.head(session)
    assert head.run is not None
    await world.apply(commands.RunReady(session_id=session.id, fence=head.fence, run_id=head.run.id))
    worker = {"session_id": session.id, "fence": head.fence, "turn": 1}
    await world.apply(commands.WriteOutput(op=1, content_json=value, **worker))
    await world.apply(commands.WriteLive(slot="s", content_json=value, **worker))
    seen = await world.store.snapshot(session.id, 1)
    assert seen is not None
    assert seen.live["s"].content_json == value
    await world.apply(commands.CompleteTurn(result_json=value, response_json=value, **worker))
    (found,) = await world.store.turns(session.id, 0, 10)
    assert (found.input_json, found.result_json, found.response_json) == (value, value, value)
    page = await world.store.events(session.id, 0, 100)
    (output,) = [event for event in page.events if event.type == "turn.output"]
    assert bytes(output.data) == b'{"content":' + value + b"}"


async def test_keys_with_nul_in_messages_and_names(world: World) -> None:
    session = await world.create(name="key of \N{GRINNING FACE}", agent="agent")
    hold = commands.Interrupt(
        session_id=session.id, control_id=new_id(), hold_id=new_id(), issuer=ADA, message="a\0b \N{GRINNING FACE}"
    )
    await world.apply(hold)
    head = (await world.store.snapshot(session.id, 0)).head  # type: ignore[union-attr]
    assert head.holds[0].message == "a\0b \N{GRINNING FACE}"
    assert await world.store.find_key(ENVIRONMENT, "agent", "key of \N{GRINNING FACE}") == session.id
    assert text("x")
