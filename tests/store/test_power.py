"""The power fails: whatever was not flushed is gone, and whatever was answered is there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import apsw
import pytest
from store_world import Clock, World, key

from perdure.store.sqlite import SqliteStore


class Disk(apsw.VFS):
    """A disk that remembers each file as it was when it was last flushed."""

    def __init__(self) -> None:
        self.flushed: dict[Path, bytes] = {}
        super().__init__("flushed", "unix", makedefault=True)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        return File(self, name, flags)

    def xDelete(self, name: str, syncdir: bool) -> None:
        super().xDelete(name, syncdir)
        self.flushed.pop(Path(name), None)

    def fail_power(self, folder: Path) -> None:
        """Write into a folder what the disk would show after the power came back."""
        folder.mkdir()
        for path, content in self.flushed.items():
            (folder / path.name).write_bytes(content)


class File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._disk = disk
        self._path = Path(name.filename() if isinstance(name, apsw.URIFilename) else str(name))
        super().__init__("unix", name, flags)

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        if self._path.exists():
            self._disk.flushed[self._path] = self._path.read_bytes()


@pytest.fixture
def disk() -> Iterator[Disk]:
    disk = Disk()
    yield disk
    disk.unregister()


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[World]:
    store = SqliteStore(folder, clock=Clock())
    await store.open()
    try:
        yield World(store)
    finally:
        await store.close()


async def test_what_was_answered_was_flushed(disk: Disk, tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as world:
        session = await world.create(said="first", start=True, idempotency=key("create"))
        await world.output(session)
        for number in range(50):
            await world.enqueue(session, f"input {number}", idempotency=key(f"enqueue {number}"))
        disk.fail_power(tmp_path / "after")
        before = (await world.head(session), await world.store.events(session.id, 0, 1000))
    disk.unregister()
    async with opened(tmp_path / "after") as world:
        assert (await world.head(session), await world.store.events(session.id, 0, 1000)) == before


async def test_each_answer_comes_after_its_own_flush(disk: Disk, tmp_path: Path) -> None:
    async with opened(tmp_path / "data") as world:
        session = await world.create()
        for number in range(1, 21):
            await world.enqueue(session)
            disk.fail_power(tmp_path / f"after {number}")
    disk.unregister()
    for number in range(1, 21):
        async with opened(tmp_path / f"after {number}") as world:
            assert (await world.head(session)).last_turn == number
