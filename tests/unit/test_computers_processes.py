from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from perdure.computers.exits import wait_exit, wait_gone
from perdure.computers.identity import (
    ProcessIdentity,
    identify,
    is_alive,
    open_pidfd,
    own_identity,
    read_stat,
    send_signal,
)
from perdure.computers.meta import GuestMeta, read_meta, remove_meta, write_meta
from perdure.computers.tree import MARK, ProcessTree, TreeNotStopped


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL) as process:
        yield process
        process.kill()


def known(process: subprocess.Popen[bytes]) -> ProcessIdentity:
    identity = identify(process.pid)
    assert identity is not None
    return identity


def test_an_identity_is_of_one_process_of_one_boot(sleeper: subprocess.Popen[bytes]) -> None:
    identity = known(sleeper)
    assert is_alive(identity)
    assert not is_alive(msgspec.structs.replace(identity, start=identity.start + 1))
    assert not is_alive(msgspec.structs.replace(identity, boot_id="another"))
    assert own_identity().pid == os.getpid()


def test_a_name_with_spaces_and_parentheses_does_not_confuse_the_reading_of_stat(tmp_path) -> None:
    odd = tmp_path / "a) S 1 (b"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([str(odd), "600"]) as process:
        stat = read_stat(process.pid)
        process.kill()
    assert stat is not None
    assert stat.parent == os.getpid()


@pytest.mark.parametrize("wrong", [{"start": 1}, {"boot_id": "another"}])
def test_a_pid_whose_identity_does_not_match_is_never_signalled(sleeper: subprocess.Popen[bytes], wrong) -> None:
    stranger = msgspec.structs.replace(known(sleeper), **wrong)
    assert send_signal(stranger, signal.SIGKILL) is False
    assert open_pidfd(stranger) is None
    # A signal that had been sent would be pending or delivered by now: the stop that follows it shows that it was not.
    assert send_signal(known(sleeper), signal.SIGSTOP)
    _pid, status = os.waitpid(sleeper.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)


def test_a_zombie_is_dead() -> None:
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    stat = read_stat(process.pid)
    assert stat is not None
    assert stat.is_dead
    assert identify(process.pid) is None
    process.wait()


async def test_the_exit_of_a_process_that_is_no_child_is_noticed() -> None:
    parent = subprocess.Popen(
        ["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    with parent:
        assert parent.stdout is not None
        grandchild = identify(int(parent.stdout.readline()))
        assert grandchild is not None
        watch = asyncio.create_task(wait_exit(grandchild))
        assert await wait_gone([grandchild], 0.01) is False
        send_signal(grandchild, signal.SIGKILL)
        async with asyncio.timeout(5):
            await watch
        assert not is_alive(grandchild)


def test_meta_is_replaced_as_a_whole_and_read_again(tmp_path) -> None:
    assert read_meta(tmp_path) is None
    meta = GuestMeta(own_identity(), run_id="run", epoch=3)
    write_meta(tmp_path, msgspec.structs.replace(meta, epoch=2))
    write_meta(tmp_path, meta)
    assert read_meta(tmp_path) == meta
    assert [path.name for path in tmp_path.iterdir()] == ["meta.json"]
    remove_meta(tmp_path)
    assert read_meta(tmp_path) is None


FAMILY = """
import os, subprocess, sys, time
pids = []
child = subprocess.Popen(["sleep", "600"]); pids.append(child.pid)
alone = subprocess.Popen(["sleep", "600"], start_new_session=True); pids.append(alone.pid)
down, up = os.pipe()
middle = os.fork()
if middle == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(up, b"%d" % os.getpid())
        time.sleep(600)
    os._exit(0)
os.waitpid(middle, 0)
pids.append(int(os.read(down, 20)))
print(*pids, flush=True)
time.sleep(600)
"""


@pytest.fixture
def family() -> Iterator[tuple[ProcessTree, list[ProcessIdentity]]]:
    """A parent with a child, a child in its own session and a daemon that was forked twice."""
    computer_id = f"test-{os.getpid()}"
    tree = ProcessTree(computer_id)
    environment = {**os.environ, MARK: computer_id}
    with subprocess.Popen(
        [sys.executable, "-S", "-c", FAMILY],
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        root = identify(parent.pid)
        assert root is not None
        tree.add_root(root)
        rest = [identify(int(pid)) for pid in parent.stdout.readline().split()]
        everyone = [root, *(identity for identity in rest if identity)]
        assert len(everyone) == 4
        yield tree, everyone
        for identity in everyone:
            send_signal(identity, signal.SIGKILL)


def test_the_tree_holds_children_sessions_and_daemons(family) -> None:
    tree, everyone = family
    assert {member.pid for member in tree.members()} == {identity.pid for identity in everyone}
    assert tree.members()[0] == everyone[0]


async def test_orphans_of_a_dead_root_are_still_found(family) -> None:
    tree, (root, *rest) = family
    send_signal(root, signal.SIGKILL)
    await wait_exit(root)
    assert set(tree.members()) == set(rest)


async def test_freezing_stops_all_and_thawing_lets_all_go_on(family) -> None:
    tree, everyone = family
    assert set(await tree.freeze()) == set(everyone)
    stats = [read_stat(identity.pid) for identity in everyone]
    assert all(stat and stat.is_stopped for stat in stats)
    await tree.thaw()
    stats = [read_stat(identity.pid) for identity in everyone]
    assert not any(stat and stat.is_stopped for stat in stats)


@pytest.mark.parametrize("frozen", [False, True])
async def test_ending_a_tree_leaves_nobody(family, frozen: bool) -> None:
    tree, everyone = family
    if frozen:
        await tree.freeze()
    await tree.end(grace=5)
    assert not any(is_alive(identity) for identity in everyone)
    assert tree.members() == []


async def test_a_process_that_ignores_sigterm_is_killed_after_its_grace() -> None:
    program = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-S", "-c", program], stdout=subprocess.PIPE, start_new_session=True
    ) as stubborn:
        assert stubborn.stdout is not None
        stubborn.stdout.readline()
        tree = ProcessTree("stubborn")
        tree.add_root(known(stubborn))
        await tree.end(grace=0.05)
        assert stubborn.wait() == -signal.SIGKILL


FORKING = """
import os, time
print(1, flush=True)
while True:
    if os.fork() == 0:
        time.sleep(0.02)
        os._exit(0)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]: pass
    except ChildProcessError: pass
"""


async def test_a_tree_that_keeps_forking_is_frozen_whole() -> None:
    with subprocess.Popen(
        [sys.executable, "-S", "-c", FORKING], stdout=subprocess.PIPE, start_new_session=True
    ) as busy:
        assert busy.stdout is not None
        busy.stdout.readline()
        tree = ProcessTree("forking")
        tree.add_root(known(busy))
        frozen = await tree.freeze()
        assert set(tree.members()) == set(frozen)
        stats = [read_stat(member.pid) for member in frozen]
        assert all(stat and stat.is_stopped for stat in stats)
        await tree.end(grace=0)
        assert tree.members() == []


async def test_a_tree_that_cannot_be_frozen_goes_on_and_says_so(monkeypatch, sleeper) -> None:
    monkeypatch.setattr("perdure.computers.tree._PATIENCE", 0.0)
    tree = ProcessTree("late")
    tree.add_root(known(sleeper))
    with pytest.raises(TreeNotStopped, match=str(sleeper.pid)):
        await tree.freeze()
    stat = read_stat(sleeper.pid)
    assert stat is not None
    assert not stat.is_stopped
