"""`kill -9` of the server: living processes are adopted, what was accepted is done once, and nothing hangs after."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from dev_parts import Dev, ended, gone, is_so, log_of, new_file, texts, types_of, until

from perdure.client.aio import AsyncClient, AsyncSessionHandle
from perdure.errors import AskCancelled


def started(gate: Path) -> int:
    """Return how many times a handler was started with this gate."""
    return len(Path(f"{gate}.ledger").read_text().splitlines())


async def begin(client: AsyncClient, agent: str, text: str | None = None) -> tuple[AsyncSessionHandle, str]:
    """Create a session, run a turn to have it warm, then begin `text`; return the session and that turn's id."""
    receipt = await client.agents[agent].create_session(text="count")
    session = client.session(receipt.session_id)
    await ended(session, receipt)
    if text is None:
        return session, ""
    receipt = await session.enqueue(text=text)
    assert receipt.turn_id is not None
    return session, receipt.turn_id


@pytest.mark.parametrize("fork_server", ["lives", "dies"])
async def test_a_running_process_is_adopted_and_its_turn_completes_once(dev: Dev, gate: Path, fork_server: str) -> None:
    async with dev.client() as client:
        session, turn = await begin(client, "process", f"stream {gate}")
        queued = await session.enqueue(text="count")
        await until(session, "turn.output", count=3)
        before = (await session.get()).run
        dev.kill()
        if fork_server == "dies":
            for pid in dev.fork_servers():
                os.kill(pid, signal.SIGKILL)
        dev.start()
        await until(session, "turn.output", count=8)
        gate.touch()
        done = await ended(session, turn)
        events = await log_of(session)
        assert done.status == "completed"
        assert texts(events, turn) == [str(number) for number in range(1, done.result + 1)]
        assert started(gate) == 1
        after = await ended(session, queued)
        assert after.result == {"turns": 3, "started_as": "initial", "reason": None}
        assert before is not None
        assert after.run_id == before.id
        assert not [event for event in events if event.type == "session.process_lost"]


async def test_an_inline_turn_is_interrupted_and_the_queue_goes_on(dev: Dev, gate: Path) -> None:
    async with dev.client() as client:
        session, turn = await begin(client, "inline", f"wait {gate}")
        queued = await session.enqueue(text="count")
        await until(session, "turn.output")
        dev.restart()
        lost = await ended(session, turn)
        assert (lost.status, lost.reason) == ("interrupted", "process_lost")
        assert (await ended(session, queued)).result == {
            "turns": 1,
            "started_as": "reconstructed",
            "reason": "process_lost",
        }
        assert started(gate) == 1
        assert (await session.get()).losses == 0


async def test_a_process_that_dies_while_the_server_is_away(dev: Dev, gate: Path) -> None:
    async with dev.client() as client:
        session, child = await begin(client, "process", "child")
        child_pid = (await ended(session, child)).result
        turn, queued = await session.enqueue(text=f"wait {gate}"), await session.enqueue(text="count")
        await until(session, "turn.output")
        guest = await dev.guest(session)
        dev.kill()
        os.kill(guest, signal.SIGKILL)
        dev.start()
        lost = await ended(session, turn)
        assert (lost.status, lost.reason) == ("interrupted", "process_lost")
        assert (await ended(session, queued)).result == {
            "turns": 1,
            "started_as": "reconstructed",
            "reason": "process_lost",
        }
        await gone(child_pid)
        assert started(gate) == 1


async def test_a_process_that_is_too_busy_to_answer_is_adopted_all_the_same(dev: Dev, gate: Path) -> None:
    async with dev.client() as client:
        session, turn = await begin(client, "process", f"block {gate}")
        await until(session, "turn.output")
        dev.restart()
        other = await client.agents["process"].create_session(text="count")
        assert (await ended(client.session(other.session_id), other)).status == "completed"
        gate.touch()
        done = await ended(session, turn)
        assert done.result == {"turns": 2, "started_as": "initial", "reason": None}
        assert texts(await log_of(session), turn) == ["blocking", "went on"]
        assert started(gate) == 1


async def test_a_fork_server_that_dies_takes_nobody_with_it(dev: Dev, gate: Path) -> None:
    async with dev.client() as client:
        session, turn = await begin(client, "process", f"wait {gate}")
        await until(session, "turn.output")
        (server,) = dev.fork_servers()
        os.kill(server, signal.SIGKILL)
        other = await client.agents["process"].create_session(text="count")
        assert (await ended(client.session(other.session_id), other)).result["started_as"] == "initial"
        gate.touch()
        assert (await ended(session, turn)).result == {"turns": 2, "started_as": "initial", "reason": None}


async def test_a_question_of_an_inline_turn_ends_with_its_server(dev: Dev) -> None:
    async with dev.client() as client:
        session, turn = await begin(client, "inline", "ask")
        asked = await until(session, "ask.created")
        dev.restart()
        assert (await ended(session, turn)).reason == "process_lost"
        with pytest.raises(AskCancelled):
            await session.ask(asked.data["ask_id"]).answer("Ada")


async def test_a_hibernated_session_goes_on(dev: Dev) -> None:
    async with dev.client() as client:
        session, _ = await begin(client, "sleeper")
        await until(session, "session.hibernated")
        dev.restart()
        seen = await session.get()
        assert seen.computer is not None
        assert seen.computer.residency == "hibernated"
        done = await ended(session, await session.enqueue(text="count"))
        assert done.result == {"turns": 2, "started_as": "initial", "reason": None}
        # It hibernates again and wakes again, in the hands of the new server.
        await until(session, "session.hibernated", count=2)
        done = await ended(session, await session.enqueue(text="count"))
        assert done.result["turns"] == 3


@pytest.mark.parametrize("point", ["store.commit.after=Tick", "store.commit.before=SetResidency"])
async def test_a_death_in_the_middle_of_a_hibernation(unstarted: Dev, point: str) -> None:
    dev = unstarted
    dev.start(PERDURE_CRASH_POINT=f"{point}:kill")
    async with dev.client() as client:
        receipt = await client.agents["sleeper"].create_session(text="count")
        session = client.session(receipt.session_id)
        await asyncio.to_thread(dev.ended)
        dev.start()
        await until(session, "session.hibernated")
        done = await ended(session, await session.enqueue(text="count"))
        assert done.result == {"turns": 2, "started_as": "initial", "reason": None}


async def test_a_question_waits_over_a_restart(dev: Dev, gate: Path) -> None:
    async with dev.client() as client:
        session, turn = await begin(client, "process", f"ask {gate}")
        asked = await until(session, "ask.created")
        dev.restart()
        ask = session.ask(asked.data["ask_id"])
        assert (await ask.get()).status == "pending"
        await ask.answer("Ada", response_id="r1")
        done = await ended(session, turn)
        assert done.result["value"] == "Ada"
        assert done.result["state"] == {"turns": 2, "started_as": "initial", "reason": None}
        assert started(gate) == 1
        assert await types_of(session, "ask.") == ["ask.created", "ask.responded"]


@pytest.mark.parametrize("point", ["store.commit.before=AnswerAsk", "store.commit.after=AnswerAsk"])
async def test_an_answer_on_whose_way_the_server_dies(unstarted: Dev, point: str) -> None:
    dev = unstarted
    dev.start(PERDURE_CRASH_POINT=f"{point}:kill")
    async with dev.client() as client:
        session, turn = await begin(client, "process", "ask")
        asked = await until(session, "ask.created")
        answering = asyncio.create_task(session.ask(asked.data["ask_id"]).answer("Ada", response_id="r1"))
        await asyncio.to_thread(dev.ended)
        dev.start()
        assert (await answering).status == "responded"
        assert (await ended(session, turn)).result["value"] == "Ada"
        assert await types_of(session, "ask.") == ["ask.created", "ask.responded"]


@pytest.mark.parametrize(
    ("point", "way"),
    [("store.commit.before", "Send"), ("store.commit.after", "Send"), ("store.commit.after", "SendToTurn")],
)
async def test_a_message_on_whose_way_the_server_dies(unstarted: Dev, point: str, way: str) -> None:
    dev = unstarted
    dev.start(PERDURE_CRASH_POINT=f"{point}={way}:kill")
    async with dev.client() as client:
        session, turn = await begin(client, "process", "steered 2")
        await until(session, "turn.output")
        target = session if way == "Send" else session.turn(turn)
        sending = asyncio.create_task(target.send(text="faster", idempotency_key="m1"))
        await asyncio.to_thread(dev.ended)
        dev.start()
        receipt = await sending
        assert receipt.turn_id == turn
        assert await target.send(text="faster", idempotency_key="m1") == receipt
        await session.send(text="louder")
        assert (await ended(session, turn)).result == ["faster", "louder"]
        assert (await types_of(session, "message.")).count("message.admitted") == 2


async def test_an_interrupt_on_whose_way_the_server_dies(unstarted: Dev, gate: Path) -> None:
    dev = unstarted
    dev.start(PERDURE_CRASH_POINT="store.commit.after=Interrupt:kill")
    async with dev.client() as client:
        session, turn = await begin(client, "process", f"deaf {gate}")
        queued = await session.enqueue(text="count")
        await until(session, "turn.output")
        interrupting = asyncio.create_task(session.interrupt())
        await asyncio.to_thread(dev.ended)
        dev.start()
        control = await interrupting
        assert (await ended(session, turn)).status == "interrupted"
        # The process, which has heard of nothing yet, is told by the server that adopts it.
        await new_file(gate.with_name("gate.heard"))
        gate.touch()
        assert control.hold_id is not None
        await session.resume(control.hold_id)
        assert (await ended(session, queued)).result == {"turns": 3, "started_as": "initial", "reason": None}


@pytest.mark.parametrize(
    ("point", "how"), [("store.commit.after=StopRun", "close"), ("store.commit.before=RunStopped", "cancel")]
)
async def test_a_death_while_a_process_is_being_ended(unstarted: Dev, point: str, how: str) -> None:
    dev = unstarted
    dev.start(PERDURE_CRASH_POINT=f"{point}:kill")
    async with dev.client() as client:
        session, _ = await begin(client, "process")
        guest = await dev.guest(session)
        await (session.close() if how == "close" else session.cancel())
        await asyncio.to_thread(dev.ended)
        dev.start()
        await gone(guest)
        types = await types_of(session, "session.")
        seen = await is_so(session, lambda seen: seen.run is None)
        assert seen.status == ("closed" if how == "close" else "cancelled")
        assert "session.process_lost" not in types


async def test_an_idle_inline_session_of_a_dead_server_can_be_closed(dev: Dev) -> None:
    async with dev.client() as client:
        session, _ = await begin(client, "inline")
        dev.restart()
        await session.close()
        async with asyncio.timeout(10):
            types = [event.type async for event in session.iter_events(follow=True)]
        assert types[-1] != "turn.completed"
        assert (await session.get()).run is None


async def test_nothing_that_was_accepted_is_lost(dev: Dev) -> None:
    """Fifty sessions are being given work while the server dies twice."""
    async with dev.client() as client:

        async def work(number: int) -> list[str]:
            agent = "process" if number % 25 == 0 else "bare"
            created = await client.agents[agent].create_session(key=f"k{number}", idempotency_key=f"c{number}")
            session = client.session(created.session_id)
            receipts = [await session.enqueue(text="echo x", idempotency_key=f"{number}:{i}") for i in range(4)]
            assert [receipt.sequence for receipt in receipts] == [1, 2, 3, 4]
            turns = [await ended(session, receipt) for receipt in receipts]
            events = await log_of(session)
            assert sum(event.type == "turn.queued" for event in events) == 4
            for turn in turns:
                assert sum(event.type == "turn.running" for event in events if event.turn_id == turn.id) == 1
            return [turn.status for turn in turns]

        working = [asyncio.create_task(work(number)) for number in range(50)]
        for _ in range(2):
            await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED, timeout=0.3)
            dev.restart()
        outcomes = [status for statuses in await asyncio.gather(*working) for status in statuses]
        assert set(outcomes) <= {"completed", "interrupted"}
        assert outcomes.count("completed") > 100
