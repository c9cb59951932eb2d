"""Pieces of runs' logs, whatever the engine: how they are cut, and put together again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from perdure.store.port import LOG_BYTES

PIECE: Final = 256 * 1024
"""The largest piece: one that holds a byte begins less than this before it."""


def cut(offset: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the pieces to store, each with the number of its first byte."""
    end = min(offset + len(data), LOG_BYTES)
    for start in range(offset, end, PIECE):
        yield start, data[start - offset : min(start + PIECE, end) - offset]


def join(offset: int, limit: int, pieces: Iterable[tuple[int, bytes]]) -> bytes:
    """Return bytes from an offset on, from pieces in order of their starts, up to the first gap.

    Pieces may overlap: a worker that does not know what another one has stored sends some of it again.
    """
    found = bytearray()
    for start, data in pieces:
        at = offset + len(found)
        if start > at:
            break
        found += data[at - start :]
    return bytes(found[:limit])
