"""What user code prints, by whatever way, is in the log of its run, and nowhere else."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from dev_parts import Dev, copy_project, ended, prepared, until

from perdure.client.aio import AsyncClient, AsyncSessionHandle

HOSTS = pytest.mark.parametrize("agent", ["inline", "bare", "process"])


async def shouted(client: AsyncClient, agent: str, *words: str) -> AsyncSessionHandle:
    receipt = await client.agents[agent].create_session()
    session = client.session(receipt.session_id)
    for word in words:
        assert (await ended(session, await session.enqueue(text=f"shout {word}"))).status == "completed"
    return session


async def log_of_run(session: AsyncSessionHandle, number: int = -1) -> str:
    run = (await session.runs()).runs[number]
    return (await session.logs(run.id)).data


@HOSTS
async def test_stdout_stderr_and_logging_are_in_the_log_of_their_run(
    shared: Dev, client: AsyncClient, agent: str
) -> None:
    one, other = await asyncio.gather(shouted(client, agent, "ant", "bee"), shouted(client, agent, "cat"))
    text = await log_of_run(one)
    for word in ("ant", "bee"):
        for way in ("on stdout", "on stderr", "in lines", "from a thread"):
            assert text.count(f"{word} {way}\n") == 1, way
        assert f" INFO stage: {word} in a log\n" in text
        assert f" ERROR stage: {word} went wrong\nTraceback (most recent call last):\n" in text
        assert f"ValueError: {word}\n" in text
    assert text.index("ant on stdout") < text.index("ant in a log") < text.index("bee on stdout")
    assert "cat" not in text
    assert "ant" not in await log_of_run(other)
    assert shared.noise == []
    assert shared.cli("session", "logs", one.id) == text
    assert "ant" not in shared.errors.read_text()


@HOSTS
async def test_what_fails_leaves_its_traceback_in_the_log(client: AsyncClient, agent: str) -> None:
    receipt = await client.agents[agent].create_session(text="fail value")
    session = client.session(receipt.session_id)
    await ended(session, receipt)
    text = await log_of_run(session)
    assert "Traceback (most recent call last)" in text
    assert "ValueError: on purpose" in text
    assert 'agents/stage.py", line' in text


async def test_each_run_has_a_log_of_its_own_and_it_is_read_in_pieces(client: AsyncClient) -> None:
    session = await shouted(client, "process", "ant")
    await ended(session, await session.enqueue(text="die"))
    await ended(session, await session.enqueue(text="shout bee"))
    first, second = (await session.runs()).runs
    assert "ant on stdout" in await log_of_run(session, 0)
    assert "ant" not in await log_of_run(session, 1)
    pieces, offset = [], 0
    while True:
        page = await session.logs(first.id, offset=offset, limit=50)
        pieces.append(page.data)
        offset = page.next_offset
        if page.eof:
            break
    assert "".join(pieces) == await log_of_run(session, 0)
    page = await session.logs(second.id)
    assert not page.eof


async def test_the_log_goes_on_over_a_restart_of_the_server(dev: Dev) -> None:
    async with dev.client() as client:
        session = await shouted(client, "process", "ant")
        dev.restart()
        await ended(session, await session.enqueue(text="shout bee"))
        text = await log_of_run(session)
        assert text.index("ant on stdout") < text.index("bee on stdout")


async def test_what_modules_print_when_they_are_imported_is_no_line_of_the_server_s(tmp_path: Path) -> None:
    """With --json each line of the server's stdout is one document, whatever user code does."""
    project = copy_project(tmp_path / "project")
    stage = project / "agents" / "stage.py"
    stage.write_text(f"import sys\nprint('imported')\nprint('also', file=sys.stderr)\n{stage.read_text()}".replace(
        "from __future__ import annotations\n", ""
    ))  # fmt: skip
    with prepared(project, tmp_path / "server") as dev:
        dev.start()
        async with dev.client() as client:
            for agent in ("inline", "process"):
                receipt = await client.agents[agent].create_session(text="count")
                session = client.session(receipt.session_id)
                await until(session, "turn.completed")
        assert dev.noise == []
        assert "imported" in dev.errors.read_text()


async def test_what_the_server_has_to_say_reaches_its_stderr(dev: Dev) -> None:
    """A disk that is full, a session that cannot be started: whoever runs the server must be able to see it."""
    async with dev.client() as client:
        receipt = await client.agents["process"].create_session(text="count")
        session = client.session(receipt.session_id)
        await ended(session, receipt)
        await session.close()
        await until(session, "session.process_stopped")
        (dev.data / "computers").rename(dev.data / "computers.away")
        (dev.data / "computers").write_text("in the way")
        receipt = await client.agents["process"].create_session(text="count")
        session = client.session(receipt.session_id)
        held = await until(session, "session.held")
        assert "could not be started" in held.data["message"]
        assert "Not a directory" in held.data["message"]
        assert f"session {session.id}: start_guest failed" in dev.errors.read_text()
        (dev.data / "computers").unlink()
        (dev.data / "computers.away").rename(dev.data / "computers")
        await session.resume(held.data["hold_id"])
        assert (await ended(session, receipt)).status == "completed"
