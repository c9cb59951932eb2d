"""What the page on durability says and no other test shows: reboots, and code that changes under a running turn."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from dev_parts import Dev, copy_project, end_processes, ended, until

from perdure.computers.identity import ProcessIdentity
from perdure.computers.meta import read_meta, write_meta


def reboot(dev: Dev, *, torn: bool) -> None:
    """Do to a data folder what a restart of the machine does: all processes are gone, and their numbers are others'.

    `torn`: the power failed, so that files which nobody flushed may be empty.
    """
    dev.kill()
    end_processes(dev.data)
    for run in dev.data.glob("computers/*/run"):
        meta = read_meta(run)
        assert meta is not None
        # Our own process has the number of the guest now.
        identity = ProcessIdentity(os.getpid(), meta.process.start, "another boot")
        write_meta(run, msgspec.structs.replace(meta, process=identity))
        if torn:
            (run / "meta.json").write_bytes(b"")


@pytest.mark.parametrize("torn", [False, True], ids=["clean", "torn"])
async def test_after_a_reboot_the_turn_is_interrupted_and_the_file_kept(dev: Dev, gate: Path, torn: bool) -> None:
    async with dev.client() as client:
        receipt = await client.agents["process"].create_session(text=f"wait {gate}")
        session = client.session(receipt.session_id)
        queued = await session.enqueue(text="count")
        await until(session, "turn.output")
        computer = (await session.get()).computer
        assert computer is not None
        kept = dev.data / "computers" / computer.id / "workspace" / "kept.txt"
        kept.write_text("before")
        reboot(dev, torn=torn)
        dev.start()
        lost = await ended(session, receipt)
        assert (lost.status, lost.reason) == ("interrupted", "process_lost")
        after = await ended(session, queued)
        assert after.result == {"turns": 1, "started_as": "reconstructed", "reason": "process_lost"}
        assert kept.read_text() == "before"


@pytest.mark.parametrize("agent", ["inline", "process"])
async def test_a_running_turn_finishes_on_the_old_code(dev: Dev, gate: Path, tmp_path: Path, agent: str) -> None:
    newer = copy_project(tmp_path / "newer")
    stage = newer / "agents" / "stage.py"
    stage.write_text(stage.read_text().replace("VERSION = 1", "VERSION = 2").replace('"went on"', '"went on anew"'))
    async with dev.client() as client:
        receipt = await client.agents[agent].create_session(text=f"wait {gate}")
        session = client.session(receipt.session_id)
        await until(session, "turn.output")
        await client.deploy(newer)
        queued = await session.enqueue(text="version")
        gate.touch()
        old = await ended(session, receipt)
        assert old.status == "completed"
        assert old.result == {"turns": 1, "started_as": "initial", "reason": None}
        said = [
            event.data["content"][0]["text"] async for event in session.iter_events() if event.type == "turn.output"
        ]
        assert said == ["waiting", "went on"]
        await ended(session, queued)
        last = await ended(session, await session.enqueue(text="version"))
        assert last.result == 2
        runs = (await session.runs()).runs
        assert [run.end_reason for run in runs] == ["code_changed", None]
