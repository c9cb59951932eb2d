"""Removing what is older than the policies of its environments allow, a little at a time, beside live traffic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from perdure.store.port import Pruned, Store

ROWS: Final = 2_000
"""How many rows one round removes, before it lets others go first."""

Progress: TypeAlias = Callable[[str, Pruned], None]


async def prune(
    store: Store,
    now: int,
    environments: Sequence[str] | None = None,
    *,
    rows: int = ROWS,
    pause: float = 0.0,
    progress: Progress | None = None,
) -> dict[str, Pruned]:
    """Remove all that is due, round after round, and return what has gone from each environment.

    `pause`: seconds between two rounds. `progress` is told of what has gone so far. May be broken off at any point.
    Raises `EnvironmentNotFound` for an environment that does not exist.
    """
    if environments is None:
        environments = [found.id for found in await store.environments()]
    return {one: await _prune(store, now, one, rows, pause, progress) for one in environments}


async def _prune(
    store: Store, now: int, environment: str, rows: int, pause: float, progress: Progress | None
) -> Pruned:
    total = Pruned(done=False)
    while not total.done:
        more = await store.prune(environment, now, rows)
        total = Pruned(
            more.done,
            total.sessions + more.sessions,
            total.turns + more.turns,
            total.events + more.events,
            total.receipts + more.receipts,
        )
        if progress is not None:
            progress(environment, total)
        await asyncio.sleep(pause)
    return total
