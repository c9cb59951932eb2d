from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from process_host_parts import Notes, Stage, begin, running

from perdure.computers.exits import wait_exit
from perdure.computers.identity import ProcessIdentity, identify, is_alive, read_stat, send_signal
from perdure.computers.meta import GuestMeta, write_meta
from perdure.computers.selftest import host_abilities
from perdure.errors import NotSupported, OutputBudgetExceeded, ProcessStartFailed, ProjectImportError
from perdure.hosts.process.remote import RemoteGuest
from perdure.hosts.process.sockets import dial_path
from perdure.hosts.process.wire import VERSION, Hello, encode
from perdure.hosts.protocol import Output, Raised, Ready, Returned


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setenv("SERVER_SECRET", "s3cret")
    monkeypatch.setenv("PASSED", "along")
    stage = Stage(tmp_path)
    yield stage
    stage.end_everything()


def result(returned: Returned) -> Any:
    return json.loads(returned.result_json)


def process_of(guest: RemoteGuest) -> ProcessIdentity:
    process = guest.computer.guest
    assert process is not None
    return process


async def ask(guest: RemoteGuest, notes: Notes, number: int, text: str) -> Any:
    """Run a turn and return its result."""
    done = len(notes.of(Returned)) + 1
    guest.tell(begin(number, text))
    return result(await notes.until(Returned, done))


async def changed(path: Path, than: str) -> str:
    async with asyncio.timeout(10):
        while (text := path.read_text()) in (than, ""):
            await asyncio.sleep(0.001)
    return text


# --- a session's life


async def test_a_session_keeps_its_state_from_turn_to_turn(stage: Stage) -> None:
    async with running(stage) as (guest, notes, spec):
        assert notes.requests[0] == Ready(spec.run_id)
        assert await ask(guest, notes, 1, "count one") == 1
        assert await ask(guest, notes, 2, "count two") == 2
        assert [output.op for output in notes.of(Output)] == [1, 1]
        assert (stage.workspace(spec) / "inits").read_text() == "x"


async def test_a_handler_finds_itself_in_the_workspace_with_a_clean_environment(stage: Stage) -> None:
    async with running(stage) as (guest, notes, spec):
        seen = await ask(guest, notes, 1, "describe")
    workspace = str(stage.workspace(spec))
    environ = seen["environ"]
    assert seen["cwd"] == workspace
    assert environ["PERDURE_WORKSPACE"] == environ["HOME"] == workspace
    assert environ["COLOUR"] == "blue"
    assert environ["PASSED"] == "along"
    assert "SERVER_SECRET" not in environ
    # Python itself sets LC_CTYPE where the locale is C.
    allowed = {"PATH", "LANG", "LC_CTYPE", "HOME", "COLOUR", "PASSED", "PERDURE_WORKSPACE", "PERDURE_COMPUTER_ID"}
    assert {name for name in environ if not name.startswith("PYTHON")} <= allowed
    assert seen["sid"] == seen["pid"]
    assert seen["stdin"] == "/dev/null"
    assert seen["stdout"] == spec.log_path
    # Its event loop's own descriptors, its run folder, the link: nothing of the fork server's, which listens.
    assert len([fd for fd in seen["fds"] if fd.startswith("socket:")]) == 3


async def test_sessions_do_not_share_their_randomness(stage: Stage) -> None:
    async with running(stage) as (one, notes, _), running(stage) as (two, other_notes, _):
        drawn = await ask(one, notes, 1, "describe"), await ask(two, other_notes, 1, "describe")
    for mine, theirs in zip(drawn[0]["random"], drawn[1]["random"], strict=True):
        assert mine != theirs


async def test_stdout_stderr_logging_and_tracebacks_go_to_the_log_of_the_run(stage: Stage) -> None:
    async with running(stage) as (guest, notes, spec), running(stage) as (_, _, other):
        guest.tell(begin(1, "blow"))
        await notes.until(Raised)
        text = Path(spec.log_path).read_text()
    assert "init on stdout\ninit on stderr\n" in text
    assert "INFO project: init in a log" in text
    assert "ValueError: on purpose" in text
    assert "on purpose" not in Path(other.log_path).read_text()


async def test_a_folder_deeper_than_a_socket_s_address_may_be_long(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    stage = Stage(deep)
    async with running(stage) as (guest, notes, _):
        assert await ask(guest, notes, 1, "count x") == 1
    stage.end_everything()


async def test_errors_of_the_driver_reach_the_handler_as_what_they_are(stage: Stage) -> None:
    def answer(request: Any) -> int:
        if isinstance(request, Output):
            raise OutputBudgetExceeded(10, 5)
        return 1

    async with running(stage) as (guest, notes, _):
        notes.answer = answer
        kind, code, message, details = await ask(guest, notes, 1, "write")
    assert (kind, code, details) == ("OutputBudgetExceeded", "content_limit_exceeded", {"size": 10, "limit": 5})
    assert "would reach 10 bytes" in message


async def test_a_bug_in_the_driver_is_an_error_and_not_a_silence(stage: Stage, caplog) -> None:
    async with running(stage) as (guest, notes, _):
        notes.answer = lambda request: 1 / 0 if isinstance(request, Output) else 1
        kind, code, _message, _details = await ask(guest, notes, 1, "write")
    assert (kind, code) == ("PerdureError", "internal_error")
    assert "ZeroDivisionError" in caplog.text


# --- how it ends


@pytest.mark.parametrize(
    ("text", "reason"), [("leave 3", "exited with code 3"), ("exit 4", "exited with code 4"), ("leave 0", "code 0")]
)
async def test_a_process_that_ends_itself_is_lost(stage: Stage, text: str, reason: str) -> None:
    async with running(stage) as (guest, notes, _):
        guest.tell(begin(1, text))
        assert reason in await notes.until_lost()
        assert guest.computer.residency == "cold"
    assert len(notes.reasons) == 1


async def test_a_killed_process_is_lost_with_its_children(stage: Stage) -> None:
    async with running(stage) as (guest, notes, _):
        family = [identify(pid) for pid in await ask(guest, notes, 1, "family")]
        assert all(family)
        send_signal(process_of(guest), signal.SIGKILL)
        assert "SIGKILL" in await notes.until_lost()
        assert not any(is_alive(member) for member in family if member)


async def test_what_a_process_said_before_its_end_counts(stage: Stage) -> None:
    async with running(stage) as (guest, notes, _):
        guest.tell(begin(1, "last_words"))
        await notes.until_lost()
        assert [result(returned) for returned in notes.of(Returned)] == ["said"]


async def test_stop_ends_all_processes_and_reports_no_loss(stage: Stage) -> None:
    async with running(stage) as (guest, notes, _):
        process = process_of(guest)
        family = [identify(pid) for pid in await ask(guest, notes, 1, "family")]
        await guest.stop(grace=5)
        assert not is_alive(process)
        assert not any(is_alive(member) for member in family if member)
        assert guest.computer.residency == "cold"
    assert notes.reasons == []


async def test_a_signal_to_a_forked_child_is_not_one_to_its_parent(stage: Stage) -> None:
    async with running(stage) as (guest, notes, _):
        *_, pid = await ask(guest, notes, 1, "family")
        daemon = identify(pid)
        assert daemon is not None
        send_signal(daemon, signal.SIGTERM)
        async with asyncio.timeout(10):
            await wait_exit(daemon)
        assert await ask(guest, notes, 2, "count x") == 2
        assert notes.reasons == []


async def test_a_process_that_blocks_is_killed_after_its_grace(stage: Stage) -> None:
    async with running(stage) as (guest, _notes, spec):
        process = process_of(guest)
        guest.tell(begin(1, "block 600"))
        await appears(stage.workspace(spec) / "blocking")
        await guest.stop(grace=0.05)
        assert not is_alive(process)


async def appears(path: Path) -> None:
    async with asyncio.timeout(10):
        while not path.exists():
            await asyncio.sleep(0.001)


async def test_the_memory_limit_is_a_memory_error_in_the_handler(stage: Stage) -> None:
    async with running(stage) as (guest, notes, _):
        guest.tell(begin(1, "hog"))
        raised = await notes.until(Raised)
        assert b"MemoryError" in raised.error_json
        assert await ask(guest, notes, 2, "count x") == 2


async def test_the_cpu_limit_holds_the_process_and_its_children(stage: Stage) -> None:
    if host_abilities().cpu != "quota":
        pytest.skip("this host lets us set no CPU quota")
    async with running(stage) as (guest, notes, spec):
        await ask(guest, notes, 1, "family")
        groups = host_abilities().groups
        assert groups is not None
        group = groups.parent / f"perdure-{spec.computer_id}"
        async with asyncio.timeout(10):
            while process_of(guest).pid not in map(int, (await read(group / "cgroup.procs")).split()):
                await asyncio.sleep(0.002)
        quota = "cpu.max" if groups.version == 2 else "cpu.cfs_quota_us"
        assert (await read(group / quota)).split()[0] == "100000"
    assert not group.exists()


async def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


# --- starting


async def test_a_project_that_does_not_import_says_where_and_may_be_mended(tmp_path: Path, stage: Stage) -> None:
    broken = tmp_path / "broken"
    (broken / "agents").mkdir(parents=True)
    (broken / "agents" / "a.py").write_text("import perdure\n\nnonsense()\n")
    host = stage.host()
    with pytest.raises(ProjectImportError, match=r"agents/a\.py, line 3: NameError"):
        await host.start(stage.spec(source=str(broken)), Notes())
    (broken / "agents" / "a.py").write_text((stage.project / "agents" / "worker.py").read_text())
    guest = await host.start(stage.spec(source=str(broken)), Notes())
    await guest.stop(grace=0)
    await host.close()


async def test_a_log_that_cannot_be_opened_fails_the_start(stage: Stage) -> None:
    host, spec = stage.host(), stage.spec(log_path=str(stage.root / "missing" / "log"))
    notes = Notes()
    with pytest.raises(ProcessStartFailed, match="exited with code 1"):
        await host.start(spec, notes)
    assert notes.reasons == []
    assert "FileNotFoundError" in next((stage.root / "servers").glob("*.log")).read_text()
    await host.close()


async def test_an_unknown_agent_fails_the_start(stage: Stage) -> None:
    assert stage.definition is not None
    host = stage.host()
    with pytest.raises(ProcessStartFailed, match="no agent 'other'"):
        await host.start(stage.spec(agent=msgspec.structs.replace(stage.definition, id="other")), Notes())
    await host.close()


async def test_many_sessions_start_at_once_from_one_fork_server(stage: Stage) -> None:
    host = stage.host()
    drivers = [Notes() for _ in range(12)]
    guests = await asyncio.gather(*(host.start(stage.spec(), notes) for notes in drivers))
    for guest, notes in zip(guests, drivers, strict=True):
        await notes.until(Ready)
        assert await ask(guest, notes, 1, "count x") == 1
    assert len({process_of(guest).pid for guest in guests}) == 12
    assert len(stage.servers()) == 1
    await asyncio.gather(*(guest.stop(grace=5) for guest in guests))
    await host.close()


async def test_a_new_run_ends_what_the_one_before_it_has_left(stage: Stage) -> None:
    async with running(stage) as (guest, notes, spec):
        family = [identify(pid) for pid in await ask(guest, notes, 1, "family")]
        await guest.detach()
        send_signal(process_of(guest), signal.SIGKILL)
        host, later = stage.host(), Notes()
        again = await host.start(msgspec.structs.replace(spec, run_id="run-2", number=2), later)
        await later.until(Ready)
        assert not any(is_alive(member) for member in family if member)
        await again.stop(grace=0)
        await host.close()


async def test_a_warmed_server_serves_the_first_session(stage: Stage) -> None:
    assert stage.definition is not None
    host = stage.host()
    await host.warm(stage.definition, "deployment-1", str(stage.project))
    (server,) = stage.servers()
    notes = Notes()
    guest = await host.start(stage.spec(), notes)
    stat = read_stat(process_of(guest).pid)
    assert stat is not None
    assert stat.parent == server
    await guest.stop(grace=0)
    await host.close()


# --- hibernation


async def test_a_hibernated_session_goes_on_where_it_was(stage: Stage) -> None:
    async with running(stage) as (guest, notes, spec):
        await ask(guest, notes, 1, "family")
        counted = stage.workspace(spec) / "counted"
        await changed(counted, "")
        assert "stopped" in await guest.hibernate()
        assert guest.computer.residency == "hibernated"
        assert not guest.connected.is_set()
        before = counted.read_text()
        guest.tell(begin(2, "count x"))
        assert "went on" in await guest.resume()
        assert guest.computer.residency == "running"
        assert result(await notes.until(Returned, 2)) == 2
        assert int(await changed(counted, before)) > int(before or 0)
        assert (stage.workspace(spec) / "inits").read_text() == "x"


async def test_a_process_killed_in_its_sleep_is_lost(stage: Stage) -> None:
    async with running(stage) as (guest, notes, _):
        await guest.hibernate()
        send_signal(process_of(guest), signal.SIGKILL)
        assert "SIGKILL" in await notes.until_lost()


async def test_a_hibernated_session_can_be_stopped(stage: Stage) -> None:
    async with running(stage) as (guest, notes, _):
        process = process_of(guest)
        await guest.hibernate()
        await guest.stop(grace=5)
        assert not is_alive(process)
    assert notes.reasons == []


async def test_a_blocked_handler_does_not_keep_its_computer_awake(stage: Stage, monkeypatch) -> None:
    monkeypatch.setattr("perdure.hosts.process.remote.QUIET_TIMEOUT", 0.05)
    async with running(stage) as (guest, notes, spec):
        guest.tell(begin(1, "block 0.3"))
        await appears(stage.workspace(spec) / "blocking")
        await guest.hibernate()
        assert guest.computer.residency == "hibernated"
        await guest.resume()
        assert result(await notes.until(Returned)) == "unblocked"


async def test_a_session_that_cannot_be_hibernated_goes_on(stage: Stage, monkeypatch) -> None:
    async with running(stage) as (guest, notes, _):
        with monkeypatch.context() as patience:
            patience.setattr("perdure.computers.tree._PATIENCE", 0.0)
            with pytest.raises(NotSupported, match="could not be hibernated"):
                await guest.hibernate()
        assert guest.computer.residency == "running"
        assert await ask(guest, notes, 1, "count x") == 1


async def test_what_is_not_to_be_adopted_can_be_ended(stage: Stage) -> None:
    async with running(stage) as (guest, _, spec):
        process = process_of(guest)
        await guest.detach()
        host = stage.host()
        await host.end(spec, grace=5)
        assert not is_alive(process)
        await host.close()


# --- identities


@pytest.mark.parametrize("wrong", ["start", "boot"])
async def test_a_process_that_is_not_the_one_remembered_is_not_touched(stage: Stage, wrong: str) -> None:
    stranger = await asyncio.create_subprocess_exec("sleep", "600")
    identity = identify(stranger.pid)
    assert identity is not None
    fake = {"start": {"start": identity.start - 1}, "boot": {"boot_id": "another"}}[wrong]
    spec = stage.spec()
    run = Path(str(spec.computer_path)) / "run"
    run.mkdir(parents=True)
    write_meta(run, GuestMeta(msgspec.structs.replace(identity, **fake), spec.run_id, 1))
    host, notes = stage.host(), Notes()
    assert await host.adopt(spec, notes, hibernated=False) is None
    assert is_alive(identity)
    guest = await host.start(spec, notes)
    assert is_alive(identity)
    await guest.stop(grace=0)
    await host.close()
    stranger.kill()
    await stranger.wait()


async def test_another_process_cannot_take_the_guest_s_place(stage: Stage) -> None:
    async with running(stage) as (guest, notes, spec):
        with dial_path(guest.computer.run, "host.sock") as path:
            reader, writer = await asyncio.open_unix_connection(path)
        writer.write(encode(Hello(VERSION, spec.run_id, 1)))
        assert b"another process" in await reader.read()
        writer.close()
        await writer.wait_closed()
        assert await ask(guest, notes, 1, "count x") == 1


async def test_a_process_of_an_older_run_that_dials_is_told_to_end(stage: Stage) -> None:
    async with running(stage) as (guest, _notes, spec):
        process = process_of(guest)
        await guest.detach()
        later = RemoteGuest(msgspec.structs.replace(spec, run_id="later"), Notes(), guest.computer, _unknown, id)
        later.watch(process)
        later.listen()
        async with asyncio.timeout(10):
            await wait_exit(process)
        assert "its worker refused it: run later" in Path(spec.log_path).read_text()
        await later.stop(grace=0)


async def _unknown() -> str:
    return "not known"
