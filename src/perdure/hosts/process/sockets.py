"""Unix sockets in folders of any depth: their addresses are limited to 107 bytes, so they are named by descriptor."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_BACKLOG: Final = 64


@contextmanager
def dial_path(folder: Path, name: str) -> Iterator[str]:
    """Yield a short path for the socket `name` in `folder`. Raises `FileNotFoundError` without the folder."""
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)


def listen(folder: Path, name: str) -> socket.socket:
    """Return a listening socket at `name`, put in place of whatever was there in one step."""
    draft = f".{name}.{os.getpid()}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with dial_path(folder, draft) as path:
            (folder / draft).unlink(missing_ok=True)
            listener.bind(path)
            listener.listen(_BACKLOG)
        (folder / draft).rename(folder / name)
    except BaseException:
        listener.close()
        raise
    return listener


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return pid and uid of the process that made the other end."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _gid = struct.unpack("3i", raw)
    return pid, uid
