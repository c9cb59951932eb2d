from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import pytest

from perdure.computers.files import LocalFiles
from perdure.errors import ContentTooLarge, WorkspaceFileNotFound, WorkspacePathRefused


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("host")
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    return workspace


@pytest.fixture
def files(root: Path) -> LocalFiles:
    return LocalFiles(root)


async def test_what_is_written_is_read_listed_and_described(files: LocalFiles, root: Path) -> None:
    await files.write("notes/deep/a.txt", b"one")
    await files.write("notes/deep/a.txt", b"two", mode=0o600)
    assert await files.read("notes/deep/a.txt") == b"two"
    assert await files.read(f"{root}/notes/./deep//a.txt") == b"two"
    info = await files.stat("notes/deep/a.txt")
    assert (info.kind, info.size, info.mode) == ("file", 3, 0o600)
    assert info.modified == (root / "notes/deep/a.txt").stat().st_mtime_ns // 1000
    assert [(entry.path, entry.kind) for entry in await files.list("notes")] == [("notes/deep", "directory")]
    assert [entry.path for entry in await files.list("notes/deep")] == ["notes/deep/a.txt"]
    assert [entry.path for entry in await files.list()] == ["notes"]


async def test_delete_removes_files_links_and_empty_folders(files: LocalFiles, root: Path) -> None:
    await files.write("d/f", b"")
    (root / "link").symlink_to("d/f")
    with pytest.raises(WorkspacePathRefused, match="not empty"):
        await files.delete("d")
    await files.delete("link")
    await files.delete("d/f")
    await files.delete("d")
    assert await files.list() == []


@pytest.mark.parametrize("path", ["../secret", "a/../../secret", "/etc/passwd", "out", "outdir/secret", "abs", "x\0y"])
async def test_no_path_leads_out(files: LocalFiles, root: Path, path: str) -> None:
    (root / "a").mkdir()
    (root / "out").symlink_to("../secret")
    (root / "outdir").symlink_to("..")
    (root / "abs").symlink_to("/etc/passwd")
    with pytest.raises(WorkspacePathRefused):
        await files.read(path)
    with pytest.raises(WorkspacePathRefused):
        await files.list(path)


async def test_writing_through_a_link_at_the_end_replaces_the_link(files: LocalFiles, root: Path) -> None:
    (root / "out").symlink_to("../secret")
    await files.write("out", b"mine")
    assert (root.parent / "secret").read_text() == "host"
    assert (await files.stat("out")).kind == "file"
    (root / "outdir").symlink_to("..")
    with pytest.raises(WorkspacePathRefused, match="out of the workspace"):
        await files.write("outdir/secret", b"mine")
    assert (root.parent / "secret").read_text() == "host"


async def test_links_inside_the_workspace_work(files: LocalFiles, root: Path) -> None:
    await files.write("real/f", b"x")
    (root / "relative").symlink_to("real")
    (root / "absolute").symlink_to(root / "real/f")
    (root / "real/up").symlink_to("../absolute")
    assert await files.read("relative/f") == b"x"
    assert await files.read("absolute") == b"x"
    assert await files.read("relative/up") == b"x"
    assert (await files.stat("absolute")).kind == "symlink"


async def test_a_ring_of_links_is_refused(files: LocalFiles, root: Path) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    with pytest.raises(WorkspacePathRefused, match="lead nowhere"):
        await files.read("a")


async def test_what_is_missing_or_of_another_kind_is_named(files: LocalFiles, root: Path) -> None:
    (root / "folder").mkdir()
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "sock"))
    for missing in ("nothing", "folder/nothing", "no/where"):
        with pytest.raises(WorkspaceFileNotFound):
            await files.read(missing)
    for wrong in ("folder", "pipe", "sock", "."):
        with pytest.raises(WorkspacePathRefused):
            await files.read(wrong)
    with pytest.raises(WorkspacePathRefused):
        await files.list("pipe")
    with pytest.raises(WorkspacePathRefused):
        await files.write("folder", b"")
    with pytest.raises(WorkspacePathRefused):
        await files.delete(".")
    assert sorted(path.name for path in root.iterdir()) == ["folder", "pipe", "sock"]


async def test_a_file_over_the_limit_is_refused_with_its_size(files: LocalFiles) -> None:
    await files.write("big", b"x" * 11)
    assert len(await files.read("big", limit=11)) == 11
    with pytest.raises(ContentTooLarge, match="11 bytes"):
        await files.read("big", limit=10)


async def test_walks_leave_no_descriptors_open(files: LocalFiles, root: Path) -> None:
    await files.write("a/b/c", b"")
    before = sorted(os.listdir("/proc/self/fd"))
    for path in ("a/b/c", "a/b/../../../secret", "a/none", "a/b"):
        with contextlib.suppress(WorkspacePathRefused, WorkspaceFileNotFound):
            await files.read(path)
    await files.list("a/b")
    files.folder("a/b")
    assert sorted(os.listdir("/proc/self/fd")) == before
