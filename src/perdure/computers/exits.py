"""Noticing that processes are gone, children of ours or not, without polling: a pidfd turns readable at the exit."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable

from perdure.computers.identity import ProcessIdentity, open_pidfd


async def wait_exit(identity: ProcessIdentity) -> None:
    """Return when exactly this process has exited; at once when it is gone already."""
    fd = open_pidfd(identity)
    if fd is not None:
        await _until_readable(fd)


async def wait_child(pid: int) -> None:
    """Return when a child of ours that nobody has reaped yet has exited."""
    await _until_readable(os.pidfd_open(pid))


async def _until_readable(fd: int) -> None:
    """Wait for the descriptor, and close it."""
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    loop.add_reader(fd, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)


async def wait_gone(identities: Iterable[ProcessIdentity], timeout: float) -> bool:
    """Wait up to `timeout` seconds until all these processes have exited, and tell whether they have."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout), asyncio.TaskGroup() as group:
            for identity in identities:
                group.create_task(wait_exit(identity))
        return True
    return False
