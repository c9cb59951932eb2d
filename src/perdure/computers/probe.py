"""A program that tries out, on itself, which limits this host really enforces. Run as a file, not imported.

It prints one JSON object of booleans and then waits for the end of its standard input, so that its parent can try
things on it from outside.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

_MIB = 1 << 20


@contextmanager
def _limited(kind: int, value: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def holds_memory() -> bool:
    """Tell whether more writable memory than RLIMIT_DATA allows is refused."""
    with _limited(resource.RLIMIT_DATA, 128 * _MIB):
        try:
            mmap.mmap(-1, 256 * _MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()
        except OSError:
            return True
    return False


def holds_files() -> bool:
    """Tell whether more open files than RLIMIT_NOFILE allows are refused."""
    with _limited(resource.RLIMIT_NOFILE, 16):
        try:
            for _ in range(20):
                os.dup(0)
        except OSError:
            return True
        finally:
            os.closerange(3, 24)
    return False


def holds_file_size() -> bool:
    """Tell whether a file cannot grow over RLIMIT_FSIZE."""
    with tempfile.TemporaryFile(buffering=0) as file, _limited(resource.RLIMIT_FSIZE, 1024):
        try:
            return file.write(b"\0" * 4096) == 1024
        except OSError:
            return True


def holds_cores() -> bool:
    """Tell whether a process can be kept to one core."""
    one = {min(os.sched_getaffinity(0))}
    try:
        os.sched_setaffinity(0, one)
    except OSError:
        return False
    return os.sched_getaffinity(0) == one


if __name__ == "__main__":
    checks = {
        "memory": holds_memory,
        "open_files": holds_files,
        "file_size": holds_file_size,
        "cores": holds_cores,
    }
    print(json.dumps({name: check() for name, check in checks.items()}), flush=True)
    sys.stdin.read()
