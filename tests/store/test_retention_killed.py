"""A process that is killed while it prunes leaves a store that agrees with itself, and is pruned by the next."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest
from store_life import Life
from store_world import ENVIRONMENT, Clock, Engine, World

from perdure.crashpoints import TOOL_POINTS
from perdure.store.port import Retention
from perdure.store.tools.check import check
from perdure.store.tools.prune import prune

DAY = 86_400_000_000
PRUNING = """
import asyncio, sys
from perdure.store import open_store
from perdure.store.tools.prune import prune

async def main():
    store = open_store(sys.argv[1])
    await store.open()
    await prune(store, int(sys.argv[2]), rows=15)

asyncio.run(main())
"""


@pytest.mark.parametrize("point", [point for point in TOOL_POINTS if point.startswith("store.prune")])
async def test_a_prune_that_is_killed_leaves_a_store_that_is_well(
    world: World, engine: Engine, clock: Clock, point: str
) -> None:
    life = Life()
    await life.live(world)
    ended = await world.create()
    await world.turns(ended, 3)
    head = await world.head(ended)
    assert head.run is not None
    await world.apply(life.sleep(head))
    await world.apply(life.close(head))
    await world.store.set_retention(ENVIRONMENT, Retention(events=DAY, sessions=DAY, receipts=DAY))
    await world.store.close()
    now = clock.now + 2 * DAY
    child = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", PRUNING, engine.address, str(now)],
        env={**os.environ, "PERDURE_CRASH_POINT": f"{point}:kill"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert "error" not in [finding.severity for finding in await check(engine.address)]
    again = engine.store()
    await again.open()
    await prune(again, now)
    assert await again.head(ended.id) is None
    await again.close()
    assert "error" not in [finding.severity for finding in await check(engine.address)]
