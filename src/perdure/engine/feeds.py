"""The feed of an environment, followed: woken by commits, looked at again by itself where hints may be missed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from perdure.store.port import Committed, FeedPage, Store

PAGE: Final = 200
_FIRST_LOOK: Final = 0.02
_LONGEST: Final = 1.0


async def follow_feed(store: Store, environment: str, after: str) -> AsyncIterator[FeedPage]:
    """Yield pages after a cursor as they come, the first at once and empty if there is nothing.

    What was committed shows only when everything before it can be seen, which may be a moment after the news of it:
    so there are several looks after each, ever further apart.
    """
    news = asyncio.Event()

    def heard(committed: Committed) -> None:
        if committed.head.environment == environment:
            news.set()

    unsubscribe = store.subscribe(heard)
    try:
        page = await store.feed(environment, after, PAGE)
        yield page
        pause = _FIRST_LOOK
        while True:
            news.clear()
            page = await store.feed(environment, page.cursor, PAGE)
            if page.events:
                pause = _FIRST_LOOK
                yield page
            elif not page.has_more and await _woken(news, pause):
                pause = _FIRST_LOOK
            else:
                pause = min(pause * 2, _LONGEST)
    finally:
        unsubscribe()


async def _woken(news: asyncio.Event, seconds: float) -> bool:
    """Wait for news, at most so long; tells whether there were any."""
    try:
        async with asyncio.timeout(seconds):
            await news.wait()
    except TimeoutError:
        return False
    return True
