"""The files of a workspace folder, without a way out of it.

Paths are walked one component at a time, each opened relative to the folder before it and never through a symlink; a
symlink is read and walked in turn. So there is no moment between a check and its use in which a running guest could
swap a folder for a link to the host's files.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

from perdure.computers.base import FileInfo, Files
from perdure.errors import ContentTooLarge, WorkspaceFileNotFound, WorkspacePathRefused

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS: Final = 40
_MISSING: Final = (errno.ENOENT,)
_WRONG_KIND: Final = (errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ENOTEMPTY, errno.EEXIST)


class _Walk:
    """A walk below `root`; `folder` is the open descriptor of where it stands."""

    def __init__(self, root: Path, path: str) -> None:
        self._root, self._path = root, path
        self._stack = [os.open(root, _FOLDER)]
        self._links = 0

    @property
    def folder(self) -> int:
        return self._stack[-1]

    def close(self) -> None:
        for fd in self._stack:
            os.close(fd)

    def to_parent(self, *, follow: bool, make: bool) -> str:
        """Walk to the folder of the path's last component and return that component, `.` for the root itself."""
        pending = self._components(self._path)
        while pending:
            name = pending.pop(0)
            last = not pending
            if name == "..":
                self._up()
            elif (target := self._link(name)) is not None and (follow or not last):
                pending = self._components(self._count(target)) + pending
            elif last:
                return name
            else:
                self._down(name, make=make)
        return "."

    def _components(self, path: str) -> list[str]:
        if "\0" in path:
            raise WorkspacePathRefused(self._path, "it contains NUL")
        if path.startswith("/"):
            root = f"{self._root}/"
            if not f"{path}/".startswith(root):
                raise WorkspacePathRefused(self._path, "it leads out of the workspace")
            while len(self._stack) > 1:
                self._up()
            path = path[len(root) :]
        return [name for name in path.split("/") if name not in ("", ".")]

    def _count(self, target: str) -> str:
        self._links += 1
        if self._links > _MOST_LINKS:
            raise WorkspacePathRefused(self._path, "its symlinks lead nowhere")
        return target

    def _link(self, name: str) -> str | None:
        try:
            return os.readlink(name, dir_fd=self.folder)
        except OSError as no_link:
            if no_link.errno in (errno.EINVAL, errno.ENOENT):
                return None
            raise

    def _up(self) -> None:
        if len(self._stack) == 1:
            raise WorkspacePathRefused(self._path, "it leads out of the workspace")
        os.close(self._stack.pop())

    def _down(self, name: str, *, make: bool) -> None:
        if make:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=self.folder)
        self._stack.append(os.open(name, _FOLDER, dir_fd=self.folder))


@contextmanager
def _at(root: Path, path: str, *, follow: bool = False, make: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the folder's descriptor and the name in it that `path` means, and turn the system's errors into ours."""
    walk = _Walk(root, path)
    try:
        name = walk.to_parent(follow=follow, make=make)
        yield walk.folder, name
    except OSError as failure:
        if failure.errno in _MISSING:
            raise WorkspaceFileNotFound(path) from failure
        if failure.errno in _WRONG_KIND:
            raise WorkspacePathRefused(path, os.strerror(failure.errno).lower()) from failure
        raise
    finally:
        walk.close()


def _kind(mode: int) -> Literal["file", "directory", "symlink", "other"]:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "other"


def _describe(path: str, name: str, folder: int) -> FileInfo:
    seen = os.stat(name, dir_fd=folder, follow_symlinks=False)
    return FileInfo(path, _kind(seen.st_mode), seen.st_size, stat.S_IMODE(seen.st_mode), seen.st_mtime_ns // 1000)


class LocalFiles(Files):
    """The files below one folder of this host."""

    def __init__(self, root: Path) -> None:
        """Take the workspace's folder; it must exist when a method is called."""
        self._root = root.resolve()

    async def read(self, path: str, *, limit: int = 8 << 20) -> bytes:
        """See `Files.read`."""
        return await asyncio.to_thread(self._read, path, limit)

    def _read(self, path: str, limit: int) -> bytes:
        with _at(self._root, path, follow=True) as (folder, name):
            # Not blocking: the opening of a pipe without a writer would hang.
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            try:
                if not stat.S_ISREG(os.fstat(fd).st_mode):
                    raise WorkspacePathRefused(path, "it is not a regular file")
                with open(fd, "rb", closefd=False) as file:
                    data = file.read(limit + 1)
                size = os.fstat(fd).st_size
            finally:
                os.close(fd)
        if len(data) > limit:
            raise ContentTooLarge(f"file {path!r}", f"{size} bytes", f"{limit} bytes")
        return data

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """See `Files.write`."""
        await asyncio.to_thread(self._write, path, data, mode)

    def _write(self, path: str, data: bytes, mode: int) -> None:
        with _at(self._root, path, make=True) as (folder, name):
            if name == ".":
                raise WorkspacePathRefused(path, "it is a folder")
            draft = f".{secrets.token_hex(8)}.draft"
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=folder)
            try:
                with open(fd, "wb") as file:
                    file.write(data)
                os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                os.unlink(draft, dir_fd=folder)
                raise

    async def stat(self, path: str) -> FileInfo:
        """See `Files.stat`."""
        return await asyncio.to_thread(self._stat, path)

    def _stat(self, path: str) -> FileInfo:
        with _at(self._root, path) as (folder, name):
            return _describe(path, name, folder)

    async def list(self, path: str = ".") -> list[FileInfo]:
        """See `Files.list`."""
        return await asyncio.to_thread(lambda: list(self._list(path)))

    def _list(self, path: str) -> Iterator[FileInfo]:
        with _at(self._root, path, follow=True) as (folder, name):
            inner = os.open(name, _FOLDER, dir_fd=folder)
            try:
                for entry in sorted(os.listdir(inner)):
                    try:
                        yield _describe(os.path.normpath(f"{path}/{entry}"), entry, inner)
                    except FileNotFoundError:
                        # Deleted by the guest since the listing.
                        continue
            finally:
                os.close(inner)

    def folder(self, path: str) -> Path:
        """Return the folder of this host that `path` means. Blocking; raises as the other methods do."""
        with _at(self._root, path, follow=True) as (folder, name):
            inner = os.open(name, _FOLDER, dir_fd=folder)
            try:
                return Path(os.readlink(f"/proc/self/fd/{inner}"))
            finally:
                os.close(inner)

    async def delete(self, path: str) -> None:
        """See `Files.delete`."""
        await asyncio.to_thread(self._delete, path)

    def _delete(self, path: str) -> None:
        with _at(self._root, path) as (folder, name):
            if name == ".":
                raise WorkspacePathRefused(path, "it is the workspace itself")
            if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                os.rmdir(name, dir_fd=folder)
            else:
                os.unlink(name, dir_fd=folder)
