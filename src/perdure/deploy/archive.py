"""Source archives: a project's files as one deterministic, compressed tar, and the way back, safely.

Equal sources give equal archives and digests, whoever packs them, whenever and where.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from perdure.deploy.source import IGNORE_FILE, SOURCE_FILES, SourceFile, find_source, link_leaves, unreadable
from perdure.errors import ArchiveInvalid, ProjectError, SourceTooLarge, StoreError

SOURCE_BYTES: Final = 50 * 1024 * 1024
# Room for the tar's own headers on top of the files: at most a few KiB each.
_TAR_BYTES: Final = SOURCE_BYTES + SOURCE_FILES * 4096
# The tar format's usual day zero for reproducible archives; some tools choke on 1970.
_MODIFIED: Final = 315_532_800
_LARGEST_SHOWN: Final = 5


class SourceArchive(msgspec.Struct, frozen=True):
    """A packed project: the archive's bytes, the hex SHA-256 of its content, and the size of its files unpacked."""

    data: bytes
    digest: str
    files: int
    size: int


class _Member(msgspec.Struct, frozen=True):
    name: str
    data: bytes
    is_link: bool = False
    is_executable: bool = False


def pack(path: str | Path) -> SourceArchive:
    """Pack the source of a project's folder, or of a single Python file as `agents/NAME.py`.

    Raises `SourceRefused` and `SourceTooLarge` for what is not deployed, `ProjectError` for what cannot be read.
    Blocks while it reads the files.
    """
    path = Path(path).resolve()
    if path.is_dir():
        members = _read_all(find_source(path))
    elif path.is_file() and path.suffix == ".py":
        members = _read_all([SourceFile(f"agents/{path.name}", path, path.stat().st_size)])
    else:
        raise ProjectError(f"There is no project's folder or Python file at {path}. Nothing was deployed.")
    data = gzip.compress(_tar(members), compresslevel=6, mtime=0)
    return SourceArchive(data, _digest(members), len(members), sum(len(member.data) for member in members))


def _read_all(files: list[SourceFile]) -> list[_Member]:
    sizes = {file.name: file.size for file in files}
    if sum(sizes.values()) > SOURCE_BYTES:
        raise _too_large(sizes)
    return [_read(file) for file in files]


def _read(file: SourceFile) -> _Member:
    try:
        file.name.encode()
        data = os.fsencode(os.readlink(file.path)) if file.is_link else file.path.read_bytes()
    except (OSError, UnicodeEncodeError) as error:
        raise unreadable(repr(file.name), error) from None
    return _Member(file.name, data, file.is_link, file.is_executable)


def _too_large(sizes: Mapping[str, int]) -> SourceTooLarge:
    largest = sorted(sizes, key=lambda name: sizes[name], reverse=True)[:_LARGEST_SHOWN]
    size = sum(sizes.values())
    return SourceTooLarge(
        f"The project's source has {size} bytes; the limit is {SOURCE_BYTES}. Nothing was deployed; leave out what the "
        f"agents do not need with {IGNORE_FILE}. The largest: "
        f"{', '.join(f'{name} ({sizes[name]} bytes)' for name in largest)}.",
        {"size": f"{size} bytes", "limit": f"{SOURCE_BYTES} bytes"},
    )


def _tar(members: Iterable[_Member]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member in members:
            info = tarfile.TarInfo(member.name)
            info.mtime = _MODIFIED
            info.mode = 0o755 if member.is_executable else 0o644
            if member.is_link:
                info.type, info.linkname = tarfile.SYMTYPE, os.fsdecode(member.data)
                tar.addfile(info)
            else:
                info.size = len(member.data)
                tar.addfile(info, io.BytesIO(member.data))
    return buffer.getvalue()


def _digest(members: Iterable[_Member]) -> str:
    """Return the digest of names, kinds and contents, which does not depend on how they were compressed."""
    whole = hashlib.sha256()
    for member in sorted(members, key=lambda member: member.name):
        kind = "link" if member.is_link else "program" if member.is_executable else "file"
        content = hashlib.sha256(member.data).hexdigest()
        whole.update(f"{kind} {content} {member.name}\0".encode())
    return whole.hexdigest()


def unpack(data: bytes, folder: Path) -> str:
    """Write the files of an archive into an empty folder, flushed to disk, and return their digest.

    Nothing lands outside the folder, whatever the archive says: it is read in full and checked before the first write.
    Raises `ArchiveInvalid`, `SourceTooLarge`, and `StoreError` when the disk refuses. Blocks.
    """
    members = _members(_inflate(data))
    try:
        for member in sorted(members, key=lambda member: member.is_link):
            _write(folder, member)
        _flush_folders(folder)
    except OSError as error:
        raise StoreError(
            f"The deployment cannot be written to {folder}: {error.strerror}. Nothing was deployed; the current "
            "deployment goes on. Make room or make the folder writable, then deploy again."
        ) from error
    return _digest(members)


def _inflate(data: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        tar = unpacker.decompress(data, _TAR_BYTES + 1)
    except zlib.error as error:
        raise ArchiveInvalid(f"The source archive is not gzip: {error}. Nothing was deployed.") from None
    if len(tar) > _TAR_BYTES:
        raise SourceTooLarge(
            f"The source archive holds over {_TAR_BYTES} bytes; the limit is {SOURCE_BYTES}. Nothing was deployed.",
            {"size": f"over {_TAR_BYTES} bytes", "limit": f"{SOURCE_BYTES} bytes"},
        )
    if not unpacker.eof or unpacker.unused_data:
        raise ArchiveInvalid("The source archive is cut off or goes on after its end. Nothing was deployed.")
    return tar


def _members(tar: bytes) -> list[_Member]:
    members: dict[str, _Member] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(tar), mode="r:") as archive:
            for info in _bounded(info for info in archive if not info.isdir()):
                if info.name in members:
                    raise _bad(info.name, "is there twice")
                members[info.name] = _checked(archive, info)
            # tarfile takes a header that it cannot read for the end of the archive.
            is_whole = not tar[archive.offset :].strip(b"\0")
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise ArchiveInvalid(f"The source archive is damaged: {error}. Nothing was deployed.") from None
    if not is_whole:
        raise ArchiveInvalid("The source archive is damaged: it has a broken header. Nothing was deployed.")
    _check_places(members)
    return list(members.values())


def _bounded(infos: Iterable[tarfile.TarInfo]) -> Iterator[tarfile.TarInfo]:
    size = 0
    for number, info in enumerate(infos, 1):
        size += info.size
        if size > SOURCE_BYTES:
            raise _too_large({info.name: size})
        if number > SOURCE_FILES:
            raise _bad(info.name, f"is one file more than the limit of {SOURCE_FILES}")
        yield info


def _checked(archive: tarfile.TarFile, info: tarfile.TarInfo) -> _Member:
    _check_path(info.name)
    if info.issym():
        if not info.linkname or "\0" in info.linkname or link_leaves(info.name, info.linkname):
            raise _bad(info.name, f"links to {info.linkname[:80]!r}, which may leave the project")
        return _Member(info.name, os.fsencode(info.linkname), is_link=True)
    if not info.isreg() or info.issparse():
        raise _bad(info.name, "is neither a file nor a symbolic link")
    file = archive.extractfile(info)
    data = file.read() if file else b""
    if len(data) != info.size:
        raise _bad(info.name, "is cut off")
    return _Member(info.name, data, is_executable=bool(info.mode & 0o100))


def _check_path(name: str) -> None:
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in name:
        raise _bad(name, "is not a plain path inside the project")
    if max(len(os.fsencode(part)) for part in parts) > 255 or len(os.fsencode(name)) > 2048:
        raise _bad(name[:80], "has a name that is too long")


def _check_places(members: Mapping[str, _Member]) -> None:
    for name in members:
        for parent in PurePosixPath(name).parents:
            if str(parent) in members:
                raise _bad(name, f"is below {str(parent)!r}, which is no folder")


def _bad(name: str, why: str) -> ArchiveInvalid:
    return ArchiveInvalid(f"The source archive is refused: {name!r} {why}. Nothing was deployed.", {"file": name})


def _write(folder: Path, member: _Member) -> None:
    path = folder / member.name
    path.parent.mkdir(parents=True, exist_ok=True)
    if member.is_link:
        os.symlink(os.fsdecode(member.data), path)
        return
    # Read-only, since a deployment never changes and handlers may run with our own rights.
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o555 if member.is_executable else 0o444)
    with open(file, "wb") as opened:
        opened.write(member.data)
        opened.flush()
        os.fsync(file)


def _flush_folders(folder: Path) -> None:
    for path, _, _ in os.walk(folder):
        flush_folder(Path(path))


def flush_folder(folder: Path) -> None:
    """Make the names in a folder survive a loss of power."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
