"""A disk that is full, an `init` that takes its time and a worker that stops meanwhile, fork servers that die."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from dev_parts import Dev, ended, gone, log_of, new_file, types_of, until
from process_host_parts import Notes, Stage

from perdure.client.aio import AsyncClient
from perdure.client.retry import Retry
from perdure.errors import StoreError
from perdure.hosts.process.sockets import listen
from perdure.hosts.protocol import Ready

HOSTS = pytest.mark.parametrize("host", ["inline", "process"])


# --- init takes its time


def inits(gate: Path) -> int:
    return len(Path(f"{gate}.ledger").read_text().splitlines())


@HOSTS
async def test_interrupt_while_init_runs_holds_and_lets_it_finish(client: AsyncClient, gate: Path, host: str) -> None:
    receipt = await client.agents[f"{host}_slow"].create_session(text="count", key=str(gate))
    session = client.session(receipt.session_id)
    await new_file(Path(f"{gate}.ledger"))
    control = await session.interrupt()
    gate.touch()
    await new_file(Path(f"{gate}.over"))
    assert (await session.turn(str(receipt.turn_id)).get()).status == "queued"
    assert control.hold_id is not None
    await session.resume(control.hold_id)
    assert (await ended(session, receipt)).result == {"turns": 1, "started_as": "initial", "reason": None}
    assert inits(gate) == 1


@HOSTS
@pytest.mark.parametrize("how", ["cancel", "close"])
async def test_a_session_can_be_ended_while_init_runs(
    shared: Dev, client: AsyncClient, gate: Path, host: str, how: str
) -> None:
    receipt = await client.agents[f"{host}_slow"].create_session(text="count", key=str(gate))
    session = client.session(receipt.session_id)
    await new_file(Path(f"{gate}.ledger"))
    guest = await shared.guest(session) if host == "process" else None
    if how == "cancel":
        await session.cancel()
        assert (await ended(session, receipt)).status == "cancelled"
    else:
        await session.close()
        assert (await session.get()).status == "closing"
        gate.touch()
        assert (await ended(session, receipt)).status == "completed"
    types = [event.type async for event in session.iter_events(follow=True)]
    assert "session.process_lost" not in types
    assert (await session.get()).run is None
    if guest is not None:
        await gone(guest)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_process_is_adopted_while_its_init_runs(dev: Dev, gate: Path, how: int) -> None:
    async with dev.client() as client:
        receipt = await client.agents["process_slow"].create_session(text="count", key=str(gate))
        session = client.session(receipt.session_id)
        await new_file(Path(f"{gate}.ledger"))
        os.kill(dev.pid, how)
        await asyncio.to_thread(dev.ended)
        dev.start()
        gate.touch()
        assert (await ended(session, receipt)).result == {"turns": 1, "started_as": "initial", "reason": None}
        assert inits(gate) == 1
        assert (await session.get()).losses == 0


async def test_a_server_that_stops_while_an_inline_init_runs_loses_nothing(dev: Dev, gate: Path) -> None:
    async with dev.client() as client:
        receipt = await client.agents["inline_slow"].create_session(text="count", key=str(gate))
        session = client.session(receipt.session_id)
        await new_file(Path(f"{gate}.ledger"))
        dev.terminate()
        assert await asyncio.to_thread(dev.ended) == 0
        dev.start()
        gate.touch()
        done = await ended(session, receipt)
        assert done.result == {"turns": 1, "started_as": "reconstructed", "reason": "server_stopped"}
        assert (await session.get()).losses == 0
        assert "session.process_lost" not in await types_of(session)


# --- fork servers die


async def test_a_start_bears_two_fork_servers_that_are_gone(tmp_path: Path) -> None:
    """One dies unnoticed, and behind its socket there is still a child of its own, which ends too."""
    stage = Stage(tmp_path)
    host, notes, others = stage.host(), Notes(), Notes()
    try:
        guest = await host.start(stage.spec(), notes)
        await notes.until(Ready)
        (server,), (path,) = stage.servers(), (tmp_path / "servers").glob("*.sock")
        called = asyncio.Event()

        def leave(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            called.set()
            ghost.close()
            writer.close()

        ghost = await asyncio.start_unix_server(leave, sock=listen(path.parent, path.name))
        os.kill(server, signal.SIGKILL)
        other = await host.start(stage.spec(), others)
        await others.until(Ready)
        assert called.is_set()
        assert notes.reasons == []
        for each in (guest, other):
            await each.stop(grace=0)
        await host.close()
    finally:
        stage.end_everything()


# --- the disk is full


class Limited:
    """A limit on how large the server's files may grow: the write that is too much fails as a broken disk does."""

    said = "The disk under"

    def __init__(self, dev: Dev) -> None:
        self._dev = dev

    def fill(self) -> None:
        resource.prlimit(self._dev.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))

    def make_room(self) -> None:
        resource.prlimit(self._dev.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class Mounted:
    """A small disk of its own under the data."""

    said = "is full. What was committed before is safe, this was not stored; make room and try again."

    def __init__(self, dev: Dev) -> None:
        self._ballast = dev.data / "ballast"

    def fill(self) -> None:
        with suppress(OSError), self._ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(512))

    def make_room(self) -> None:
        self._ballast.unlink()


@pytest.fixture(params=[Limited, Mounted])
def disk(unstarted: Dev, request: pytest.FixtureRequest) -> Iterator[Limited | Mounted]:
    """The disk under the data of a server, which is started on it."""
    if request.param is Limited:
        unstarted.start()
        yield Limited(unstarted)
        return
    unstarted.data.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "perdure-test", str(unstarted.data)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount")
    try:
        unstarted.start()
        yield Mounted(unstarted)
    finally:
        unstarted.end()
        subprocess.run(["umount", "-l", str(unstarted.data)], check=True)


@HOSTS
async def test_a_full_disk_refuses_what_is_new_and_loses_nothing(
    unstarted: Dev, disk: Limited | Mounted, gate: Path, host: str
) -> None:
    dev = unstarted
    async with dev.client() as client, AsyncClient(dev.url, retry=Retry(attempts=1)) as impatient:
        receipt = await client.agents[host].create_session(text=f"wait {gate}")
        session = client.session(receipt.session_id)
        await until(session, "turn.output")
        before = await log_of(session)
        disk.fill()
        with pytest.raises(StoreError) as refused:
            await impatient.session(session.id).enqueue(text="count", idempotency_key="later")
        assert disk.said in refused.value.message
        with pytest.raises(StoreError):
            await impatient.agents["bare"].create_session(text="count")
        assert await log_of(session) == before
        # The handler goes on; what it wants to write waits for better times, and is no failure of its own.
        gate.touch()
        for _ in range(20):
            with pytest.raises(StoreError):
                await impatient.session(session.id).enqueue(text="count", idempotency_key="later")
        assert not gate.with_name("gate.over").exists()
        disk.make_room()
        later = await session.enqueue(text="count", idempotency_key="later")
        done = await ended(session, receipt)
        assert (done.status, done.error) == ("completed", None)
        assert (await ended(session, later)).result == {"turns": 2, "started_as": "initial", "reason": None}
