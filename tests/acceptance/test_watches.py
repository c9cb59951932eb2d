"""Watches as the typed client gives them: over restarts, beside others, and with what is still being written."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dev_parts import Dev, ended, log_of, until

from perdure.api.events import Event, SnapshotData
from perdure.client.aio import AsyncClient
from perdure.client.watching import CaughtUp


async def test_three_watchers_see_each_event_once_over_kills(dev: Dev, gate: Path) -> None:
    async with dev.client() as client:
        receipt = await client.agents["process"].create_session(text=f"stream {gate}")
        session = client.session(receipt.session_id)
        lost: list[str] = []

        async def watch(after: int | None) -> tuple[int, list[Event], int]:
            events: list[Event] = []
            first, caught_up = after or 0, 0
            async for item in session.watch(after=after, on_lost=lambda error, _: lost.append(error.code)):
                if isinstance(item, SnapshotData):
                    first = item.cursor
                elif isinstance(item, CaughtUp):
                    caught_up += 1
                elif isinstance(item, Event):
                    events.append(item)
            return first, events, caught_up

        watching = [asyncio.create_task(watch(after)) for after in (None, 0, 2)]
        for kills in (1, 2):
            await until(session, "turn.output", count=5 * kills)
            await asyncio.to_thread(dev.restart)
        await until(session, "turn.output", count=20)
        gate.touch()
        assert (await ended(session, receipt)).status == "completed"
        await session.close()
        watched = await asyncio.gather(*watching)
        events = await log_of(session)
        for first, seen, caught_up in watched:
            assert [event.seq for event in seen] == list(range(first + 1, events[-1].seq + 1))
            assert seen == events[first:]
            assert caught_up == 3
        assert len(lost) >= 6


async def test_live_slots_are_seen_and_end_with_their_turn(client: AsyncClient, gate: Path) -> None:
    receipt = await client.agents["process"].create_session(text=f"live {gate}")
    session = client.session(receipt.session_id)
    await until(session, "turn.output")
    newest: dict[str, str] = {}
    cleared = 0
    last: str | None = None
    async with asyncio.timeout(20):
        async for item in session.watch():
            if isinstance(item, SnapshotData):
                newest = {slot: content[0].text for slot, content in item.live.items()}
                assert newest == {"output": "thinking", "tool:1": "tool"}
                assert [turn.id for turn in item.turns] == [receipt.turn_id]
                gate.touch()
            elif isinstance(item, Event):
                last = item.type
                if last == "turn.completed":
                    await session.close()
            elif getattr(item, "slot", None) is not None:
                if item.content is None:
                    cleared += 1
                else:
                    newest[item.slot] = item.content[0].text
    assert newest["output"] in ("thinking", "thinking about it")
    assert cleared >= 1
    assert last in ("session.closed", "session.process_stopped")
    assert "thinking" not in str([event.data for event in await log_of(session)])


async def test_live_slots_outlive_their_server(dev: Dev, gate: Path) -> None:
    async with dev.client() as client:
        receipt = await client.agents["process"].create_session(text=f"live {gate}")
        session = client.session(receipt.session_id)
        await until(session, "turn.output")
        dev.restart()
        async for item in session.watch():
            assert isinstance(item, SnapshotData)
            shown = {slot: content[0].text for slot, content in item.live.items()}
            assert shown == {"output": "thinking", "tool:1": "tool"}
            break
        gate.touch()
        await ended(session, receipt)
        async for item in session.watch():
            assert isinstance(item, SnapshotData)
            assert item.live == {}
            break


async def test_a_watch_with_a_cursor_gets_the_newest_live_slots_before_it_is_caught_up(
    client: AsyncClient, gate: Path
) -> None:
    receipt = await client.agents["inline"].create_session(text=f"live {gate}")
    session = client.session(receipt.session_id)
    waiting = await until(session, "turn.output")
    names: list[str] = []
    async for item in session.watch(after=1):
        if isinstance(item, CaughtUp):
            break
        names.append(item.type if isinstance(item, Event) else f"{item.slot}={item.content[0].text}")
    assert names[-2:] == ["output=thinking", "tool:1=tool"]
    assert names[:-2] == [event.type for event in await log_of(session)][1 : waiting.seq]
    gate.touch()
    await ended(session, receipt)
