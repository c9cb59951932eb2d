"""Moving a whole installation from one store to another, whatever their engines: all of it or nothing.

Sessions go on where they were. What is only of the moment stays behind: leases, and who owned a session. Cursors of
the feed are good for the store that gave them and for no other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Final, TypeAlias

import msgspec

from perdure.crashpoints import areach
from perdure.errors import Conflict, StoreCorrupt
from perdure.store.moving import KINDS, Row, Side, Source, Target
from perdure.store.tools.places import open_source, open_target

Progress: TypeAlias = Callable[[str, str, int], None]
"""Told of `copy` or `verify`, a kind, and how many of its rows are done."""

_FILLED: Final = ("sessions", "environments", "receipts", "api_keys", "logs")


class Copied(msgspec.Struct, frozen=True):
    """How many rows of each kind were moved, and what is worth knowing about them."""

    rows: dict[str, int]
    notes: list[str]


async def copy(source: str, target: str, progress: Progress | None = None) -> Copied:
    """Move all that is in `source` to `target`, which must be empty, and compare them row by row before it counts.

    Both are addresses of stores. What is broken off leaves the target empty. Raises `StoreInUse` while a server or
    worker uses either of them, `Conflict` for a target that is not empty, `StoreCorrupt` when they differ afterwards.
    """
    tell = progress or (lambda *_: None)
    taken = open_source(source)
    await taken.open()
    try:
        given = open_target(target)
        await given.open()
        try:
            return await _copy(taken, given, tell)
        finally:
            await given.close()
    finally:
        await taken.close()


async def _copy(source: Source, target: Target, tell: Progress) -> Copied:
    await _check_empty(target)
    await areach("store.copy.begun")
    rows: Counter[str] = Counter()
    for kind in KINDS:
        rows[kind] = 0
        async for page in source.pages(kind):
            await target.put(kind, page)
            await areach("store.copy.page", kind)
            rows[kind] += len(page)
            tell("copy", kind, rows[kind])
    for kind in KINDS:
        await _verify(kind, source, target, tell)
    notes = await _notes(source, rows)
    await target.commit()
    await areach("store.copy.done")
    return Copied(dict(rows), notes)


async def _check_empty(target: Target) -> None:
    for kind in _FILLED:
        if found := await target.count(kind):
            raise Conflict(
                f"{target.where} is not empty: it has {found} {kind.replace('_', ' ')}. Nothing was changed; give an "
                "empty database, or a folder that does not exist yet."
            )


async def _verify(kind: str, source: Source, target: Target, tell: Progress) -> None:
    """Compare all rows of a kind, which come in one order from both."""
    done = 0
    there = _all(target, kind)
    async for page in source.pages(kind):
        for row in page:
            other = await anext(there, None)
            if other != row:
                raise _differs(kind, row)
        done += len(page)
        tell("verify", kind, done)
    if (extra := await anext(there, None)) is not None:
        raise _differs(kind, extra)


def _differs(kind: str, row: Row) -> StoreCorrupt:
    key = ", ".join(
        f"{name} {value}" for name, value in zip(KINDS[kind][:2], row, strict=False) if not _is_large(value)
    )
    return StoreCorrupt(
        f"What was written differs from what was read: {kind}, first at {key}. The source is as it was, and nothing "
        "of it is in the target."
    )


def _is_large(part: object) -> bool:
    return isinstance(part, bytes | tuple) and len(part) > 64


async def _notes(source: Source, rows: Counter[str]) -> list[str]:
    notes: list[str] = []
    kept = {row[0] async for row in _all(source, "archives")}
    bare = [row[0] async for row in _all(source, "deployments") if row[2] not in kept]
    if bare:
        notes.append(
            f"{len(bare)} deployments have no source in the store ({', '.join(bare[:3])}{', …' * (len(bare) > 3)}): "
            "workers on other machines cannot run them. Deploy the projects again."
        )
    if rows["commits"]:
        notes.append("Cursors of the feed of all sessions that clients have kept are not good for the new store.")
    return notes


async def _all(side: Side, kind: str) -> AsyncIterator[Row]:
    async for page in side.pages(kind):
        for row in page:
            yield row
