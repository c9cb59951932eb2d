"""Giving the memory of stopped processes back to the host, where it has swap to hold it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perdure.computers.identity import ProcessIdentity, open_pidfd

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_SYS_PROCESS_MADVISE: Final = 440
_MADV_PAGEOUT: Final = 21
_RANGES_A_CALL: Final = 1024


@dataclass(frozen=True, slots=True)
class Released:
    """What a hibernation gave back: resident bytes before and after, and what stood in the way of more."""

    before: int
    after: int
    note: str = ""


class _Range(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def has_swap() -> bool:
    """Tell whether the host has swap with room in it."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("SwapFree:"):
            return int(line.split()[1]) > 0
    return False


def resident(identities: Iterable[ProcessIdentity]) -> int:
    """Return the bytes that these processes hold in memory; pages that they share count once for each."""
    return sum(_resident(identity.pid) for identity in identities)


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (FileNotFoundError, ProcessLookupError):
        return 0


def page_out(identities: list[ProcessIdentity]) -> Released:
    """Move the private memory of stopped processes to swap and report what that gave. May take a second per GB."""
    before = resident(identities)
    if not has_swap():
        return Released(before, before, "the host has no free swap: the processes are stopped but keep their memory")
    refused = [why for identity in identities if (why := _page_out(identity))]
    return Released(before, resident(identities), "; ".join(dict.fromkeys(refused)))


def _page_out(identity: ProcessIdentity) -> str:
    """Advise the kernel about one process; return why it refused, or nothing."""
    fd = open_pidfd(identity)
    if fd is None:
        return ""
    try:
        ranges = list(_private_ranges(identity.pid))
        for at in range(0, len(ranges), _RANGES_A_CALL):
            _advise(fd, ranges[at : at + _RANGES_A_CALL])
    except OSError as refusal:
        return f"the kernel refused to page out process {identity.pid}: {refusal.strerror}"
    finally:
        os.close(fd)
    return ""


def _private_ranges(pid: int) -> Iterator[tuple[int, int]]:
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, access, _offset, _device, inode, *name = line.split(maxsplit=5)
        if access == "rw-p" and inode == "0" and not (name and name[0].startswith("[v")):
            start, end = (int(edge, 16) for edge in span.split("-"))
            yield start, end - start


def _advise(pidfd: int, ranges: list[tuple[int, int]]) -> None:
    vector = (_Range * len(ranges))(*(_Range(*span) for span in ranges))
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.syscall(_SYS_PROCESS_MADVISE, pidfd, ctypes.byref(vector), len(ranges), _MADV_PAGEOUT, 0)
    if done < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
