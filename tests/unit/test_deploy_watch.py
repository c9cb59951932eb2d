"""Watching a project's source for changes of code."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TypeAlias

import pytest

from perdure.deploy.archive import SourceArchive, pack
from perdure.deploy.watch import watch_source
from perdure.errors import PerdureError, ProjectError, SourceRefused

Changes: TypeAlias = AsyncGenerator["SourceArchive | PerdureError", None]


def project(root: Path) -> Path:
    (root / "agents").mkdir()
    (root / "agents/a.py").write_text("one")
    return root


def watching(root: Path, known: str | None, test: Callable[[Changes], Awaitable[None]]) -> None:
    async def run() -> None:
        async with aclosing(watch_source(root, known)) as changes, asyncio.timeout(20):
            await test(changes)

    asyncio.run(run())


async def digest(changes: Changes) -> str:
    change = await anext(changes)
    assert isinstance(change, SourceArchive)
    return change.digest


async def read_all(changes: Changes) -> None:
    async for _ in changes:
        pass


def test_each_change_is_yielded_with_its_source(tmp_path: Path) -> None:
    root = project(tmp_path)

    async def edits(changes: Changes) -> None:
        assert await digest(changes) == pack(root).digest
        for text in ("two", "three"):
            (root / "agents/a.py").write_text(text)
            assert await digest(changes) == pack(root).digest
        (root / "helper.py").write_text("")
        assert await digest(changes) == pack(root).digest
        (root / "helper.py").unlink()
        assert await digest(changes) == pack(root).digest

    watching(root, None, edits)


def test_the_known_source_is_not_yielded_and_an_edit_before_watching_is(tmp_path: Path) -> None:
    root = project(tmp_path)
    known = pack(root).digest
    (root / "agents/a.py").write_text("edited in between")

    async def first(changes: Changes) -> None:
        assert await digest(changes) == pack(root).digest != known

    watching(root, known, first)


def test_a_new_folder_is_watched_too(tmp_path: Path) -> None:
    root = project(tmp_path)

    async def edits(changes: Changes) -> None:
        await digest(changes)
        (root / "agents/tools").mkdir()
        (root / "agents/tools/x.py").write_text("1")
        await digest(changes)
        (root / "agents/tools/x.py").write_text("2")
        assert await digest(changes) == pack(root).digest

    watching(root, None, edits)


def test_an_editor_that_replaces_files_is_seen(tmp_path: Path) -> None:
    root = project(tmp_path)

    async def edits(changes: Changes) -> None:
        await digest(changes)
        (root / "agents/.a.py.swp").write_text("two")
        os.replace(root / "agents/.a.py.swp", root / "agents/a.py")
        assert await digest(changes) == pack(root).digest

    watching(root, None, edits)


def test_what_is_ignored_yields_nothing(tmp_path: Path) -> None:
    """The last edit is the only one that counts, so what comes next must be it."""
    root = project(tmp_path)
    (root / ".perdure").mkdir()

    async def edits(changes: Changes) -> None:
        await digest(changes)
        (root / ".perdure/perdure.db").write_text("x")
        (root / "x.pyc").write_text("x")
        (root / "agents/a.py").touch()
        (root / "agents/__pycache__").mkdir()
        (root / "agents/__pycache__/a.pyc").write_text("x")
        pending = asyncio.ensure_future(anext(changes))
        assert not (await asyncio.wait([pending], timeout=0.5))[0]
        (root / "agents/a.py").write_text("two")
        found = await pending
        assert isinstance(found, SourceArchive)
        assert found.digest == pack(root).digest

    watching(root, None, edits)


def test_edits_close_together_are_one_change(tmp_path: Path) -> None:
    root = project(tmp_path)

    async def edits(changes: Changes) -> None:
        await digest(changes)
        for number in range(20):
            (root / f"agents/m{number}.py").write_text("")
        seen = [await digest(changes)]
        while seen[-1] != pack(root).digest:
            seen.append(await digest(changes))
        assert len(seen) <= 2

    watching(root, None, edits)


def test_source_that_is_refused_is_told_once_and_can_be_put_right(tmp_path: Path) -> None:
    root = project(tmp_path)

    async def edits(changes: Changes) -> None:
        before = await digest(changes)
        (root / ".env").write_text("SECRET=1")
        assert isinstance(await anext(changes), SourceRefused)
        (root / ".env").write_text("SECRET=2")
        (root / ".env").unlink()
        assert await digest(changes) == before

    watching(root, None, edits)


def test_a_single_file_is_watched(tmp_path: Path) -> None:
    file = project(tmp_path) / "agents/a.py"

    async def edits(changes: Changes) -> None:
        await digest(changes)
        (tmp_path / "agents/other.py").write_text("")
        file.write_text("two")
        assert await digest(changes) == pack(file).digest

    watching(file, None, edits)


def test_a_folder_that_is_gone_ends_it(tmp_path: Path) -> None:
    root = project(tmp_path)

    async def edits(changes: Changes) -> None:
        await digest(changes)
        (root / "agents/a.py").unlink()
        (root / "agents").rmdir()
        root.rmdir()
        with pytest.raises(ProjectError, match="gone"):
            await read_all(changes)

    watching(root, None, edits)


def test_cancelling_ends_the_watching_thread(tmp_path: Path) -> None:
    """`asyncio.run` waits for the threads it lent out, so a thread that went on would hang this test."""
    root = project(tmp_path)

    async def run() -> None:
        async def read() -> None:
            async with aclosing(watch_source(root)) as changes:
                async for _ in changes:
                    begun.set()

        begun = asyncio.Event()
        task = asyncio.create_task(read())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(run(), 20))
