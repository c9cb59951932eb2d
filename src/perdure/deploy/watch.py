"""Watching a project's source for `perdure dev`."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Final

from watchfiles._rust_notify import RustNotify

from perdure.deploy.archive import SourceArchive, pack
from perdure.deploy.source import find_folders
from perdure.errors import PerdureError, ProjectError

QUIET_MS: Final = 100
_LONGEST_WAIT_MS: Final = 1_000
_POLL_MS: Final = 300


async def watch_source(
    path: str | Path, known: str | None = None
) -> AsyncGenerator[SourceArchive | PerdureError, None]:
    """Yield a project's source, packed, whenever its digest has changed; `known` is the digest to begin from.

    Edits that follow each other within 100 ms are taken together. Source that cannot be packed (a secret among it, too
    large, a file that cannot be read) is yielded as its error, once, and watching goes on: the caller shows it and
    stays on the code that it has, as it does when building what is yielded fails.

    Never ends by itself; close it, or cancel the task that reads it. Raises `ProjectError` when the folder is gone.
    """
    path = await asyncio.to_thread(Path(path).resolve)
    root = path.parent if path.suffix == ".py" else path
    last = known
    while True:
        async with aclosing(_changes(root)) as changes:
            async for _ in changes:
                found = await asyncio.to_thread(_packed, path)
                mark = found.digest if isinstance(found, SourceArchive) else found.message
                if mark != last:
                    last = mark
                    yield found


async def _changes(root: Path) -> AsyncGenerator[None, None]:
    """Yield once watching has begun and after each burst of changes; end when the folders to watch have changed.

    Each folder is watched by itself, since watching all below the root would also watch the data folder, environments
    and caches, which are many and busy.
    """
    folders = await asyncio.to_thread(_folders, root)
    try:
        watcher = RustNotify(sorted(map(str, folders)), False, _must_poll(), _POLL_MS, False, False)
    except FileNotFoundError:
        return
    with watcher:
        yield
        while await _changed(watcher):
            yield
            if await asyncio.to_thread(_folders, root) != folders:
                return


async def _changed(watcher: RustNotify) -> bool:
    """Wait for the end of the next burst of changes."""
    stop = threading.Event()
    work = asyncio.ensure_future(asyncio.to_thread(watcher.watch, _LONGEST_WAIT_MS, QUIET_MS, 0, stop))
    try:
        return isinstance(await asyncio.shield(work), set)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([work])
        raise


def _must_poll() -> bool:
    """Tell whether the user asked watchfiles to poll, as some network and container mounts need."""
    return bool(os.environ.get("WATCHFILES_FORCE_POLLING"))


def _folders(root: Path) -> set[Path]:
    if not root.is_dir():
        raise ProjectError(f"The project's folder {root} is gone. What runs goes on with the code that it has.")
    try:
        return find_folders(root)
    except PerdureError:
        # What is wrong is told by packing; until it is put right, the root is enough to see that it changed.
        return {root}


def _packed(path: Path) -> SourceArchive | PerdureError:
    try:
        return pack(path)
    except PerdureError as error:
        return error
