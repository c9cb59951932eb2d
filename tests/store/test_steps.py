"""The journal of a resumable turn is kept with everything else, whatever happens to who kept it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from store_world import ADA, DEPLOYMENT, ENVIRONMENT, NO_LIMITS, Clock, Engine, World

from perdure.errors import StepMismatch
from perdure.records.ids import new_id
from perdure.records.sessions import SessionHead
from perdure.records.steps import StepTold
from perdure.rules import commands
from perdure.store import open_store
from perdure.store.port import Deployment, Retention
from perdure.store.tools.check import check
from perdure.store.tools.copy import copy
from perdure.store.tools.places import open_source
from perdure.store.tools.prune import prune

DAY = 86_400_000_000
AWKWARD = ["charge", "charge#2", "nul\0in it", "ünïcode 🪐", "x" * 120]


async def working(world: World) -> SessionHead:
    """Return a session whose resumable turn runs."""
    return await world.create(said="go", start=True, resumes=True)


async def work(world: World, session: SessionHead, kind: type[commands.WorkerCommand], **fields: Any) -> Any:
    head = await world.head(session)
    return (await world.apply(kind(session_id=head.id, fence=head.fence, turn=1, **fields))).receipt


async def begin(world: World, session: SessionHead, name: str = "charge", **fields: Any) -> StepTold:
    fields = {"replay": "safe", "request": b"r", **fields}
    told: StepTold = await work(world, session, commands.BeginStep, name=name, **fields)
    return told


async def end(world: World, session: SessionHead, name: str = "charge", outcome: bytes = b"1", **fields: Any) -> Any:
    fields = {"status": "completed", "outcome_json": outcome, **fields}
    return await work(world, session, commands.EndStep, name=name, **fields)


async def lose(world: World, session: SessionHead) -> None:
    """Let the process be lost, and the next one be ready."""
    head = await world.head(session)
    assert head.run is not None
    lost = {"worker": "w", "run_id": head.run.id, "reason": "killed", "hold_id": new_id()}
    await world.apply(commands.RunLost(session_id=head.id, fence=head.fence, **lost))
    head = await world.head(session)
    began = {"worker": "w", "run_id": new_id(), "deployment": DEPLOYMENT, "limits": NO_LIMITS, "resumes": True}
    await world.apply(commands.StartRun(session_id=head.id, fence=head.fence, **began))  # type: ignore[arg-type]
    head = await world.head(session)
    assert head.run is not None
    await world.apply(commands.RunReady(session_id=head.id, fence=head.fence, run_id=head.run.id))


@pytest.mark.parametrize("name", AWKWARD)
async def test_what_a_step_came_to_is_there_after_a_loss(world: World, name: str) -> None:
    session = await working(world)
    assert (await begin(world, session, name)).status == "running"
    await end(world, session, name, b'{"deep":["\\u0000",1.5]}')
    await lose(world, session)
    told = await begin(world, session, name)
    assert (told.status, told.outcome_json) == ("completed", b'{"deep":["\\u0000",1.5]}')
    assert told.elapsed > 0
    with pytest.raises(StepMismatch):
        await begin(world, session, name, request=b"another")


async def test_a_failure_is_kept_as_one(world: World) -> None:
    session = await working(world)
    await begin(world, session)
    await end(world, session, outcome=b'{"code":"x"}', status="failed")
    await lose(world, session)
    told = await begin(world, session)
    assert (told.status, told.outcome_json) == ("failed", b'{"code":"x"}')


async def test_a_step_that_was_at_work_is_begun_again_or_given_up(world: World) -> None:
    session = await working(world)
    await begin(world, session, "safe")
    await begin(world, session, "never", replay="never")
    await lose(world, session)
    assert (await begin(world, session, "safe")).status == "running"
    given_up = await begin(world, session, "never", replay="never")
    assert (given_up.status, given_up.outcome_json) == ("interrupted", None)
    await lose(world, session)
    assert (await begin(world, session, "never", replay="never")).status == "interrupted"


async def test_steps_that_share_a_commit_are_decided_one_after_the_other(world: World) -> None:
    session = await working(world)
    told = await asyncio.gather(*(begin(world, session, f"step {number % 3}") for number in range(6)))
    assert [each.status for each in told] == ["running"] * 6
    fence = (await world.head(session)).fence
    ends = [
        commands.EndStep(
            session_id=session.id,
            fence=fence,
            turn=1,
            name=f"step {number % 3}",
            status="completed",
            outcome_json=b"%d" % number,
        )
        for number in range(6)
    ]
    await asyncio.gather(*map(world.apply, ends))
    await lose(world, session)
    outcomes = [(await begin(world, session, f"step {number}")).outcome_json for number in range(3)]
    assert outcomes == [b"0", b"1", b"2"]
    kinds = [kind for _, kind in await world.log(session)]
    assert (kinds.count("step.started"), kinds.count("step.completed")) == (3, 3)


@pytest.mark.parametrize("name", AWKWARD)
async def test_the_first_memo_stands(world: World, name: str) -> None:
    session = await working(world)
    both = await asyncio.gather(
        *(
            world.apply(
                commands.KeepMemo(session_id=session.id, fence=session.fence, turn=1, name=name, value_json=value)
            )
            for value in (b'"a"', b'"b"')
        )
    )
    assert [each.receipt for each in both] == [b'"a"', b'"a"']
    await lose(world, session)
    assert await work(world, session, commands.KeepMemo, name=name, value_json=b'"c"') == b'"a"'


async def test_the_journal_goes_with_its_turn(world: World, engine: Engine, clock: Clock) -> None:
    """By retention: with the turn once that has ended, and not before; and with the whole session."""
    await world.store.put_deployment(Deployment(new_id(), ENVIRONMENT, "d", 1, "/source", ()))
    await world.store.set_retention(ENVIRONMENT, Retention(events=DAY))
    session = await working(world)
    await begin(world, session)
    await end(world, session, outcome=b"7")
    await work(world, session, commands.KeepMemo, name="m", value_json=b"8")
    clock.now += 2 * DAY
    await prune(world.store, clock.now)
    await lose(world, session)
    assert (await begin(world, session)).outcome_json == b"7"
    await world.complete(session)
    clock.now += 2 * DAY
    kept = await working(world)
    await begin(world, kept)
    await prune(world.store, clock.now)
    assert await world.store.turns(session.id, 0, 10) == []
    assert await left(world, engine) == (1, 0)


async def test_the_journal_moves_to_another_store(world: World, engine: Engine, tmp_path: Path, clock: Clock) -> None:
    name = "nul\0in it"
    session = await working(world)
    await begin(world, session, name)
    await end(world, session, name, b"7")
    await begin(world, session, "at work")
    await work(world, session, commands.KeepMemo, name=name, value_json=b"8")
    await world.store.close()
    address = f"sqlite:///{tmp_path / 'moved'}"
    moved = await copy(engine.address, address)
    assert (moved.rows["steps"], moved.rows["memos"]) == (2, 1)
    assert [finding for finding in await check(address) if finding.severity == "error"] == []
    store = open_store(address, clock=clock)
    await store.open()
    world = World(store)
    await lose(world, session)
    assert (await begin(world, session, name)).outcome_json == b"7"
    assert await work(world, session, commands.KeepMemo, name=name, value_json=b"9") == b"8"
    await store.close()


async def left(world: World, engine: Engine) -> tuple[int, int]:
    """Close the store, and return how many steps and memos it has."""
    await world.store.close()
    source = open_source(engine.address)
    await source.open()
    try:
        return await source.count("steps"), await source.count("memos")
    finally:
        await source.close()


async def test_the_journal_is_there_in_another_process(engine: Engine) -> None:
    store = engine.store()
    await store.open()
    world = World(store)
    session = await working(world)
    await begin(world, session)
    await end(world, session, outcome=b"7")
    await work(world, session, commands.KeepMemo, name="m", value_json=b"8")
    await store.close()
    store = engine.store()
    await store.open()
    world = World(store)
    await lose(world, session)
    assert (await begin(world, session)).outcome_json == b"7"
    assert await work(world, session, commands.KeepMemo, name="m", value_json=b"9") == b"8"
    await world.apply(commands.Cancel(session_id=session.id, control_id=new_id(), issuer=ADA))
    await store.close()
