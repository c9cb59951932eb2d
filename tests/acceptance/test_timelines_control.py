"""T4 to T6: interrupt, resume, close, cancel, and deadlines, on both hosts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from dev_parts import Dev, ended, gone, is_so, log_of, new_file, texts, types_of, until

from perdure.client.aio import AsyncClient, AsyncSessionHandle
from perdure.errors import HoldNotFound, QueueFull, SessionHeld, SessionNotOpen, TooManyHolds
from perdure.records.ids import new_id

HOSTS = pytest.mark.parametrize("agent", ["inline", "process"])


async def at_work(client: AsyncClient, agent: str, text: str) -> tuple[AsyncSessionHandle, str]:
    """Create a session whose second turn, which is at work, does `text`; return it and that turn's id."""
    receipt = await client.agents[agent].create_session(text="count")
    session = client.session(receipt.session_id)
    await ended(session, receipt)
    receipt = await session.enqueue(text=text)
    await until(session, "turn.output")
    assert receipt.turn_id is not None
    return session, receipt.turn_id


# --- interrupt and resume


@HOSTS
async def test_interrupt_stops_one_turn_and_holds_the_rest(client: AsyncClient, gate: Path, agent: str) -> None:
    session, a = await at_work(client, agent, f"wait {gate}")
    b, c = await session.enqueue(text="count"), await session.enqueue(text="count")
    control = await session.interrupt(reason="let me think", idempotency_key="i1")
    stopped = await ended(session, a)
    assert (stopped.status, stopped.reason, stopped.response) == ("interrupted", "interrupt", None)
    d = await session.enqueue(text="count")
    seen = await session.get()
    (hold,) = seen.holds
    assert (hold.id, hold.reason, hold.message, hold.issuer.kind) == (
        control.hold_id,
        "interrupt",
        "let me think",
        "user",
    )
    assert seen.queued == 3
    assert await session.interrupt(reason="let me think", idempotency_key="i1") == control
    assert len((await session.get()).holds) == 1
    with pytest.raises(HoldNotFound) as refused:
        await session.resume(new_id())
    assert refused.value.status == 404
    with pytest.raises(SessionHeld):
        await session.send(text="count")
    assert control.hold_id is not None
    await session.resume(control.hold_id)
    # The handler let go, so that its process goes on with the state that it had; and A is never run again.
    turns = [(await ended(session, turn)).result for turn in (b, c, d)]
    assert turns == [{"turns": number, "started_as": "initial", "reason": None} for number in (3, 4, 5)]
    assert gate.with_name("gate.ledger").read_text() == "started\n"
    await session.resume(control.hold_id)
    assert (await types_of(session)).count("session.resumed") == 1


@HOSTS
async def test_interrupt_while_nothing_runs_holds_all_the_same(client: AsyncClient, agent: str) -> None:
    receipt = await client.agents[agent].create_session(text="count")
    session = client.session(receipt.session_id)
    await ended(session, receipt)
    first, second = await session.interrupt(), await session.interrupt()
    turn = await session.enqueue(text="count")
    assert [hold.id for hold in (await session.get()).holds] == [first.hold_id, second.hold_id]
    assert first.hold_id is not None
    assert second.hold_id is not None
    await session.resume(second.hold_id)
    assert (await session.turn(str(turn.turn_id)).get()).status == "queued"
    await session.resume(first.hold_id)
    assert (await ended(session, turn)).result["turns"] == 2


@HOSTS
async def test_a_handler_that_lets_go_late_keeps_its_state(client: AsyncClient, gate: Path, agent: str) -> None:
    session, turn = await at_work(client, agent, f"deaf {gate}")
    control = await session.interrupt()
    queued = await session.enqueue(text="count")
    assert (await ended(session, turn)).status == "interrupted"
    await new_file(gate.with_name("gate.heard"))
    assert control.hold_id is not None
    await session.resume(control.hold_id)
    # The turn before is over for everyone, but no two handlers of a session are at work at once.
    assert (await session.turn(str(queued.turn_id)).get()).status == "queued"
    gate.touch()
    assert (await ended(session, queued)).result == {"turns": 3, "started_as": "initial", "reason": None}
    assert "turn.completed" not in [event.type for event in await log_of(session) if event.turn_id == turn]


async def test_a_hibernated_session_can_be_held_and_wakes_when_it_is_resumed(client: AsyncClient) -> None:
    receipt = await client.agents["sleeper"].create_session(text="count")
    session = client.session(receipt.session_id)
    await until(session, "session.hibernated")
    control = await session.interrupt()
    queued = await session.enqueue(text="count")
    seen = await session.get()
    assert seen.computer is not None
    assert (seen.computer.residency, seen.queued) == ("hibernated", 1)
    assert control.hold_id is not None
    await session.resume(control.hold_id)
    assert (await ended(session, queued)).result == {"turns": 2, "started_as": "initial", "reason": None}


async def test_a_session_has_only_so_many_holds_and_queued_turns(client: AsyncClient) -> None:
    receipt = await client.agents["bare"].create_session()
    session = client.session(receipt.session_id)
    holds = [await session.interrupt() for _ in range(32)]
    with pytest.raises(TooManyHolds) as held:
        await session.interrupt()
    assert (held.value.status, held.value.details["limit"]) == (409, 32)
    for _ in range(10):
        await asyncio.gather(*(session.enqueue(text="count") for _ in range(100)))
    with pytest.raises(QueueFull) as full:
        await session.enqueue(text="count")
    assert (full.value.status, full.value.details["limit"]) == (409, 1000)
    for hold in holds:
        await session.resume(str(hold.hold_id))
    await session.close()
    await until(session, "session.closed")
    assert sum(event.type == "turn.completed" for event in await log_of(session)) == 1000


async def test_a_handler_that_does_not_let_go_loses_its_process(
    shared: Dev, client: AsyncClient, tmp_path: Path
) -> None:
    """After 10 s of grace, which the sessions here spend at the same time."""
    ends = (_hold_out(shared, client, tmp_path / agent, agent) for agent in ("inline", "process"))
    assert await asyncio.gather(*ends) == ["did_not_let_go", "did_not_let_go"]


async def _hold_out(server: Dev, client: AsyncClient, gate: Path, agent: str) -> str:
    session, turn = await at_work(client, agent, f"stubborn {gate}")
    guest = await server.guest(session) if agent == "process" else None
    control = await session.interrupt()
    queued = await session.enqueue(text="count")
    assert control.hold_id is not None
    await session.resume(control.hold_id)
    assert (await ended(session, turn)).status == "interrupted"
    stopped = await until(session, "session.process_stopped")
    done = await ended(session, queued)
    assert done.result == {"turns": 1, "started_as": "reconstructed", "reason": "did_not_let_go"}
    if guest is not None:
        await gone(guest)
        assert not gate.with_name(f"{gate.name}.cancelled").exists()
    else:
        # An inline handler cannot be ended: it is abandoned, and what it writes is refused.
        gate.touch()
        refused = gate.with_name(f"{gate.name}.refused")
        await new_file(refused)
        assert refused.read_text() in ("turn_not_running", "stale_fence")
        assert (await ended(session, await session.enqueue(text="count"))).result["turns"] == 2
    assert texts(await log_of(session), turn) == ["waiting"]
    assert (await session.get()).losses == 0
    return str(stopped.data["reason"])


# --- close


@HOSTS
async def test_close_lets_all_that_was_accepted_finish(client: AsyncClient, gate: Path, agent: str) -> None:
    session, a = await at_work(client, agent, f"wait {gate}")
    b, c = await session.enqueue(text="count"), await session.enqueue(text="count")
    receipt = await session.close(idempotency_key="x")
    seen = await session.get()
    assert (seen.status, seen.queued) == ("closing", 2)
    for refused in (session.enqueue(text="late"), session.send(text="late")):
        with pytest.raises(SessionNotOpen) as error:
            await refused
        assert (error.value.status, error.value.code) == (409, "session_not_open")
    await session.close()
    gate.touch()
    assert {(await ended(session, turn)).status for turn in (a, b, c)} == {"completed"}
    types = [event.type async for event in session.iter_events(follow=True)]
    assert types.count("session.closing") == types.count("session.closed") == 1
    assert types.index("session.closed") > max(place for place, kind in enumerate(types) if kind == "turn.completed")
    seen = await session.get()
    assert (seen.status, seen.run, seen.active_turn_id) == ("closed", None, None)
    assert seen.closed_at is not None
    assert await session.close(idempotency_key="x") == receipt
    await session.cancel()
    assert (await session.get()).status == "closed"
    with pytest.raises(SessionNotOpen):
        await session.interrupt()


@HOSTS
async def test_close_of_a_held_session_waits_for_the_hold(client: AsyncClient, gate: Path, agent: str) -> None:
    session, turn = await at_work(client, agent, f"wait {gate}")
    await session.close()
    control = await session.interrupt(reason="while closing")
    assert (await ended(session, turn)).status == "interrupted"
    seen = await is_so(session, lambda seen: seen.holds)
    assert seen.status == "closing"
    assert control.hold_id is not None
    with pytest.raises(HoldNotFound):
        await session.resume(new_id())
    await session.resume(control.hold_id)
    await until(session, "session.closed")
    await session.resume(control.hold_id)
    assert (await session.get()).status == "closed"


async def test_a_held_closing_session_runs_its_queue_once_it_is_resumed(client: AsyncClient) -> None:
    receipt = await client.agents["process"].create_session()
    session = client.session(receipt.session_id)
    control = await session.interrupt()
    turn = await session.enqueue(text="count")
    await session.close()
    seen = await session.get()
    assert (seen.status, seen.queued) == ("closing", 1)
    assert control.hold_id is not None
    await session.resume(control.hold_id)
    assert (await ended(session, turn)).status == "completed"
    await until(session, "session.closed")


async def test_close_of_a_hibernated_session_ends_its_processes(shared: Dev, client: AsyncClient) -> None:
    receipt = await client.agents["sleeper"].create_session(text="child")
    session = client.session(receipt.session_id)
    child = (await ended(session, receipt)).result
    guest = await shared.guest(session)
    await until(session, "session.hibernated")
    await session.close()
    await asyncio.gather(gone(guest), gone(child))
    types = [event.type async for event in session.iter_events(follow=True)]
    assert types[-1] == "session.process_stopped"
    seen = await session.get()
    assert seen.computer is not None
    assert seen.computer.residency == "cold"


# --- cancel


@HOSTS
async def test_cancel_ends_everything_at_once(client: AsyncClient, gate: Path, agent: str) -> None:
    session, a = await at_work(client, agent, f"wait {gate}")
    b, c = await session.enqueue(text="count"), await session.enqueue(text="count")
    receipt = await session.cancel(idempotency_key="x")
    assert {(await ended(session, turn)).status for turn in (a, b, c)} == {"cancelled"}
    types = [event.type async for event in session.iter_events(follow=True)]
    assert types.count("turn.cancelled") == 3
    assert types.count("session.cancelled") == 1
    seen = await session.get()
    assert (seen.status, seen.queued, seen.run, seen.holds) == ("cancelled", 0, None, [])
    assert await session.cancel(idempotency_key="x") == receipt
    for refused in (session.enqueue(text="late"), session.interrupt(), session.send(text="late")):
        with pytest.raises(SessionNotOpen):
            await refused
    await session.close()
    assert (await session.get()).status == "cancelled"


async def test_cancel_of_a_held_session_releases_no_hold(client: AsyncClient, gate: Path) -> None:
    receipt = await client.agents["process_moody"].create_session(text="count", key=str(gate))
    session = client.session(receipt.session_id)
    await until(session, "session.init_failed")
    await session.cancel()
    assert (await ended(session, receipt)).status == "cancelled"
    types = [event.type async for event in session.iter_events(follow=True)]
    assert "session.resumed" not in types


# --- deadlines


@pytest.mark.parametrize("agent", ["inline_hasty", "process_hasty"])
async def test_a_turn_that_takes_too_long_is_interrupted(client: AsyncClient, gate: Path, agent: str) -> None:
    session, turn = await at_work(client, agent, f"wait {gate}")
    queued = await session.enqueue(text="count")
    late = await ended(session, turn)
    assert (late.status, late.reason) == ("interrupted", "deadline")
    assert late.started_at is not None
    assert late.ended_at is not None
    assert 1 <= (late.ended_at - late.started_at).total_seconds() < 3
    passed = await until(session, "session.deadline")
    seen = await session.get()
    (hold,) = seen.holds
    assert (hold.id, hold.reason, hold.message) == (passed.data["hold_id"], "turn_deadline", "Turn deadline elapsed")
    assert (hold.issuer.kind, seen.queued) == ("system", 1)
    await session.resume(hold.id)
    assert (await ended(session, queued)).result == {"turns": 3, "started_as": "initial", "reason": None}
