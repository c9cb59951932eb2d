"""The machine is started again: no process is left, and their numbers belong to others."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from dev_parts import Dev, end_processes, ended, until

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
