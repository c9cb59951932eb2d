"""`perdure init`, and the agent that it writes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perdure.authoring.discover import discover
from perdure.authoring.project import load_project
from perdure.authoring.scaffold import init_project
from perdure.deploy.archive import pack
from perdure.errors import ProjectError, ProjectExists


class Turn:
    """Stands in for a turn and notes what the handler does with it."""

    def __init__(self, sequence: int, text: str) -> None:
        self.sequence = sequence
        self.text = text
        self.output = self
        self.written: list[str] = []
        self.responses: list[str] = []

    async def write(self, content: str) -> None:
        self.written.append(content)

    async def respond(self, content: str) -> None:
        self.responses.append(content)


def files(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def test_a_new_project_can_be_deployed(tmp_path: Path) -> None:
    written = init_project(tmp_path / "demo")
    assert {path.relative_to(tmp_path / "demo").as_posix() for path in written} == files(tmp_path / "demo")
    assert files(tmp_path / "demo") == {"agents/assistant.py", "perdure.toml", ".perdureignore", "README.md"}
    assert pack(tmp_path / "demo").files == 4
    found = asyncio.run(discover(tmp_path / "demo"))
    assert found.project == "demo"
    agent = found.definitions[0]
    assert (agent.id, agent.host, agent.has_init) == ("assistant", "process", True)
    minute = 60_000_000
    assert (agent.close_after_idle, agent.hibernate_after_idle, agent.max_turn_duration) == (
        24 * 60 * minute,
        5 * minute,
        10 * minute,
    )


def test_nothing_is_overwritten_unless_asked(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    (tmp_path / "other.txt").write_text("mine")
    with pytest.raises(ProjectExists, match=r"README\.md") as caught:
        init_project(tmp_path)
    assert caught.value.details == {"files": ["README.md"]}
    assert files(tmp_path) == {"README.md", "other.txt"}
    init_project(tmp_path, force=True)
    assert (tmp_path / "README.md").read_text() != "mine"
    assert (tmp_path / "other.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ProjectError, match="cannot be written"):
        init_project(tmp_path / "file" / "demo")


def test_the_agent_does_what_the_tutorial_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    init_project(tmp_path / "demo")
    agent = load_project(tmp_path / "demo").agents["assistant"]
    (tmp_path / "workspace").mkdir()
    monkeypatch.chdir(tmp_path / "workspace")

    def process(kind: str) -> Any:
        assert agent.init_handler is not None
        return asyncio.run(agent.init_handler(SimpleNamespace(recovery=SimpleNamespace(kind=kind))))  # type: ignore[arg-type]

    def run(live: Any, sequence: int, text: str) -> tuple[Turn, Any]:
        assert agent.turn_handler is not None
        turn = Turn(sequence, text)
        return turn, asyncio.run(agent.turn_handler(turn, SimpleNamespace(init_result=live)))  # type: ignore[arg-type]

    live = process("initial")
    turn, result = run(live, 1, " first ")
    assert turn.written == ['Recorded "first"']
    assert turn.responses == ["Turn 1 in this process. Log entries: 1."]
    assert result == {"turns_in_process": 1, "log_entries": 1, "started_as": "initial"}
    with pytest.raises(ValueError, match="Send some text"):
        run(live, 2, "  ")
    assert run(live, 3, "two\nlines")[1] == {"turns_in_process": 2, "log_entries": 2, "started_as": "initial"}
    assert run(process("reconstructed"), 4, "x")[0].responses == ["Turn 1 in this process. Log entries: 3."]
    assert (tmp_path / "workspace/log.txt").read_text() == "1: first\n3: two lines\n4: x\n"
