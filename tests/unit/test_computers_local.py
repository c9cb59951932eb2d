from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure.computers.base import ComputerSpec, Placement
from perdure.computers.identity import ProcessIdentity, identify, is_alive, send_signal
from perdure.computers.limits import MEMORY, Limits, limit_self
from perdure.computers.local import LocalBackend, LocalComputer
from perdure.computers.memory import page_out
from perdure.computers.meta import GuestMeta, write_meta
from perdure.computers.selftest import host_abilities
from perdure.errors import NotSupported, ProcessStartFailed, WorkspacePathRefused
from perdure.records.ids import new_id

MIB = 1 << 20
SPEC = ComputerSpec(Limits(cpu=1, memory=256 * MIB, open_files=64, file_size=MIB), {"GREETING": "hello"})


class Cold:
    """Starts guests as plain child processes."""

    def __init__(self, *argv: str) -> None:
        self.argv = argv
        self.processes: list[subprocess.Popen[bytes]] = []

    async def __call__(self, placement: Placement) -> ProcessIdentity:
        process = subprocess.Popen(
            self.argv, cwd=placement.workspace, env=dict(placement.environment), start_new_session=True
        )
        self.processes.append(process)
        identity = identify(process.pid)
        assert identity is not None
        write_meta(placement.run, GuestMeta(identity, "run", 1))
        return identity

    def reap(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


COUNTER = """
import os, time
if os.fork():
    time.sleep(600)
n = 0
while True:
    n += 1
    open("n", "w").write(f"{n:9}")
    time.sleep(0.001)
"""
SPIN = """
import os, time
end = time.monotonic() + 1
os.fork()
while time.monotonic() < end:
    pass
print(time.process_time())
"""


@pytest.fixture
def backend(tmp_path: Path) -> LocalBackend:
    return LocalBackend(tmp_path / "computers")


@pytest.fixture
async def computer(backend: LocalBackend) -> AsyncIterator[LocalComputer]:
    computer = await backend.open(new_id(), SPEC)
    yield computer
    await computer.stop(grace=0)


@pytest.fixture
async def sleeping(computer: LocalComputer) -> AsyncIterator[ProcessIdentity]:
    launcher = Cold("/bin/sleep", "600")
    yield await computer.start(launcher)
    launcher.reap()


async def test_capabilities_are_what_was_tried_out(backend: LocalBackend) -> None:
    seen = await backend.capabilities()
    assert seen.backend == "local"
    assert seen.isolation.startswith("none")
    assert "while" in seen.keeps or "for as long as" in seen.keeps
    assert set(seen.limits) == {"cpu", "memory", "open_files", "file_size", "disk"}
    assert not seen.saves
    if not host_abilities().swap:
        assert "no swap" in seen.keeps


async def test_a_new_computer_is_cold_and_has_its_folders(computer: LocalComputer) -> None:
    assert computer.residency == "cold"
    assert computer.guest is None
    assert computer.workspace.is_dir()
    assert computer.run.stat().st_mode & 0o777 == 0o700


async def test_exec_runs_in_the_workspace_with_the_template_s_environment(computer: LocalComputer, monkeypatch) -> None:
    monkeypatch.setenv("SERVER_SECRET", "s3cret")
    result = await computer.exec(["sh", "-c", "pwd; env; cat; echo bad >&2; exit 3"], stdin=b"in")
    lines = result.stdout.decode().splitlines()
    assert lines[0] == str(computer.workspace)
    assert {"GREETING=hello", f"PERDURE_WORKSPACE={computer.workspace}", f"HOME={computer.workspace}"} <= set(lines)
    assert lines[-1] == "in"
    assert "SERVER_SECRET" not in result.stdout.decode()
    assert (result.exit_code, result.stderr, result.timed_out, result.truncated) == (3, b"bad\n", False, False)


async def test_exec_keeps_the_first_bytes_of_a_flood(computer: LocalComputer) -> None:
    result = await computer.exec(["sh", "-c", "head -c 3000000 /dev/zero; echo end"], output_limit=1000)
    assert result.stdout == b"\0" * 1000
    assert result.truncated
    assert result.exit_code == 0


async def test_exec_ends_a_program_and_its_children_at_the_timeout(computer: LocalComputer) -> None:
    result = await computer.exec(["sh", "-c", "setsid sleep 600 & echo $!; wait"], timeout=0.3)
    assert result.timed_out
    assert result.exit_code is None
    child = identify(int(result.stdout))
    assert child is None


async def test_exec_cancelled_leaves_nothing_running(computer: LocalComputer) -> None:
    task = asyncio.create_task(computer.exec(["sh", "-c", "echo $$ > pid; exec sleep 600"]))
    pid = int(await _content(computer.workspace / "pid"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert identify(pid) is None


async def _content(path: Path, differs_from: str = "") -> str:
    """Wait for a file that another process writes."""
    async with asyncio.timeout(10):
        while not path.exists() or (text := path.read_text()) in ("", differs_from):
            await asyncio.sleep(0.001)
    return text


async def test_a_background_program_stays_until_the_computer_stops(computer: LocalComputer) -> None:
    result = await computer.exec(["sh", "-c", "setsid sleep 600 & echo $!"])
    assert result.exit_code == 0
    background = identify(int(result.stdout))
    assert background is not None
    await computer.stop(grace=1)
    assert not is_alive(background)


async def test_exec_reports_signals_and_missing_programs(computer: LocalComputer) -> None:
    assert (await computer.exec(["sh", "-c", "kill -9 $$"])).exit_code == -9
    assert (await computer.exec(["no-such-program"])).exit_code == 127
    with pytest.raises(WorkspacePathRefused):
        await computer.exec(["pwd"], cwd="..")


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("bytearray(512 << 20)", "MemoryError"),
        ("import os; [os.dup(0) for _ in range(100)]", "Too many open files"),
        ("open('big', 'wb').write(bytes(2 << 20))", "File too large"),
    ],
)
async def test_limits_hold(computer: LocalComputer, program: str, error: str) -> None:
    result = await computer.exec([sys.executable, "-I", "-S", "-c", program])
    assert error in result.stderr.decode()


async def test_two_busy_processes_share_the_cpu_of_one_computer(backend: LocalBackend) -> None:
    if host_abilities().cpu != "quota":
        pytest.skip("this host lets us set no CPU quota")
    computer = await backend.open(new_id(), ComputerSpec(Limits(cpu=0.2)))
    result = await computer.exec([sys.executable, "-I", "-S", "-c", SPIN])
    used = sum(float(line) for line in result.stdout.split())
    assert 0.05 < used < 0.5
    await computer.stop()
    assert not list(Path("/sys/fs/cgroup").glob(f"*/perdure-{computer.id}"))


def test_cores_stand_in_for_a_quota() -> None:
    ours = os.sched_getaffinity(0)
    assert Limits(cpu=None).cores("x") == ours
    assert len(Limits(cpu=0.5).cores("x")) == 1
    assert Limits(cpu=100).cores("x") == ours
    assert len({frozenset(Limits(cpu=1).cores(f"c{n}")) for n in range(20)}) == len(ours)


def test_limits_are_set_on_the_calling_process() -> None:
    pid = os.fork()
    if pid == 0:
        limit_self({MEMORY: 99 * MIB}, {min(os.sched_getaffinity(0))})
        held = resource.getrlimit(MEMORY) == (99 * MIB, 99 * MIB) and len(os.sched_getaffinity(0)) == 1
        os._exit(0 if held else 1)
    assert os.waitpid(pid, 0)[1] == 0


async def test_a_guest_is_found_again_by_its_meta(computer: LocalComputer, sleeping, tmp_path: Path) -> None:
    assert computer.residency == "running"
    later = await LocalBackend(tmp_path / "computers").open(computer.id, SPEC)
    assert later.guest == sleeping
    await later.hibernate()
    assert computer.residency == "hibernated"


async def test_a_meta_of_another_boot_or_process_is_nobody(computer: LocalComputer, sleeping, tmp_path: Path) -> None:
    write_meta(computer.run, GuestMeta(ProcessIdentity(sleeping.pid, sleeping.start, "another"), "run", 1))
    later = await LocalBackend(tmp_path / "computers").open(computer.id, SPEC)
    assert later.guest is None
    assert later.residency == "cold"
    stranger = subprocess.Popen(["sleep", "600"])
    identity = identify(stranger.pid)
    assert identity is not None
    write_meta(computer.run, GuestMeta(ProcessIdentity(stranger.pid, identity.start - 1, identity.boot_id), "run", 1))
    await (await LocalBackend(tmp_path / "computers").open(computer.id, SPEC)).stop(grace=0)
    assert is_alive(identity)
    send_signal(identity, 9)
    stranger.wait()


async def test_hibernation_stops_a_counting_child_and_resuming_lets_it_count_on(computer: LocalComputer) -> None:
    launcher = Cold(sys.executable, "-S", "-c", COUNTER)
    await computer.start(launcher)
    path = computer.workspace / "n"
    await _content(path)
    released = await computer.hibernate()
    assert computer.residency == "hibernated"
    assert released.before > MIB
    if not host_abilities().swap:
        assert "no free swap" in released.note
    counted = path.read_text()
    with pytest.raises(NotSupported, match="hibernated"):
        await computer.exec(["true"])
    os.sched_yield()
    time.sleep(0.02)
    assert path.read_text() == counted
    await computer.resume()
    assert computer.residency == "running"
    assert int(await _content(path, differs_from=counted)) > int(counted or 0)
    await computer.stop()
    launcher.reap()
    assert computer.residency == "cold"


def test_paging_out_reports_what_a_host_with_swap_would_be_asked(monkeypatch) -> None:
    monkeypatch.setattr("perdure.computers.memory.has_swap", lambda: True)
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        identity = identify(process.pid)
        assert identity is not None
        released = page_out([identity])
        assert released.note == ""
        assert released.before > 0
        assert process.communicate(b"\n")[0] is None
    assert process.returncode == 0


async def test_saves_are_refused_with_what_to_do(computer: LocalComputer) -> None:
    with pytest.raises(NotSupported, match="workspace folder is the disk"):
        await computer.save()
    with pytest.raises(NotSupported, match="workspace folder is the disk"):
        await computer.restore("s1")


async def test_delete_stops_and_removes(backend: LocalBackend, tmp_path: Path) -> None:
    computer = await backend.open(new_id(), SPEC)
    result = await computer.exec(["sh", "-c", "setsid sleep 600 & echo $!"])
    await backend.delete(computer.id)
    await backend.delete(computer.id)
    assert identify(int(result.stdout)) is None
    assert not (tmp_path / "computers" / computer.id).exists()


async def test_a_failing_launcher_leaves_the_computer_cold(computer: LocalComputer) -> None:
    async def refuse(placement: Placement) -> ProcessIdentity:
        raise ProcessStartFailed("no")

    with pytest.raises(ProcessStartFailed):
        await computer.start(refuse)
    assert computer.residency == "cold"
