"""T3: processes that are lost, one after another; and `init` that fails."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from dev_parts import Dev, ended, gone, is_so, log_of, types_of, until

from perdure.client.aio import AsyncClient


async def test_the_third_loss_in_a_row_holds_the_session(client: AsyncClient) -> None:
    receipt = await client.agents["process"].create_session(text="die")
    session = client.session(receipt.session_id)
    deaths = [receipt, await session.enqueue(text="die"), await session.enqueue(text="die")]
    waiting = [await session.enqueue(text="count"), await session.enqueue(text="count")]
    for number, death in enumerate(deaths, 1):
        lost = await ended(session, death)
        assert (lost.status, lost.reason) == ("interrupted", "process_lost")
        told = await until(session, "session.process_lost", count=number)
        assert told.data["losses"] == number
        assert "code 9" in told.data["reason"]
    held = await until(session, "session.held")
    seen = await session.get()
    assert (seen.losses, seen.queued, seen.run, seen.status) == (3, 2, None, "open")
    (hold,) = seen.holds
    assert (hold.id, hold.reason, hold.issuer.kind) == (held.data["hold_id"], "process_failures", "system")
    assert hold.message is not None
    assert "3 processes in a row" in hold.message
    # Nothing more is tried until a person says so, and then the queue goes on in a new process.
    assert (await types_of(session)).count("session.process_started") == 3
    await session.resume(hold.id)
    first, second = [await ended(session, turn) for turn in waiting]
    assert first.result == {"turns": 1, "started_as": "reconstructed", "reason": "process_lost"}
    assert second.run_id == first.run_id
    assert (await session.get()).losses == 0


async def test_a_turn_that_completes_forgives_the_losses_before_it(client: AsyncClient) -> None:
    receipt = await client.agents["process"].create_session()
    session = client.session(receipt.session_id)
    for text in ("die", "die", "count", "die", "fail value", "die", "count"):
        turn = await ended(session, await session.enqueue(text=text))
        assert turn.status == {"die": "interrupted", "count": "completed", "fail value": "failed"}[text]
    losses = [event.data["losses"] for event in await log_of(session) if event.type == "session.process_lost"]
    assert losses == [1, 2, 1, 2]
    assert (await session.get()).holds == []


async def test_processes_that_die_with_nothing_in_their_hands_do_not_count(shared: Dev, client: AsyncClient) -> None:
    receipt = await client.agents["process"].create_session(text="pid")
    session = client.session(receipt.session_id)
    pid = (await ended(session, receipt)).result
    for number in range(1, 5):
        os.kill(pid, signal.SIGKILL)
        assert (await until(session, "session.process_lost", count=number)).data["losses"] == 0
        pid = (await ended(session, await session.enqueue(text="pid"))).result
    assert (await session.get()).holds == []


async def test_a_lost_process_takes_its_children_with_it(shared: Dev, client: AsyncClient) -> None:
    receipt = await client.agents["process"].create_session(text="child")
    session = client.session(receipt.session_id)
    child = (await ended(session, receipt)).result
    os.kill(await shared.guest(session), signal.SIGKILL)
    await until(session, "session.process_lost")
    await gone(child)
    counted = (await ended(session, await session.enqueue(text="counted"))).result
    assert (await ended(session, await session.enqueue(text="counted"))).result == counted


async def test_an_init_that_kills_its_process_ends_in_a_hold(client: AsyncClient) -> None:
    receipt = await client.agents["hopeless"].create_session(text="count")
    session = client.session(receipt.session_id)
    for number in (3, 6):
        seen = await is_so(session, lambda seen: seen.holds)
        assert (seen.losses, seen.queued, seen.run) == (3, 1, None)
        lost = [event for event in await log_of(session) if event.type == "session.process_lost"]
        assert len(lost) == number
        assert all("code 7" in event.data["reason"] for event in lost)
        await session.resume(seen.holds[0].id)
        await until(session, "session.held", count=number // 3 + 1)
    assert receipt.turn_id is not None
    assert (await session.turn(receipt.turn_id).get()).status == "queued"
    await session.cancel()
    assert (await ended(session, receipt)).status == "cancelled"


@pytest.mark.parametrize("agent", ["inline_moody", "process_moody"])
async def test_an_init_that_raises_holds_the_session_and_its_input(client: AsyncClient, gate: Path, agent: str) -> None:
    receipt = await client.agents[agent].create_session(text="count", key=str(gate))
    session = client.session(receipt.session_id)
    failed = await until(session, "session.init_failed")
    assert failed.data["error"] == {"code": "init_failed", "message": "the service is away", "type": "LookupError"}
    seen = await is_so(session, lambda seen: seen.holds and seen.run is None)
    assert (seen.queued, seen.losses, seen.holds[0].reason) == (1, 0, "init_failed")
    gate.touch()
    await session.resume(seen.holds[0].id)
    done = await ended(session, receipt)
    assert done.result == {"turns": 1, "started_as": "reconstructed", "reason": "init_failed"}
    started = [event for event in await log_of(session) if event.type == "session.process_started"]
    assert len({event.run_id for event in started}) == 2
    log = await session.logs(str(failed.run_id))
    assert "LookupError: the service is away" in log.data


async def test_one_crashing_session_leaves_its_neighbours_in_peace(client: AsyncClient) -> None:
    hopeless = [await client.agents["hopeless"].create_session(text="count") for _ in range(3)]
    neighbours = [await client.agents["process"].create_session(text="count") for _ in range(3)]
    done = await asyncio.gather(*(ended(client.session(receipt.session_id), receipt) for receipt in neighbours))
    assert {turn.status for turn in done} == {"completed"}
    for receipt in hopeless:
        await is_so(client.session(receipt.session_id), lambda seen: seen.holds)
