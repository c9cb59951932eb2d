"""From the beginning to the end of a process that has something to tell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager

from perdure.telemetry import exposition, metrics, traces
from perdure.telemetry.instruments import is_recording, recording
from perdure.telemetry.observer import News, observe


@asynccontextmanager
async def observed(
    subscribe: Callable[[Callable[[News], None]], Callable[[], None]],
    *,
    works: bool,
    awake: Callable[[], int],
    watchers: Callable[[], int],
) -> AsyncIterator[None]:
    """Count and trace what this process does until the block is left, if there is what can show it.

    `subscribe` is the store's; `works` tells whether turns run here. Raises `NotSupported` when the environment asks
    for traces that this installation cannot make.
    """
    before = is_recording()
    counts = exposition.install()
    tracer = traces.install(works=works)
    with ExitStack() as ends:
        ends.callback(recording, before)
        ends.callback(metrics.SESSIONS_AWAKE.follow(awake))
        ends.callback(metrics.WATCHERS.follow(watchers))
        if counts or tracer is not None:
            ends.callback(subscribe(observe))
        try:
            yield
        finally:
            if tracer is not None:
                # It waits for the collector, which the loop must not.
                await asyncio.to_thread(traces.uninstall)
