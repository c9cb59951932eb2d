"""What time does: idle sessions close and sleep, and times go on while the server is away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from dev_parts import PROJECT, Dev, ended, gone, is_so, log_of, types_of, until

from perdure.client.aio import AsyncClient
from perdure.deploy.archive import pack
from perdure.engine.engine import Settings
from perdure.engine.service import EventItem, Scope
from perdure.records.sessions import Issuer
from perdure.server.node import Node, open_node

# --- idle sessions close


@pytest.mark.parametrize("agent", ["inline_fleeting", "process_fleeting"])
async def test_an_idle_session_closes_by_itself(shared: Dev, client: AsyncClient, agent: str) -> None:
    receipt = await client.agents[agent].create_session(text="pid")
    session = client.session(receipt.session_id)
    pid = (await ended(session, receipt)).result
    events = [event async for event in session.iter_events(follow=True)]
    closing = next(event for event in events if event.type == "session.closing")
    completed = next(event for event in events if event.type == "turn.completed")
    assert closing.data == {"reason": "idle"}
    assert 0.3 <= (closing.at - completed.at).total_seconds() < 3
    assert events[-1].type in ("session.closed", "session.process_stopped")
    assert (await session.get()).status == "closed"
    if agent == "process_fleeting":
        await gone(pid)


async def test_a_session_without_any_input_closes_too(client: AsyncClient) -> None:
    receipt = await client.agents["process_fleeting"].create_session()
    session = client.session(receipt.session_id)
    types = [event.type async for event in session.iter_events(follow=True)]
    assert types == ["session.created", "session.closing", "session.closed"]


async def test_work_puts_the_close_off(client: AsyncClient, gate: Path) -> None:
    receipt = await client.agents["inline_fleeting"].create_session(text=f"wait {gate}")
    session = client.session(receipt.session_id)
    other = await client.agents["inline_fleeting"].create_session()
    # When the idle one has closed, the one at work would have too, if work did not count.
    await until(client.session(other.session_id), "session.closed")
    assert (await session.get()).status == "open"
    gate.touch()
    done = await ended(session, receipt)
    assert done.ended_at is not None
    closing = await until(session, "session.closing")
    assert (closing.at - done.ended_at).total_seconds() >= 0.3


# --- times go on while the server is away


@pytest.mark.parametrize("agent", ["inline_hasty", "process_hasty"])
async def test_a_deadline_that_passes_while_the_server_is_away(dev: Dev, gate: Path, agent: str) -> None:
    async with dev.client() as client:
        receipt = await client.agents[agent].create_session(text=f"wait {gate}")
        session = client.session(receipt.session_id)
        begun = (await until(session, "turn.running")).at
        await until(session, "turn.output")
        dev.kill()
        await pass_by(begun, seconds=1.1)
        dev.start()
        back = time.time()
        late = await ended(session, receipt)
        assert late.status == "interrupted"
        assert late.ended_at is not None
        assert late.ended_at.timestamp() - back < 1.5
        if agent == "inline_hasty":
            # Its process was lost with the server, long before the deadline was noticed.
            assert (late.reason, (await session.get()).holds) == ("process_lost", [])
            return
        assert late.reason == "deadline"
        (hold,) = (await is_so(session, lambda seen: seen.holds)).holds
        await session.resume(hold.id)
        done = await ended(session, await session.enqueue(text="count"))
        assert done.result == {"turns": 2, "started_as": "initial", "reason": None}


async def pass_by(since: datetime, seconds: float) -> None:
    """Let time pass until so much later than `since`: it is the clock that is tested."""
    await asyncio.sleep(max(0.0, since.timestamp() + seconds - time.time()))


async def test_a_session_that_is_idle_while_the_server_is_away_closes_right_after(dev: Dev) -> None:
    async with dev.client() as client:
        receipts = [
            await client.agents[f"{host}_fleeting"].create_session(text="pid") for host in ("inline", "process")
        ]
        sessions = [client.session(receipt.session_id) for receipt in receipts]
        done = [await ended(session, receipt) for session, receipt in zip(sessions, receipts, strict=True)]
        dev.kill()
        assert done[-1].ended_at is not None
        await pass_by(done[-1].ended_at, seconds=0.4)
        dev.start()
        back = time.time()
        for session in sessions:
            events = [event async for event in session.iter_events(follow=True)]
            closed = next(event for event in events if event.type == "session.closed")
            assert closed.at.timestamp() - back < 1.5
            assert (await session.get()).run is None
        await gone(done[1].result)


async def test_a_hibernation_that_was_due_while_the_server_was_away(dev: Dev) -> None:
    async with dev.client() as client:
        receipt = await client.agents["sleeper"].create_session(text="count")
        session = client.session(receipt.session_id)
        await ended(session, receipt)
        dev.restart()
        await until(session, "session.hibernated")
        assert (await ended(session, await session.enqueue(text="count"))).result["turns"] == 2


# --- inline sessions sleep: with the engine in this process, since a minute of idleness is long


SCOPE = Scope("demo", "development", Issuer("user", "local"))


class Asleep:
    """A node whose idle inline sessions fall asleep at once."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.service = node.service

    async def create(self, text: str) -> str:
        receipt = msgspec.json.decode(await self.service.create_session(SCOPE, "inline", input=text))
        await self.result(receipt)
        return str(receipt["session_id"])

    async def enqueue(self, session: str, text: str) -> Any:
        return msgspec.json.decode(await self.service.enqueue(SCOPE, session, text))

    async def result(self, receipt: Any) -> Any:
        turn = await self.service.wait_turn(SCOPE, receipt["session_id"], receipt["turn_id"], 20_000_000)
        assert turn.status == "completed", turn
        assert turn.result_json is not None
        return msgspec.json.decode(turn.result_json)

    async def until(self, session: str, kind: str, count: int = 1) -> None:
        async with asyncio.timeout(20):
            async for item in self.service.watch(SCOPE, session, 0):
                if isinstance(item, EventItem) and item.event.type == kind:
                    count -= 1
                    if not count:
                        return


@pytest.fixture
async def asleep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Asleep]:
    monkeypatch.setattr("perdure.engine.engine._SWEEP", 0.01)
    async with open_node(tmp_path / "data", settings=Settings(sleep_after=0.02)) as node:
        await node.service.deploy(SCOPE, pack(PROJECT).data)
        yield Asleep(node)


async def test_an_idle_inline_session_sleeps_and_wakes_reconstructed(asleep: Asleep) -> None:
    session = await asleep.create("count")
    await asleep.until(session, "session.process_stopped")
    assert asleep.node.engine.awake == 0
    woken = await asleep.result(await asleep.enqueue(session, "count"))
    assert woken == {"turns": 1, "started_as": "reconstructed", "reason": "slept"}
    view = await asleep.service.session(SCOPE, session)
    assert view.head.losses == 0


async def test_a_message_that_arrives_while_a_session_falls_asleep(asleep: Asleep) -> None:
    """Case 29: whichever comes first, the message is worked on; it is sent at every step of falling asleep."""
    session = await asleep.create("count")
    kinds = set()
    for number in range(2, 120):
        driver = asleep.node.engine._drivers.get(session)
        sleeping = asyncio.ensure_future(driver.sleep("slept")) if driver else None
        for _ in range(number % 12):
            await asyncio.sleep(0)
        result = await asleep.result(await asleep.enqueue(session, "count"))
        kinds.add(result["turns"] == 1)
        if sleeping is not None:
            await sleeping
        head = await asleep.node.store.head(session)
        assert head is not None
        assert (head.last_turn, head.queued, head.losses) == (number, 0, 0)
    assert kinds == {True, False}


async def test_a_session_that_is_held_sleeps_and_its_resume_wakes_it(asleep: Asleep) -> None:
    session = await asleep.create("count")
    control = msgspec.json.decode(await asleep.service.interrupt(SCOPE, session))
    queued = await asleep.enqueue(session, "count")
    await asleep.until(session, "session.process_stopped")
    await asleep.service.resume(SCOPE, session, control["hold_id"])
    assert (await asleep.result(queued))["reason"] == "slept"


async def test_a_turn_that_outlasts_a_stop_in_peace_is_interrupted_and_no_loss(tmp_path: Path, gate: Path) -> None:
    settings = Settings(drain=0.05)
    for number in (1, 2, 3, 4):
        async with open_node(tmp_path / "data", settings=settings) as node:
            asleep = Asleep(node)
            if number == 1:
                await node.service.deploy(SCOPE, pack(PROJECT).data)
                session = await asleep.create("count")
            turn = await asleep.enqueue(session, f"wait {gate}")
            await asleep.until(session, "turn.output", count=number)
        async with open_node(tmp_path / "data", settings=settings) as node:
            stopped = await node.service.turn(SCOPE, session, turn["turn_id"])
            assert (stopped.status, stopped.reason) == ("interrupted", "process_stopped")
            head = (await node.service.session(SCOPE, session)).head
            assert (head.losses, head.holds, head.run, head.run_end) == (0, (), None, "server_stopped")


async def test_what_a_restart_finds_sleeping(dev: Dev) -> None:
    """An inline session that was idle when its server stopped in peace goes on as one that slept."""
    async with dev.client() as client:
        receipt = await client.agents["inline"].create_session(text="count")
        session = client.session(receipt.session_id)
        await ended(session, receipt)
        dev.terminate()
        assert await asyncio.to_thread(dev.ended) == 0
        dev.start()
        assert (await session.get()).run is None
        done = await ended(session, await session.enqueue(text="count"))
        assert done.result == {"turns": 1, "started_as": "reconstructed", "reason": "server_stopped"}
        assert "session.process_lost" not in await types_of(session)
        assert (await log_of(session))[-1].type == "turn.completed"
