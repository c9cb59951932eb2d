"""Source archives: deterministic to pack, safe to unpack."""

from __future__ import annotations

import gzip
import io
import os
import random
import shutil
import socket
import stat
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.deploy import archive as archives
from perdure.deploy.archive import pack, unpack
from perdure.deploy.source import find_source, link_leaves
from perdure.errors import ArchiveInvalid, PerdureError, ProjectError, SourceRefused, SourceTooLarge, StoreError


def write(root: Path, *names: str, text: str = "x") -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def names(root: Path) -> list[str]:
    return [file.name for file in find_source(root)]


def fails(kind: type[PerdureError], make: Callable[[], object]) -> Any:
    with pytest.raises(kind) as caught:
        make()
    return caught.value


def tree(root: Path) -> dict[str, tuple[str, bytes, bool]]:
    found: dict[str, tuple[str, bytes, bool]] = {}
    for path in root.rglob("*"):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            found[name] = ("link", os.readlink(path).encode(), False)
        elif path.is_file():
            found[name] = ("file", path.read_bytes(), bool(path.stat().st_mode & stat.S_IXUSR))
    return found


class TestSource:
    def test_what_nobody_deploys_is_left_out(self, tmp_path: Path) -> None:
        write(tmp_path, "agents/a.py", "perdure.toml", ".perdureignore", "data.csv")
        write(
            tmp_path, ".git/x", ".venv/pyvenv.cfg", "a/__pycache__/x.pyc", ".perdure/perdure.db", "node_modules/x/y.js"
        )
        write(tmp_path, "x.pyc", "b/.DS_Store", "c~")
        assert names(tmp_path) == [".perdureignore", "agents/a.py", "data.csv", "perdure.toml"]

    def test_perdureignore_reads_as_gitignore(self, tmp_path: Path) -> None:
        write(tmp_path, "a.log", "keep.log", "deep/b.log", "build/x", "deep/build/x", "docs/x.md", "docs/y.txt")
        (tmp_path / ".perdureignore").write_text(
            "# comment\n*.log\n!keep.log\n/build\ndocs/*\n!docs/x.md\n\n.perdureignore\n"
        )
        assert names(tmp_path) == ["deep/build/x", "docs/x.md", "keep.log"]

    def test_a_data_folder_is_left_out_wherever_it_is(self, tmp_path: Path) -> None:
        write(tmp_path, "a.py", "data/perdure.db", "data/computers/x")
        assert names(tmp_path) == ["a.py"]

    @pytest.mark.parametrize(
        "name",
        [".env", "sub/.env", ".env.local", "tls/server.pem", "server.key", "id_rsa", "id_ed25519", ".netrc", ".pypirc"],
    )
    def test_secrets_are_refused_and_can_be_left_out(self, tmp_path: Path, name: str) -> None:
        write(tmp_path, "a.py", name)
        error = fails(SourceRefused, lambda: pack(tmp_path))
        assert f"{name} looks like a secret" in error.message
        assert ".perdureignore" in error.message
        assert error.details["refused"] == [{"name": name, "reason": "looks like a secret"}]
        (tmp_path / ".perdureignore").write_text(f"{name}\n")
        assert names(tmp_path) == [".perdureignore", "a.py"]

    @pytest.mark.parametrize("name", [".env.example", ".env.sample", "id_rsa.pub", "keys.py", "env"])
    def test_what_only_resembles_a_secret_is_taken(self, tmp_path: Path, name: str) -> None:
        assert names(write(tmp_path, name)) == [name]

    def test_a_secret_that_is_none_can_be_let_in(self, tmp_path: Path) -> None:
        write(tmp_path, "ca.pem")
        (tmp_path / ".perdureignore").write_text("!ca.pem\n")
        assert names(tmp_path) == [".perdureignore", "ca.pem"]

    def test_all_that_is_refused_is_listed_once(self, tmp_path: Path) -> None:
        write(tmp_path, "venv/pyvenv.cfg", "venv/lib/x.pem", ".env", "a.py")
        os.mkfifo(tmp_path / "pipe")
        error = fails(SourceRefused, lambda: pack(tmp_path))
        assert [entry["name"] for entry in error.details["refused"]] == [".env", "pipe", "venv/"]
        assert "venv/ is a virtual environment" in error.message
        assert "pipe is no file" in error.message

    def test_a_long_list_is_cut(self, tmp_path: Path) -> None:
        write(tmp_path, *[f"{n}.pem" for n in range(30)])
        error = fails(SourceRefused, lambda: pack(tmp_path))
        assert "and 10 more" in error.message
        assert len(error.details["refused"]) == 30

    @pytest.mark.parametrize("target", ["/etc/passwd", "../out", "a/../../out", "sub/../a.py", "..", "here/../../.."])
    def test_links_that_may_leave_are_refused(self, tmp_path: Path, target: str) -> None:
        root = write(tmp_path / "project", "a.py", "sub/b.py")
        write(tmp_path, "out")
        (root / "here").symlink_to(".")
        (root / "link").symlink_to(target)
        error = fails(SourceRefused, lambda: pack(root))
        assert [entry["name"] for entry in error.details["refused"]] == ["link"]

    def test_an_absolute_link_inside_is_refused_too(self, tmp_path: Path) -> None:
        (write(tmp_path, "a.py") / "link").symlink_to(tmp_path / "a.py")
        fails(SourceRefused, lambda: pack(tmp_path))

    def test_a_link_loop_is_no_endless_walk(self, tmp_path: Path) -> None:
        (write(tmp_path, "sub/a.py") / "sub/up").symlink_to("..")
        (tmp_path / "self").symlink_to("self")
        assert names(tmp_path) == ["self", "sub/a.py", "sub/up"]

    def test_an_unreadable_ignore_file_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / ".perdureignore").write_bytes(b"\xff")
        assert ".perdureignore" in fails(ProjectError, lambda: pack(tmp_path)).message

    def test_a_pattern_that_makes_no_sense_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / ".perdureignore").write_text("!\n")
        assert "makes no sense" in fails(ProjectError, lambda: pack(tmp_path)).message

    def test_a_name_that_is_not_text_is_an_error(self, tmp_path: Path) -> None:
        with open(os.fsencode(tmp_path) + b"/\xff.py", "w"):
            pass
        assert "cannot be read" in fails(ProjectError, lambda: pack(tmp_path)).message

    def test_sizes_are_bounded_and_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write(tmp_path, "small.py")
        write(tmp_path, "large.bin", text="x" * 1000)
        monkeypatch.setattr(archives, "SOURCE_BYTES", 1000)
        error = fails(SourceTooLarge, lambda: pack(tmp_path))
        assert error.status == 413
        assert "has 1001 bytes; the limit is 1000" in error.message
        assert "The largest: large.bin (1000 bytes), small.py" in error.message

    def test_the_number_of_files_is_bounded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("perdure.deploy.source.SOURCE_FILES", 2)
        assert names(write(tmp_path, "a", "b")) == ["a", "b"]
        assert "3 files; the limit is 2" in fails(SourceTooLarge, lambda: pack(write(tmp_path, "c"))).message

    def test_nothing_there(self, tmp_path: Path) -> None:
        assert "no project" in fails(ProjectError, lambda: pack(tmp_path / "x")).message


class TestPacking:
    def test_equal_sources_give_equal_bytes(self, tmp_path: Path) -> None:
        files = ["agents/a.py", "b/c/d.txt", "ä/ö.py", "z"]
        one = write(tmp_path / "one", *files)
        random.Random(1).shuffle(files)
        two = write(tmp_path / "two", *files)
        os.utime(two / "z", (1, 1))
        (two / "z").chmod(0o600)
        (two / "empty").mkdir()
        assert pack(one) == pack(two)

    def test_contents_names_kinds_and_modes_count(self, tmp_path: Path) -> None:
        digests = {pack(write(tmp_path, "a", "b")).digest}
        digests.add(pack(write(tmp_path, "a", text="y")).digest)
        (tmp_path / "b").chmod(0o755)
        digests.add(pack(tmp_path).digest)
        (tmp_path / "b").rename(tmp_path / "c")
        digests.add(pack(tmp_path).digest)
        (tmp_path / "c").unlink()
        (tmp_path / "c").symlink_to("a")
        digests.add(pack(tmp_path).digest)
        assert len(digests) == 5

    def test_a_single_file_is_packed_as_an_agent(self, tmp_path: Path) -> None:
        write(tmp_path, "solo.py", ".env")
        target = tmp_path / "target"
        target.mkdir()
        unpack(pack(tmp_path / "solo.py").data, target)
        assert list(tree(target)) == ["agents/solo.py"]

    def test_there_and_back(self, tmp_path: Path) -> None:
        root = write(tmp_path / "one", "agents/a.py", "run.sh", "ä/ö ü.py", "n" * 200 + "/" + "m" * 200)
        (root / "run.sh").chmod(0o755)
        (root / "ä/link").symlink_to("../agents")
        (root / "broken").symlink_to("agents/nothing")
        packed = pack(root)
        target = tmp_path / "two"
        target.mkdir()
        assert unpack(packed.data, target) == packed.digest
        assert tree(target) == tree(root)
        assert pack(target).digest == packed.digest
        assert (packed.files, packed.size) == (6, sum(len(content) for _, content, _ in tree(root).values()))

    def test_unpacked_files_are_read_only(self, tmp_path: Path) -> None:
        root = write(tmp_path / "one", "a.py")
        (tmp_path / "two").mkdir()
        unpack(pack(root).data, tmp_path / "two")
        assert (tmp_path / "two/a.py").stat().st_mode & 0o777 == 0o444


def member(name: str, data: bytes = b"x", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(data) if fields.get("type", tarfile.REGTYPE) == tarfile.REGTYPE else 0
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, b"", type=kind, linkname=target)


def tarball(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(buffer.getvalue())


class TestUnpacking:
    """Every archive here was made by somebody who means harm, or by a broken line."""

    @pytest.fixture
    def target(self, tmp_path: Path) -> Path:
        folder = tmp_path / "inside" / "target"
        folder.mkdir(parents=True)
        return folder

    def refuse(self, target: Path, data: bytes, kind: type[PerdureError] = ArchiveInvalid) -> str:
        error = fails(kind, lambda: unpack(data, target))
        assert list(target.iterdir()) == []
        assert {path.name for path in target.parent.parent.rglob("*")} == {"inside", "target"}
        message: str = error.message
        return message

    @pytest.mark.parametrize(
        "name", ["/etc/x", "../x", "a/../../x", "a/./b", "..", ".", "a//b", "a/", "", "a" * 256, "/".join(["a"] * 1500)]
    )
    def test_wrong_paths(self, target: Path, name: str) -> None:
        self.refuse(target, tarball(member("ok"), member(name)))

    @pytest.mark.parametrize("where", ["/etc", "..", "../x", "a/..", "a/../..", "../../inside", ""])
    def test_links_out(self, target: Path, where: str) -> None:
        self.refuse(target, tarball(member("ok"), link("link", where)))

    def test_a_chain_of_links_out(self, target: Path) -> None:
        self.refuse(target, tarball(link("here", "."), link("out", "here/here/../.."), member("out/x")))

    def test_writing_through_a_link(self, target: Path) -> None:
        assert "is below 'link'" in self.refuse(target, tarball(link("link", "sub"), member("link/x"), member("sub/y")))

    def test_a_file_below_a_file(self, target: Path) -> None:
        assert "is below 'a'" in self.refuse(target, tarball(member("a"), member("a/b")))

    @pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.BLKTYPE])
    def test_other_kinds(self, target: Path, kind: bytes) -> None:
        self.refuse(target, tarball(member("ok"), link("x", "ok", kind)))

    def test_a_name_twice(self, target: Path) -> None:
        assert "twice" in self.refuse(target, tarball(member("a", b"1"), member("a", b"2")))

    def test_what_is_no_archive(self, target: Path) -> None:
        assert "not gzip" in self.refuse(target, b"nonsense")
        self.refuse(target, b"")
        self.refuse(target, gzip.compress(b"nonsense" * 1000))

    def test_cut_off_anywhere(self, target: Path) -> None:
        data = tarball(member("a", os.urandom(3000)), member("b"))
        for end in range(0, len(data), 97):
            self.refuse(target, data[:end])
        self.refuse(target, data + b"more")

    def test_a_damaged_header_does_not_end_the_archive_early(self, target: Path) -> None:
        tar = bytearray(gzip.decompress(tarball(member("a"), member("b"))))
        tar[1024:1034] = b"\xff" * 10
        assert "damaged" in self.refuse(target, gzip.compress(bytes(tar)))

    def test_a_bomb(self, target: Path) -> None:
        bomb = gzip.compress(bytes(200 * 1024 * 1024), compresslevel=1)
        assert "the limit is" in self.refuse(target, bomb, SourceTooLarge)

    def test_a_member_that_says_it_is_huge(self, target: Path) -> None:
        info, _ = member("huge")
        info.size = 8 * 1024**3
        header = info.tobuf(tarfile.GNU_FORMAT)
        self.refuse(target, gzip.compress(header + bytes(10240)), SourceTooLarge)

    def test_too_many_files(self, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(archives, "SOURCE_FILES", 3)
        assert "limit of 3" in self.refuse(target, tarball(*[member(str(n)) for n in range(4)]))

    def test_a_disk_that_refuses(self, tmp_path: Path) -> None:
        error = fails(
            StoreError, lambda: unpack(tarball(member("a")), tmp_path / "missing/\0".strip("\0") / ("x" * 300))
        )
        assert "cannot be written" in error.message
        assert "current deployment goes on" in error.message

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.data())
    def test_nothing_ever_lands_outside(self, tmp_path: Path, data: st.DataObject) -> None:
        """Random names and links made of few parts, so that they meet; followed links stay inside as well."""
        part = st.sampled_from(["a", "b", "..", "."])
        path = st.lists(part, min_size=1, max_size=4).map("/".join)
        made: Iterable[tuple[tarfile.TarInfo, bytes]] = data.draw(
            st.lists(st.one_of(path.map(member), st.tuples(path, path).map(lambda pair: link(*pair))), max_size=5)
        )
        folder = tmp_path / "fuzz"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "target").mkdir(parents=True)
        try:
            unpack(tarball(*made), folder / "target")
        except ArchiveInvalid:
            assert list((folder / "target").iterdir()) == []
        assert [path.name for path in folder.iterdir()] == ["target"]
        for found in (folder / "target").rglob("*"):
            assert Path(os.path.realpath(found)).is_relative_to(folder / "target")


def test_links_are_judged_by_where_their_dots_stand() -> None:
    stays = [("a", "b"), ("a/b", "../c"), ("a/b/c", "../../d"), ("a", "./b"), ("a/b", "..")]
    leaves = [("a", ".."), ("a/b", "../.."), ("a", "/x"), ("a", "b/.."), ("a/b", "c/../../..")]
    assert not any(link_leaves(*pair) for pair in stays)
    assert all(link_leaves(*pair) for pair in leaves)


def test_a_socket_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        assert "s is no file" in fails(SourceRefused, lambda: pack(tmp_path)).message
