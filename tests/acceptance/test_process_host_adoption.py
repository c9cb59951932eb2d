from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from process_host_parts import Notes, Stage, begin, running

from perdure.computers.exits import wait_exit
from perdure.computers.identity import ProcessIdentity, identify, is_alive, send_signal
from perdure.computers.meta import read_meta
from perdure.errors import StaleFence
from perdure.hosts.protocol import Output, Raised, Ready, Returned, RunSpec

WORKER = Path(__file__).with_name("process_host_worker.py")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.end_everything()


@asynccontextmanager
async def worker(stage: Stage, spec: RunSpec, text: str, until: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker process, once it has printed `until`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(WORKER), str(stage.root), msgspec.json.encode(spec).decode(), text,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(20):
            while until not in (line := (await process.stdout.readline()).decode()):
                assert line
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def guest_of(spec: RunSpec) -> ProcessIdentity:
    meta = read_meta(Path(str(spec.computer_path)) / "run")
    assert meta is not None
    assert meta.run_id == spec.run_id
    return meta.process


async def kill(process: asyncio.subprocess.Process) -> None:
    process.kill()
    await process.wait()


def after(spec: RunSpec) -> RunSpec:
    """The same Run in the hands of the next worker."""
    return msgspec.structs.replace(spec, epoch=spec.epoch + 1)


@pytest.mark.parametrize("server", ["lives", "dies"])
async def test_a_turn_outlives_its_worker_and_its_request_is_answered_once(stage: Stage, server: str) -> None:
    spec, go = stage.spec(), stage.root / "go"
    async with worker(stage, spec, f"wait {go}", until="Output") as first:
        process = guest_of(spec)
        go.touch()
        assert first.stdout is not None
        async with asyncio.timeout(10):
            while await first.stdout.readline() != b"hanging\n":
                pass
        await kill(first)
    if server == "dies":
        for pid in stage.servers():
            os.kill(pid, signal.SIGKILL)
    assert is_alive(process)
    host, notes = stage.host(), Notes()
    guest = await host.adopt(after(spec), notes, hibernated=False)
    assert guest is not None
    assert (await notes.until(Returned)).result_json == b"1"
    await notes.until(Ready)
    assert [(output.turn, output.op) for output in notes.of(Output)] == [(1, 2)]
    assert len(notes.of(Returned)) == 1
    assert len(notes.of(Ready)) == 1
    guest.tell(begin(1, "count again"))
    guest.tell(begin(2, "count x"))
    assert (await notes.until(Returned, 2)).result_json == b"2"
    assert (stage.workspace(spec) / "handlers").read_text() == "1\n2\n"
    assert (stage.workspace(spec) / "inits").read_text() == "x"
    assert guest.computer.guest == process
    send_signal(process, signal.SIGKILL)
    reason = await notes.until_lost()
    assert ("SIGKILL" if server == "lives" else "not known") in reason
    await host.close()


async def test_a_sleeping_session_is_adopted_asleep(stage: Stage) -> None:
    spec = stage.spec()
    async with worker(stage, spec, "hibernate", until="stopped") as first:
        await kill(first)
    host, notes = stage.host(), Notes()
    guest = await host.adopt(after(spec), notes, hibernated=True)
    assert guest is not None
    assert guest.computer.residency == "hibernated"
    assert notes.requests == []
    guest.tell(begin(1, "count x"))
    await guest.resume()
    assert (await notes.until(Returned)).result_json == b"1"
    await guest.stop(grace=5)
    await host.close()


async def test_a_session_that_was_thought_awake_and_sleeps_is_woken(stage: Stage) -> None:
    spec = stage.spec()
    async with worker(stage, spec, "hibernate", until="stopped") as first:
        await kill(first)
    host, notes = stage.host(), Notes()
    guest = await host.adopt(after(spec), notes, hibernated=False)
    assert guest is not None
    await notes.until(Ready)
    assert guest.computer.residency == "running"
    await guest.stop(grace=5)
    await host.close()


async def test_a_session_that_was_thought_asleep_and_is_awake_is_put_to_sleep(stage: Stage) -> None:
    async with running(stage) as (guest, _, spec):
        await guest.detach()
        host, notes = stage.host(), Notes()
        again = await host.adopt(after(spec), notes, hibernated=True)
        assert again is not None
        assert again.computer.residency == "hibernated"
        await again.resume()
        await again.stop(grace=5)
        await host.close()


@pytest.mark.parametrize("when", ["before", "during"])
async def test_a_process_that_died_with_nobody_there_is_not_adopted(stage: Stage, when: str) -> None:
    async with running(stage) as (guest, notes, spec):
        guest.tell(begin(1, "family"))
        pids = msgspec.json.decode((await notes.until(Returned)).result_json, type=list[int])
        family = [identity for pid in pids if (identity := identify(pid))]
        process = guest_of(spec)
        await guest.detach()
        if when == "during":
            send_signal(process, signal.SIGSTOP)
        else:
            send_signal(process, signal.SIGKILL)
            await wait_exit(process)
        host, later = stage.host(), Notes()
        adopting = asyncio.create_task(host.adopt(after(spec), later, hibernated=False))
        if when == "during":
            send_signal(process, signal.SIGKILL)
        assert await adopting is None
        assert later.reasons == []
        assert len(family) == 3
        assert not any(is_alive(member) for member in family)
        await host.close()


async def test_a_process_of_another_run_is_ended_and_not_adopted(stage: Stage) -> None:
    async with running(stage) as (guest, _, spec):
        process = guest_of(spec)
        await guest.detach()
        host = stage.host()
        other = msgspec.structs.replace(spec, run_id="another", epoch=2)
        assert await host.adopt(other, Notes(), hibernated=False) is None
        assert not is_alive(process)
        await host.close()


async def test_a_busy_process_is_adopted_before_it_answers(stage: Stage, monkeypatch) -> None:
    monkeypatch.setattr("perdure.hosts.process.host.ADOPT_TIMEOUT", 0.05)
    async with running(stage) as (guest, _, spec):
        guest.tell(begin(1, "block 0.5"))
        async with asyncio.timeout(10):
            while not (stage.workspace(spec) / "blocking").exists():
                await asyncio.sleep(0.001)
        await guest.detach()
        host, notes = stage.host(), Notes()
        again = await host.adopt(after(spec), notes, hibernated=False)
        assert again is not None
        assert (await notes.until(Returned)).result_json == b'"unblocked"'
        await again.stop(grace=5)
        await host.close()


# --- fork servers


async def test_sessions_outlive_their_fork_server_and_new_ones_get_a_new_one(stage: Stage) -> None:
    host, notes, later = stage.host(), Notes(), Notes()
    guest = await host.start(stage.spec(), notes)
    await notes.until(Ready)
    (server,) = stage.servers()
    identity = identify(server)
    assert identity is not None
    os.kill(server, signal.SIGKILL)
    await wait_exit(identity)
    second = await host.start(stage.spec(), later)
    await later.until(Ready)
    assert stage.servers() != [server]
    guest.tell(begin(1, "count x"))
    assert (await notes.until(Returned)).result_json == b"1"
    assert notes.reasons == []
    for living in (guest, second):
        await living.stop(grace=5)
    await host.close()


async def test_the_socket_and_empty_log_of_a_server_that_is_gone_are_swept(stage: Stage) -> None:
    async with running(stage) as (_, _, _):
        (server,) = stage.servers()
        identity = identify(server)
        assert identity is not None
        before = {path.name for path in (stage.root / "servers").iterdir()}
        assert len(before) == 2
        os.kill(server, signal.SIGKILL)
        await wait_exit(identity)
        async with running(stage, deployment_id="deployment-2"):
            after = {path.name for path in (stage.root / "servers").iterdir()}
            assert len(after) == 2
            assert not before & after


async def test_a_start_that_is_cancelled_leaves_its_process_to_the_next_worker(stage: Stage) -> None:
    first, spec = stage.host(), stage.spec()
    starting = asyncio.create_task(first.start(spec, Notes()))
    async with asyncio.timeout(10):
        while not (Path(str(spec.computer_path)) / "run" / "meta.json").exists():
            await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait([starting])
    await first.close()
    if not starting.cancelled():
        pytest.skip("the start was faster than its cancellation")
    second, notes = stage.host(), Notes()
    guest = await second.adopt(after(spec), notes, hibernated=False)
    assert guest is not None
    await notes.until(Ready)
    assert (stage.workspace(spec) / "inits").read_text() == "x"
    await guest.stop(grace=5)
    await second.close()


async def test_a_second_worker_uses_the_fork_server_of_the_first(stage: Stage) -> None:
    async with running(stage):
        before = stage.servers()
        async with running(stage):
            assert stage.servers() == before


async def test_processes_forked_ahead_of_need_end_with_their_server(stage: Stage) -> None:
    async with running(stage) as (guest, _, _):
        async with asyncio.timeout(10):
            while not (spares := stage.spares()):
                await asyncio.sleep(0.005)
        (server,) = stage.servers()
        os.kill(server, signal.SIGKILL)
        async with asyncio.timeout(10):
            for spare in spares:
                await wait_exit(spare)
        assert guest.computer.residency == "running"


# --- being without a worker, and having two


async def test_a_process_whose_worker_never_returns_ends_itself_and_its_children(stage: Stage) -> None:
    host, notes, spec = stage.host(patience=0.3), Notes(), stage.spec()
    guest = await host.start(spec, notes)
    guest.tell(begin(1, "family"))
    pids = msgspec.json.decode((await notes.until(Returned)).result_json, type=list[int])
    family = [identity for pid in pids if (identity := identify(pid))]
    process = guest_of(spec)
    await host.close()
    async with asyncio.timeout(20):
        for member in (process, *family):
            await wait_exit(member)
    assert "no worker came for it in 0.3 s" in Path(spec.log_path).read_text()
    again = stage.host()
    assert await again.adopt(after(spec), Notes(), hibernated=False) is None
    async with asyncio.timeout(10):
        # The fork server writes it down a moment after the end.
        while "code 75" not in await again.how_ended(spec):
            await asyncio.sleep(0.005)
    await again.close()


async def test_a_process_whose_computer_is_removed_ends_itself(stage: Stage) -> None:
    host, notes, spec = stage.host(), Notes(), stage.spec()
    guest = await host.start(spec, notes)
    process = guest_of(spec)
    await host.close()
    shutil.rmtree(guest.computer.run.parent)
    async with asyncio.timeout(20):
        await wait_exit(process)
    assert "its Computer's folder is gone" in Path(spec.log_path).read_text()


async def test_time_spent_stopped_does_not_count_as_time_without_a_worker(stage: Stage) -> None:
    host, notes, spec = stage.host(patience=1.0), Notes(), stage.spec()
    guest = await host.start(spec, notes)
    await notes.until(Ready)
    await guest.hibernate()
    await asyncio.sleep(1.5)
    await guest.resume()
    guest.tell(begin(1, "count x"))
    assert (await notes.until(Returned)).result_json == b"1"
    await guest.stop(grace=5)
    await host.close()


async def test_the_older_of_two_workers_is_told_that_it_is_fenced(stage: Stage) -> None:
    first, notes, spec = stage.host(), Notes(), stage.spec()
    old = await first.start(spec, notes)
    await notes.until(Ready)
    second, later = stage.host(), Notes()
    new = await second.adopt(after(spec), later, hibernated=False)
    assert new is not None
    await later.until(Ready)
    assert "another worker" in await notes.until_lost()
    old.tell(begin(1, "count old"))
    new.tell(begin(1, "count new"))
    await later.until(Returned)
    assert notes.of(Returned) == []
    assert (stage.workspace(spec) / "handlers").read_text() == "1\n"
    await new.stop(grace=5)
    await first.close()
    await second.close()


async def test_what_a_worker_may_not_do_any_more_is_asked_of_the_next(stage: Stage) -> None:
    """Its lease is over and it does not know it yet: no word of that gets into the turn."""

    def fenced(request: object) -> int:
        if isinstance(request, Output):
            raise StaleFence("session")
        return 1

    first, notes, spec = stage.host(), Notes(), stage.spec()
    old = await first.start(spec, notes)
    await notes.until(Ready)
    notes.answer = fenced
    old.tell(begin(1, "write"))
    await notes.until(Output)
    second, later = stage.host(), Notes()
    new = await second.adopt(after(spec), later, hibernated=False)
    assert new is not None
    written = await later.until(Output)
    assert (written.turn, written.op) == (1, 1)
    assert (await later.until(Returned)).turn == 1
    assert notes.of(Returned) == []
    assert (later.of(Raised), notes.of(Raised)) == ([], [])
    await new.stop(grace=5)
    await first.close()
    await second.close()


async def test_a_worker_with_an_older_epoch_gets_no_session(stage: Stage) -> None:
    async with running(stage, epoch=5) as (guest, _, spec):
        process = guest_of(spec)
        await guest.detach()
        stale, notes = stage.host(), Notes()
        assert await stale.adopt(msgspec.structs.replace(spec, epoch=4), notes, hibernated=False) is None
        assert notes.requests == []
        assert is_alive(process)
        await stale.close()


async def test_what_was_told_while_the_link_was_down_is_told_once(stage: Stage) -> None:
    async with running(stage) as (guest, notes, spec):
        for number in range(1, 6):
            link = guest._link
            assert link is not None
            assert link.transport is not None
            guest.tell(begin(number, "count x"))
            link.transport.abort()
            guest.tell(begin(number, "count twice"))
            await notes.until(Returned, number)
            async with asyncio.timeout(10):
                await guest.connected.wait()
        assert (stage.workspace(spec) / "handlers").read_text() == "1\n2\n3\n4\n5\n"
