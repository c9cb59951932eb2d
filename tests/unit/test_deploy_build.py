"""Building deployments: whole or not at all."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from perdure.authoring.project import load_project
from perdure.deploy.archive import pack
from perdure.deploy.build import BuiltDeployment, build, sweep_unfinished
from perdure.errors import ArchiveInvalid, DiscoveryFailed, PerdureError, ProjectImportError, StoreError

AGENT = """
import perdure
agent = perdure.Agent("assistant")

@agent.turn
async def turn(turn, ctx):
    return "hello"
"""


def archive(root: Path, code: str = AGENT) -> bytes:
    (root / "agents").mkdir(parents=True, exist_ok=True)
    (root / "agents/assistant.py").write_text(code)
    return pack(root).data


def built(data: bytes, target: Path, **options: Any) -> BuiltDeployment:
    return asyncio.run(build(data, target, **options))


def fails(kind: type[PerdureError], data: bytes, target: Path, **options: Any) -> str:
    """Build what must fail, and check that it leaves nothing but the folder of deployments."""
    before = set(target.parent.rglob("*"))
    with pytest.raises(kind) as caught:
        built(data, target, **options)
    assert set(target.parent.rglob("*")) == before
    return caught.value.message


def test_a_build_is_a_folder_a_digest_and_definitions(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project/perdure.toml").write_text('project = "shop"')
    data = archive(tmp_path / "project")
    result = built(data, tmp_path / "deployments" / "one")
    assert result.digest == pack(tmp_path / "project").digest
    assert result.project == "shop"
    assert [definition.file for definition in result.definitions] == ["agents/assistant.py"]
    assert result.source_dir == tmp_path / "deployments/one"
    assert [path.name for path in (tmp_path / "deployments").iterdir()] == ["one"]
    handler = load_project(result.source_dir).agents["assistant"].turn_handler
    assert handler is not None
    assert asyncio.run(handler(None, None)) == "hello"  # type: ignore[arg-type]


def test_a_project_that_does_not_import_leaves_nothing(tmp_path: Path) -> None:
    message = fails(ProjectImportError, archive(tmp_path / "project", "\nimport nonsense_y"), tmp_path / "d/one")
    assert "agents/assistant.py, line 2: ModuleNotFoundError: No module named 'nonsense_y'" in message


def test_a_project_that_hangs_leaves_nothing(tmp_path: Path) -> None:
    data = archive(tmp_path / "project", "while True: pass")
    assert "agents/assistant.py, line 1" in fails(DiscoveryFailed, data, tmp_path / "d/one", timeout=0.5)


def test_a_bad_archive_leaves_nothing(tmp_path: Path) -> None:
    fails(ArchiveInvalid, b"nonsense", tmp_path / "d/one")


def test_an_existing_deployment_is_not_touched(tmp_path: Path) -> None:
    data = archive(tmp_path / "project")
    built(data, tmp_path / "d/one")
    assert "there already" in fails(StoreError, data, tmp_path / "d/one")


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = archive(tmp_path / "project")

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device. Nothing was deployed" in fails(StoreError, data, tmp_path / "d/one")


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    data = archive(tmp_path / "project")
    assert "Nothing was deployed" in fails(StoreError, data, tmp_path / "file/one")


def test_cancelling_leaves_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "importing"
    data = archive(tmp_path / "project", f"import time; open({str(marker)!r}, 'w').close(); time.sleep(60)")

    async def cancel() -> None:
        task = asyncio.create_task(build(data, tmp_path / "d/one"))
        while not marker.exists():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert list((tmp_path / "d").iterdir()) == []


@pytest.mark.parametrize("step", ["unpack", "_publish"])
def test_cancelling_while_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The thread that writes cannot be stopped, so it must have ended before its folder is removed."""
    from perdure.deploy import build as module

    data = archive(tmp_path / "project")
    real = getattr(module, step)

    async def cancel() -> None:
        def slow(*args: Any) -> Any:
            loop.call_soon_threadsafe(task.cancel)
            return real(*args)

        monkeypatch.setattr(module, step, slow)
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(build(data, tmp_path / "d/one"))
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert list((tmp_path / "d").iterdir()) == []


def test_what_a_crash_leaves_is_swept(tmp_path: Path) -> None:
    (tmp_path / "d/.building-x/agents").mkdir(parents=True)
    (tmp_path / "d/one").mkdir()
    assert sweep_unfinished(tmp_path / "d") == [tmp_path / "d/.building-x"]
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["one"]
    assert sweep_unfinished(tmp_path / "missing") == []
