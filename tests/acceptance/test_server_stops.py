"""Stopping in peace, and starting where it cannot be: what was accepted is kept, an error says what is the matter."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import psutil
import pytest
from dev_parts import PROJECT, Dev, belonging, ended, is_so, log_of, prepared, texts, types_of, until

from perdure.api.events import Event
from perdure.client.aio import AsyncClient
from perdure.computers.identity import identify


async def stopped(dev: Dev) -> int:
    return await asyncio.to_thread(dev.ended)


# --- SIGTERM


async def test_a_running_inline_turn_finishes_and_queued_ones_wait(dev: Dev, gate: Path) -> None:
    async with dev.client() as client:
        receipt = await client.agents["inline"].create_session(text=f"wait {gate}")
        session = client.session(receipt.session_id)
        queued = await session.enqueue(text="count")

        async def watch() -> list[Event]:
            return [item async for item in session.watch(after=0) if isinstance(item, Event)]

        watching = asyncio.create_task(watch())
        await until(session, "turn.output")
        dev.terminate()
        await asyncio.to_thread(dev.hear, "stopping")
        gate.touch()
        assert await stopped(dev) == 0
        dev.start()
        done = await ended(session, receipt)
        assert (done.status, done.result["turns"]) == ("completed", 1)
        after = await ended(session, queued)
        # The queued one was not begun by the server that was to stop.
        assert after.result == {"turns": 1, "started_as": "reconstructed", "reason": "server_stopped"}
        assert after.run_id != done.run_id
        assert texts(await log_of(session), done.id) == ["waiting", "went on"]
        await session.close()
        watched = await watching
        assert [event.seq for event in watched] == list(range(1, len(watched) + 1))
        assert watched[-1].type in ("session.closed", "session.process_stopped")


async def test_a_process_lives_on_and_is_adopted(dev: Dev, gate: Path) -> None:
    async with dev.client() as client:
        receipt = await client.agents["process"].create_session(text=f"stream {gate}")
        session = client.session(receipt.session_id)
        await until(session, "turn.output", count=3)
        guest = await dev.guest(session)
        dev.terminate()
        assert await stopped(dev) == 0
        assert identify(guest) is not None
        dev.start()
        await until(session, "turn.output", count=8)
        gate.touch()
        done = await ended(session, receipt)
        assert texts(await log_of(session), done.id) == [str(number) for number in range(1, done.result + 1)]
        assert await dev.guest(session) == guest
        assert "session.process_lost" not in await types_of(session)


async def test_what_is_sent_while_the_server_stops_is_accepted_once_or_not_at_all(dev: Dev) -> None:
    async with dev.client() as client:
        receipt = await client.agents["bare"].create_session()
        session = client.session(receipt.session_id)
        going = True

        async def keep_sending(name: int) -> int:
            sent = 0
            while going:
                await session.enqueue(text=f"echo {name}.{sent}", idempotency_key=f"{name}.{sent}")
                sent += 1
            return sent

        senders = [asyncio.create_task(keep_sending(name)) for name in range(4)]
        await until(session, "turn.completed", count=20)
        dev.terminate()
        assert await stopped(dev) == 0
        dev.start()
        restarted = (await session.get()).last_event_seq
        await until(session, "turn.completed", after=restarted)
        going = False
        sent = await asyncio.gather(*senders)
        await is_so(session, lambda seen: not seen.queued and seen.active_turn_id is None)
        turns = [turn async for turn in session.iter_turns()]
        assert {turn.status for turn in turns} == {"completed"}
        texts_sent = [turn.input[0].text for turn in turns]
        assert sorted(texts_sent) == sorted(f"echo {name}.{n}" for name, count in enumerate(sent) for n in range(count))


async def test_a_stop_does_not_wait_for_an_answer_that_cannot_come(dev: Dev) -> None:
    async with dev.client() as client:
        receipt = await client.agents["inline"].create_session(text="ask")
        session = client.session(receipt.session_id)
        await until(session, "ask.created")
        dev.terminate()
        assert await asyncio.to_thread(dev.ended, patience=15) == 0
        dev.start()
        assert (await ended(session, receipt)).reason == "process_stopped"
        assert await types_of(session, "ask.") == ["ask.created", "ask.cancelled"]


async def test_a_second_signal_stops_at_once_and_loses_nothing(dev: Dev, gate: Path) -> None:
    async with dev.client() as client:
        receipt = await client.agents["inline"].create_session(text=f"wait {gate}")
        session = client.session(receipt.session_id)
        await until(session, "turn.output")
        dev.terminate()
        await asyncio.to_thread(dev.hear, "stopping")
        dev.terminate()
        assert await stopped(dev) == 130
        dev.start()
        assert (await ended(session, receipt)).reason == "process_lost"


async def test_interrupt_from_the_keyboard_stops_in_peace_too(dev: Dev) -> None:
    assert dev.process is not None
    dev.process.send_signal(2)
    assert await stopped(dev) == 0
    assert (dev.data / "lock").read_text() == ""
    assert not [pid for pid in belonging(dev.data) if identify(pid)]


# --- starting where it cannot be


def refused(*options: str) -> str:
    """Run a server that is to refuse to start, and return the one line that it says."""
    ended = subprocess.run(
        [sys.executable, "-m", "perdure.cli.main", "dev", str(PROJECT), *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, ""), ended
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert ended.stderr.startswith("error: ")
    return ended.stderr


def test_a_second_server_on_the_same_data_is_refused_and_told_who_has_them(shared: Dev) -> None:
    said = refused("--port", "0", "--data", str(shared.data))
    assert f"in use by process {shared.pid} on {socket.gethostname()}" in said
    assert shared.url in said
    assert "(store_in_use)" in said
    assert httpx2.get(f"{shared.url}/readyz").status_code == 200


def test_a_port_that_is_taken(shared: Dev, tmp_path: Path) -> None:
    said = refused("--port", str(shared.port), "--data", str(tmp_path / "data"))
    assert f"127.0.0.1:{shared.port}: another program listens there" in said
    assert not (tmp_path / "data").exists()


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder in which not even root may make a file."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    folder.chmod(0o555)
    yield Path("/sys/kernel") if os.getuid() == 0 else folder
    folder.chmod(0o755)


@pytest.mark.parametrize("below", ["", "new/data"])
def test_a_data_folder_that_cannot_be_written(read_only: Path, below: str) -> None:
    said = refused("--port", "0", "--data", str(read_only / below))
    assert f"The data folder {read_only / below} cannot be written (" in said
    assert "(store_read_only)" in said


def test_a_data_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("mine")
    said = refused("--port", "0", "--data", str(tmp_path / "data"))
    assert "cannot be written" in said
    assert (tmp_path / "data").read_text() == "mine"


def test_a_project_that_is_not_there(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "perdure.cli.main", "dev", str(tmp_path / "nowhere"), "--port", "0"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "There is no project" in ended.stderr
    assert list(tmp_path.iterdir()) == []


# --- other addresses


def addresses() -> list[str]:
    found = (address for each in psutil.net_if_addrs().values() for address in each)
    return [each.address for each in found if each.family == socket.AF_INET and not each.address.startswith("127.")]


@pytest.fixture
async def exposed(tmp_path: Path) -> AsyncIterator[tuple[Dev, str, str]]:
    """A server on an address of this machine that is not loopback, that address, and its API key."""
    if not addresses():
        pytest.skip("this machine has no address but loopback")
    address = addresses()[0]
    with prepared(PROJECT, tmp_path / "server", "--no-reload", "--host", address) as dev:
        dev.launch()
        key = (await asyncio.to_thread(dev.hear, "key"))["key"]
        url = (await asyncio.to_thread(dev.hear, "ready"))["url"]
        yield dev, url, key


async def test_an_address_that_others_can_reach_needs_a_key(exposed: tuple[Dev, str, str]) -> None:
    dev, url, key = exposed
    async with httpx2.AsyncClient(base_url=url) as http:
        for headers in ({}, {"Authorization": "Bearer prd_sk_wrong"}, {"Authorization": key}):
            reply = await http.get("/v1/agents", headers=headers)
            assert (reply.status_code, reply.json()["error"]["code"]) == (401, "authentication_required")
        assert (await http.get("/healthz")).status_code == 200
    async with AsyncClient(url, key) as client:
        receipt = await client.agents["bare"].create_session(text="count")
        session = client.session(receipt.session_id)
        await ended(session, receipt)
        control = await session.interrupt()
        (hold,) = (await session.get()).holds
        assert hold.id == control.hold_id
        assert hold.issuer.kind == "api_key"
    # The key is kept as a hash, and the next start neither needs nor shows another.
    assert key not in (dev.data / "keys.json").read_text()
    dev.kill()
    dev.launch()
    await asyncio.to_thread(dev.hear, "ready")
    assert sum(said["event"] == "key" for said in dev.said) == 1


@pytest.mark.parametrize("header", ["Host", "Origin"])
@pytest.mark.parametrize("value", ["evil.example", "127.0.0.1.evil.example", "192.168.0.1:7373"])
async def test_a_request_that_comes_by_another_name_is_refused(shared: Dev, header: str, value: str) -> None:
    shown = value if header == "Host" else f"http://{value}"
    async with httpx2.AsyncClient(base_url=shared.url) as http:
        for reply in (
            await http.get("/v1/agents", headers={header: shown}),
            await http.post("/v1/agents/bare/sessions", json={}, headers={header: shown}),
        ):
            assert (reply.status_code, reply.json()["error"]["code"]) == (403, "host_not_allowed")
        assert (await http.get("/v1/agents", headers={"Origin": "http://localhost:3000"})).status_code == 200


async def test_another_address_of_loopback_is_loopback(tmp_path: Path) -> None:
    with prepared(PROJECT, tmp_path / "server", "--no-reload", "--host", "127.0.0.2") as dev:
        url = (await asyncio.to_thread(dev.start))["url"]
        assert url.startswith("http://127.0.0.2:")
        async with AsyncClient(url) as client:
            receipt = await client.agents["bare"].create_session(text="count")
            assert (await ended(client.session(receipt.session_id), receipt)).status == "completed"
