"""T2: the tutorial, from `perdure init` on, with short times."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from dev_parts import Dev, answer_text, ended, is_so, log_of, running, types_of, until

from perdure.authoring.scaffold import init_project


@pytest.fixture
def tutorial(tmp_path: Path) -> Iterator[Dev]:
    """A server on the project that `perdure init` writes, whose Computers hibernate soon."""
    init_project(tmp_path / "project")
    agent = tmp_path / "project" / "agents" / "assistant.py"
    written = agent.read_text()
    assert 'hibernate_after_idle="5m"' in written
    agent.write_text(written.replace('hibernate_after_idle="5m"', 'hibernate_after_idle="300ms"'))
    with running(tmp_path / "project", tmp_path / "server", "--no-reload") as dev:
        yield dev


async def test_the_counter_goes_on_over_a_hibernation(tutorial: Dev) -> None:
    async with tutorial.client() as client:
        receipt = await client.agents["assistant"].create_session(text="first", key="user:ada")
        session = client.session(receipt.session_id)
        first = await ended(session, receipt)
        assert answer_text(first) == "Turn 1 in this process. Log entries: 1."
        second = await ended(session, await session.enqueue(text="second"))
        assert answer_text(second) == "Turn 2 in this process. Log entries: 2."
        hibernated = await until(session, "session.hibernated")
        seen = await session.get()
        assert seen.computer is not None
        assert seen.computer.residency == "hibernated"
        assert "stopped" in hibernated.data["note"]
        third = await ended(session, await session.enqueue(text="third"))
        assert answer_text(third) == "Turn 3 in this process. Log entries: 3."
        assert third.result == {"turns_in_process": 3, "log_entries": 3, "started_as": "initial"}
        assert first.run_id == third.run_id
        types = await types_of(session)
        assert types.index("session.hibernated") < types.index("session.awakened")
        assert types.count("session.process_started") == 1


async def test_text_that_is_empty_fails_its_turn_and_nothing_else(tutorial: Dev) -> None:
    async with tutorial.client() as client:
        receipt = await client.agents["assistant"].create_session(text="first")
        session = client.session(receipt.session_id)
        for text in ("", " \n "):
            failed = await ended(session, await session.enqueue(text=text))
            assert failed.status == "failed"
            assert failed.error is not None
            assert (failed.error.code, failed.error.type) == ("handler_failed", "ValueError")
            assert failed.error.message == "Send some text"
            assert failed.response is None
        seen = await session.get()
        assert (seen.status, seen.holds) == ("open", [])
        # The same process goes on counting where it was, and the failed turns have not counted.
        last = await ended(session, await session.enqueue(text="last"))
        assert last.result == {"turns_in_process": 2, "log_entries": 2, "started_as": "initial"}


async def test_a_process_that_is_killed_in_mid_turn(dev: Dev, gate: Path) -> None:
    async with dev.client() as client:
        receipt = await client.agents["process"].create_session(text="pid")
        session = client.session(receipt.session_id)
        pid = (await ended(session, receipt)).result
        running_turn = await session.enqueue(text=f"wait {gate}")
        queued = await session.enqueue(text="count")
        await until(session, "turn.output")
        os.kill(pid, signal.SIGKILL)
        lost = await ended(session, running_turn)
        assert (lost.status, lost.reason, lost.response) == ("interrupted", "process_lost", None)
        # What was queued goes on by itself in a new process, which knows that it is not the first.
        assert (await ended(session, queued)).result == {
            "turns": 1,
            "started_as": "reconstructed",
            "reason": "process_lost",
        }
        events = await log_of(session)
        told = next(event for event in events if event.type == "session.process_lost")
        assert told.data["losses"] == 1
        assert "signal 9" in told.data["reason"] or "SIGKILL" in told.data["reason"]
        assert gate.with_name("gate.ledger").read_text() == "started\n"
        assert (await session.get()).holds == []


async def test_a_killed_process_s_files_are_kept(tutorial: Dev) -> None:
    async with tutorial.client() as client:
        receipt = await client.agents["assistant"].create_session(text="first")
        session = client.session(receipt.session_id)
        await ended(session, receipt)
        os.kill(await tutorial.guest(session), signal.SIGKILL)
        await until(session, "session.process_lost")
        cold = await is_so(session, lambda seen: seen.run is None)
        assert cold.computer is not None
        assert cold.computer.residency == "cold"
        second = await ended(session, await session.enqueue(text="second"))
        assert second.result == {"turns_in_process": 1, "log_entries": 2, "started_as": "reconstructed"}


async def test_child_processes_go_on_after_a_hibernation(dev: Dev) -> None:
    async with dev.client() as client:
        receipt = await client.agents["sleeper"].create_session(text="child")
        session = client.session(receipt.session_id)
        await ended(session, receipt)
        await until(session, "session.hibernated")
        counted = [(await ended(session, await session.enqueue(text="counted"))).result]
        await until(session, "session.hibernated", count=2)
        counted.append((await ended(session, await session.enqueue(text="counted"))).result)
        assert 0 < counted[0] < counted[1]
        counting = (await ended(session, await session.enqueue(text="count"))).result
        assert counting == {"turns": 4, "started_as": "initial", "reason": None}
