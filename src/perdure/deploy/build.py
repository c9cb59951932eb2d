"""Building: from an uploaded archive to a deployment's folder and definitions. The store is not touched here."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

import msgspec

from perdure.authoring.discover import TIMEOUT, discover
from perdure.deploy.archive import flush_folder, unpack
from perdure.errors import StoreError
from perdure.records.definitions import AgentDefinition

_P = ParamSpec("_P")
_T = TypeVar("_T")
_UNFINISHED: Final = ".building-"


class BuiltDeployment(msgspec.Struct, frozen=True):
    """A deployment that is on disk and whose agents are known, not yet recorded in the store.

    `digest` is the hex SHA-256 of the source's content, `project` what `perdure.toml` names, `definitions` are sorted
    by id.
    """

    digest: str
    project: str | None
    definitions: tuple[AgentDefinition, ...]
    source_dir: Path


async def build(
    archive: bytes, target: Path, *, timeout: float = TIMEOUT, env: Mapping[str, str] | None = None
) -> BuiltDeployment:
    """Unpack an archive into the new folder `target`, once its agents have been read in another process.

    `timeout`, in seconds, bounds the reading; `env` is that process's environment (see `discover`). The folder appears
    whole and flushed, or not at all: when this raises, or is cancelled, nothing is left behind; after a crash,
    `sweep_unfinished` removes what is.

    Raises `ArchiveInvalid` and `SourceTooLarge` for the archive, what `discover` raises for the project, `StoreError`
    when the disk refuses.
    """
    building = await asyncio.to_thread(_begin, target)
    try:
        digest = await _uninterrupted(unpack, archive, building)
        found = await discover(building, timeout=timeout, env=env)
        await _uninterrupted(_publish, building, target)
    except BaseException:
        await _uninterrupted(_discard, building, target)
        raise
    return BuiltDeployment(digest, found.project, found.definitions, target)


async def lay_out(archive: bytes, target: Path) -> None:
    """Unpack a deployment that was built elsewhere into the new folder `target`: whole and flushed, or not at all.

    A folder that is there already, since another process has done it meanwhile, stays as it is. Raises
    `ArchiveInvalid`, and `StoreError` when the disk refuses.
    """
    if await asyncio.to_thread(target.exists):
        return
    building = await asyncio.to_thread(_begin, target)
    try:
        await _uninterrupted(unpack, archive, building)
        await _uninterrupted(_publish, building, target)
    except BaseException:
        await _uninterrupted(shutil.rmtree, building, ignore_errors=True)
        if not await asyncio.to_thread(target.exists):
            raise


def sweep_unfinished(deployments: Path, *, older_than: float = 0.0) -> list[Path]:
    """Remove what builds left in a folder of deployments when their server was killed, and return it.

    Where several processes build in one folder, `older_than` seconds spare what is under way.
    """
    latest = time.time() - older_than
    found = sorted(deployments.glob(f"{_UNFINISHED}*")) if deployments.is_dir() else []
    unfinished = [folder for folder in found if folder.stat().st_mtime <= latest]
    for folder in unfinished:
        shutil.rmtree(folder)
    return unfinished


def _begin(target: Path) -> Path:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            raise FileExistsError(errno.EEXIST, "a deployment is there already")
        folder = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=target.parent))
        folder.chmod(0o755)
    except OSError as error:
        raise _refused(target, error) from error
    return folder


def _publish(building: Path, target: Path) -> None:
    try:
        os.rename(building, target)
        flush_folder(target.parent)
    except OSError as error:
        raise _refused(target, error) from error


def _discard(building: Path, target: Path) -> None:
    """Remove an unfinished build; one that was published just before its cancellation has its final name."""
    shutil.rmtree(building if building.exists() else target, ignore_errors=True)


def _refused(target: Path, error: OSError) -> StoreError:
    return StoreError(
        f"The deployment's folder {target} cannot be made: {error.strerror}. Nothing was deployed; the current "
        "deployment goes on. Make room or make the folder writable, then deploy again."
    )


async def _uninterrupted(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call in a thread and wait for its end even when cancelled, so that it never works on a folder that is removed."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise
