"""Servers as users start them: crashed by the environment, killed with a hundred turns in flight."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from crash_story import QUICK

from perdure.api.sessions import Receipt
from perdure.client.aio import AsyncClient
from perdure.testing import DevServer, History, Ledger, ServerNotStarted, Started, check_history, local_node

SESSIONS = 100
PROJECT = """
import asyncio, os
import perdure
from perdure.testing import Ledger

agent = perdure.Agent("waiter")

@agent.turn
async def turn(turn, ctx):
    Ledger(os.environ["LEDGER"]).note(session=ctx.session.id, sequence=turn.sequence, run=ctx.run.id)
    await turn.output.write("begun")
    while turn.text == "wait":
        await asyncio.sleep(3600)
    await turn.respond("done")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project" / "agents").mkdir(parents=True)
    (tmp_path / "project" / "agents" / "waiter.py").write_text(PROJECT)
    return tmp_path / "project"


@pytest.fixture
def server(project: Path, tmp_path: Path) -> DevServer:
    return DevServer(project, tmp_path / "data", environment={"LEDGER": str(tmp_path / "ledger")})


@asynccontextmanager
async def started(server: DevServer, **options: Any) -> AsyncIterator[AsyncClient]:
    await asyncio.to_thread(lambda: server.start(**options))
    try:
        async with AsyncClient(server.url, retry=QUICK) as client:
            yield client
    finally:
        await asyncio.to_thread(server.kill)


async def eventually(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not what():
            await asyncio.sleep(0.01)


async def history_of(client: AsyncClient, session_id: str) -> History:
    session = client.session(session_id)
    turns = [turn.document() async for turn in session.iter_turns()]
    events = [event.document() async for event in session.iter_events()]
    runs = [run.document() for run in (await session.runs(limit=100)).runs]
    return History((await session.get()).document(), turns, events, runs)


@pytest.mark.timeout(180)
async def test_a_hundred_turns_in_flight_are_settled_once_the_server_is_back(server: DevServer, tmp_path: Path) -> None:
    """Each is interrupted, none is begun again, and what waited behind it is done."""
    ledger = Ledger(tmp_path / "ledger")
    async with started(server) as client:
        waiter = client.agents["waiter"]
        receipts = await asyncio.gather(*(waiter.create_session(text="wait") for _ in range(SESSIONS)))
        queued = await asyncio.gather(*(client.session(each.session_id).enqueue(text="go") for each in receipts))
        await eventually(lambda: len(ledger.entries()) == SESSIONS)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        ready = time.monotonic()
        statuses = await asyncio.gather(*(settled(client, each) for each in receipts))
        took = time.monotonic() - ready
        assert statuses == ["interrupted"] * SESSIONS
        assert await asyncio.gather(*(settled(client, each) for each in queued)) == ["completed"] * SESSIONS
        assert took < 10, f"{SESSIONS} turns were settled after {took:.1f} s"
        entries = ledger.entries()
        for first, second in zip(receipts, queued, strict=True):
            mine = [entry for entry in entries if entry["session"] == first.session_id]
            begun = [Started(entry["sequence"], entry["run"]) for entry in mine]
            assert [each.sequence for each in begun] == [1, 2]
            check_history(await history_of(client, first.session_id), begun, [first.document(), second.document()])


async def settled(client: AsyncClient, receipt: Receipt) -> str:
    assert receipt.turn_id is not None
    found = await client.session(receipt.session_id).turn(receipt.turn_id).wait(60)
    assert found.status == "settled"
    return found.turn.status


async def test_a_server_is_crashed_at_a_point_and_goes_on_after(server: DevServer, tmp_path: Path) -> None:
    """The input was committed and its sender never heard of it: sent again, it has its first receipt."""
    async with started(server, crash_point="engine.admit.after=Enqueue:kill") as client:
        session = client.session((await client.agents["waiter"].create_session(text="go")).session_id)
        sending = asyncio.create_task(session.enqueue(text="go", idempotency_key="once"))
        assert await asyncio.to_thread(server.wait) == -signal.SIGKILL
        assert not server.runs
        await asyncio.to_thread(server.start)
        receipt = await sending
        assert receipt.sequence == 2
        assert await settled(client, receipt) in ("completed", "interrupted")
        assert await session.enqueue(text="go", idempotency_key="once") == receipt
        assert len(Ledger(tmp_path / "ledger").entries(sequence=2)) <= 1


async def test_a_server_is_asked_to_stop(server: DevServer) -> None:
    async with started(server) as client:
        await settled(client, await client.agents["waiter"].create_session(text="go"))
        with pytest.raises(RuntimeError, match="runs already"):
            server.start()
        assert await asyncio.to_thread(server.stop) == 0
        with pytest.raises(RuntimeError, match="does not run"):
            assert server.pid


def test_a_server_that_does_not_start_says_why(server: DevServer) -> None:
    (server.project / "agents" / "waiter.py").write_text("import nothing_of_that_name")
    with pytest.raises(ServerNotStarted, match="nothing_of_that_name"):
        server.start()
    with pytest.raises(ValueError, match="unknown crash point"):
        server.start(crash_point="nowhere:kill")
    assert not server.runs


async def test_a_node_of_the_tests_own_answers_as_a_server_does(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEDGER", str(tmp_path / "ledger"))
    async with local_node(tmp_path / "data", project) as node:
        receipt = Receipt.model_validate_json(await node.service.create_session(node.scope, "waiter", input="go"))
        assert receipt.turn_id is not None
        turn = await node.service.wait_turn(node.scope, receipt.session_id, receipt.turn_id, 60_000_000)
        assert turn.status == "completed"
    assert len(Ledger(tmp_path / "ledger").entries()) == 1
