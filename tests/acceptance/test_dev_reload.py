"""`perdure dev` follows the source: sessions use new code from their next turn, and a broken edit breaks nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from dev_parts import Dev, copy_project, ended, is_so, log_of, running, texts, until

from perdure.client.aio import AsyncClient, AsyncSessionHandle
from perdure.errors import AgentNotFound

HOSTS = ("inline", "bare", "process")


class Edited(Dev):
    """A server that follows its source, which the test edits."""

    @property
    def file(self) -> Path:
        return self.project / "agents" / "stage.py"

    async def edit(self, before: str, after: str, expected: str = "reloaded") -> str:
        """Replace text of the source and return what the server says of it."""
        text = self.file.read_text()
        assert before in text
        self.file.write_text(text.replace(before, after))
        said = await asyncio.to_thread(self.hear, expected)
        return str(said.get("error"))

    async def make_version(self, number: int) -> None:
        await self.edit(f"VERSION = {number - 1}\n", f"VERSION = {number}\n")


@pytest.fixture
def edited(tmp_path: Path) -> Iterator[Edited]:
    project = copy_project(tmp_path / "project")
    (tmp_path / "server").mkdir()
    dev = Edited(project, tmp_path / "server" / "data")
    try:
        dev.start()
        yield dev
    finally:
        dev.end()


async def start(client: AsyncClient, agent: str, text: str) -> tuple[AsyncSessionHandle, str]:
    receipt = await client.agents[agent].create_session(text=text)
    return client.session(receipt.session_id), str(receipt.turn_id)


async def result(session: AsyncSessionHandle, text: str) -> object:
    return (await ended(session, await session.enqueue(text=text))).result


async def test_idle_sessions_use_new_code_from_their_next_turn(edited: Edited) -> None:
    async with edited.client() as client:
        sessions = []
        for agent in (*HOSTS, "sleeper"):
            session, turn = await start(client, agent, "version")
            assert (await ended(session, turn)).result == 1
            sessions.append(session)
        await until(sessions[-1], "session.hibernated")
        await edited.make_version(2)
        assert [await result(session, "version") for session in sessions] == [2, 2, 2, 2]
        deployments = {(await session.get()).deployment_id for session in sessions}
        assert deployments == {edited.said[-1]["deployment_id"]}
        for session in sessions[::2]:
            state = await result(session, "count")
            assert isinstance(state, dict)
            assert (state["started_as"], state["reason"]) == ("reconstructed", "code_changed")
            assert "session.process_lost" not in [event.type for event in await log_of(session)]


@pytest.mark.parametrize("agent", HOSTS)
async def test_a_running_turn_finishes_on_the_old_code(edited: Edited, tmp_path: Path, agent: str) -> None:
    """And the turn behind it, accepted before the edit, begins on the new."""
    gate = tmp_path / "gate"
    async with edited.client() as client:
        session, turn = await start(client, agent, f"wait {gate}")
        queued = await session.enqueue(text="version")
        await until(session, "turn.output")
        await edited.edit('write("went on")', 'write("went on in new code")')
        await edited.make_version(2)
        gate.touch()
        assert (await ended(session, turn)).status == "completed"
        outputs = [event for event in await log_of(session) if event.type == "turn.output"]
        assert outputs[-1].data["content"][0]["text"] == "went on"
        assert (await ended(session, queued)).result == 2


async def test_a_broken_edit_is_reported_and_the_old_code_goes_on(edited: Edited) -> None:
    async with edited.client() as client:
        session, turn = await start(client, "inline", "version")
        assert (await ended(session, turn)).result == 1
        said = await edited.edit("VERSION = 1\n", "VERSION = 1 / 0\n", expected="broken")
        line = edited.file.read_text().splitlines().index("VERSION = 1 / 0") + 1
        assert f"agents/stage.py, line {line}" in said
        assert "ZeroDivisionError: division by zero" in said
        assert await result(session, "version") == 1
        session, turn = await start(client, "process", "version")
        assert (await ended(session, turn)).result == 1
        said = await edited.edit("VERSION = 1 / 0\n", "VERSION = = 1\n", expected="broken")
        assert "SyntaxError" in said
        assert await result(session, "version") == 1
        await edited.edit("VERSION = = 1\n", "VERSION = 2\n")
        assert await result(session, "version") == 2


async def test_code_that_changed_while_the_server_was_away(edited: Edited, tmp_path: Path) -> None:
    """A process that is adopted with its turn finishes on the old code; all that comes after is on the new."""
    gate = tmp_path / "gate"
    async with edited.client() as client:
        session, turn = await start(client, "process", f"wait {gate}")
        idle, done = await start(client, "process", "version")
        queued = await session.enqueue(text="version")
        await until(session, "turn.output")
        await ended(idle, done)
        edited.kill()
        text = edited.file.read_text()
        changed = text.replace("VERSION = 1\n", "VERSION = 2\n").replace('write("went on")', 'write("went on anew")')
        edited.file.write_text(changed)
        edited.start()
        assert await result(idle, "version") == 2
        gate.touch()
        assert (await ended(session, turn)).status == "completed"
        assert texts(await log_of(session), turn) == ["waiting", "went on"]
        assert (await ended(session, queued)).result == 2
        assert "session.process_lost" not in [event.type for event in await log_of(session)]


async def test_a_server_that_starts_on_broken_source_goes_on_with_what_worked(edited: Edited) -> None:
    async with edited.client() as client:
        session, turn = await start(client, "inline", "version")
        await ended(session, turn)
        edited.kill()
        edited.file.write_text("raise LookupError('not today')\n")
        edited.launch()
        assert "LookupError: not today" in (await asyncio.to_thread(edited.hear, "broken"))["error"]
        await asyncio.to_thread(edited.hear, "ready")
        assert await result(session, "version") == 1


async def test_an_agent_that_is_gone_holds_its_sessions_until_it_is_back(edited: Edited) -> None:
    async with edited.client() as client:
        session, turn = await start(client, "bare", "version")
        await ended(session, turn)
        await edited.edit('bare = perdure.Agent("bare")', 'bare = perdure.Agent("naked")')
        with pytest.raises(AgentNotFound):
            await client.agents["bare"].create_session()
        queued = await session.enqueue(text="version")
        (hold,) = (await is_so(session, lambda seen: seen.holds)).holds
        assert hold.reason == "agent_unavailable"
        assert "There is no agent 'bare'" in str(hold.message)
        await edited.edit('bare = perdure.Agent("naked")', 'bare = perdure.Agent("bare")')
        await session.resume(hold.id)
        assert (await ended(session, queued)).result == 1


async def test_another_environment_stays_on_what_was_deployed_there(edited: Edited) -> None:
    async with edited.client() as client, edited.client("staging") as staging:
        edited.cli("deploy", str(edited.project), "--env", "staging")
        session, turn = await start(staging, "process", "version")
        assert (await ended(session, turn)).result == 1
        sleeping, turn = await start(staging, "bare", "version")
        await ended(sleeping, turn)
        await edited.make_version(2)
        fresh, turn = await start(client, "process", "version")
        assert (await ended(fresh, turn)).result == 2
        assert [await result(each, "version") for each in (session, sleeping)] == [1, 1]
        # A new deployment there is for new sessions; those that are there stay on theirs, over a restart too.
        edited.cli("deploy", str(edited.project), "--env", "staging")
        new, turn = await start(staging, "process", "version")
        assert (await ended(new, turn)).result == 2
        edited.restart()
        assert [await result(each, "version") for each in (session, sleeping, new)] == [1, 1, 2]


async def test_a_project_of_one_file_is_followed_too(tmp_path: Path) -> None:
    source = "import perdure\n\none = perdure.Agent('one')\n\n\n@one.turn\nasync def turn(turn, ctx):\n    return 1\n"
    (tmp_path / "one.py").write_text(source)
    (tmp_path / "other.py").write_text("raise LookupError('not asked for')\n")
    with running(tmp_path / "one.py", tmp_path / "server") as dev:
        async with dev.client() as client:
            session, turn = await start(client, "one", "")
            assert (await ended(session, turn)).result == 1
            (tmp_path / "one.py").write_text(source.replace("return 1", "return 2"))
            await asyncio.to_thread(dev.hear, "reloaded")
            assert await result(session, "") == 2


async def test_a_file_beside_the_agents_counts_and_data_do_not(tmp_path: Path) -> None:
    """The default data folder is inside the project, where nothing that is written to it may cause a reload."""
    project = copy_project(tmp_path / "project")
    helper = project / "agents" / "helper.py"
    helper.write_text("WORD = 'one'\n")
    (project / "agents" / "spoken.py").write_text(
        "import perdure\nfrom agents.helper import WORD\n\nspoken = perdure.Agent('spoken')\n\n\n"
        "@spoken.turn\nasync def turn(turn, ctx):\n    return WORD\n"
    )
    with running(project, project / ".perdure") as dev:
        async with dev.client() as client:
            session, turn = await start(client, "spoken", "")
            assert (await ended(session, turn)).result == "one"
            other, turn = await start(client, "process", "child")
            await ended(other, turn)
            helper.write_text("WORD = 'two'\n")
            await asyncio.to_thread(dev.hear, "reloaded")
            assert await result(session, "") == "two"
            assert [said["event"] for said in dev.said] == ["deployed", "ready", "reloaded"]
