"""A process that writes to a session which others write to as well. Usage: postgres_child.py URL SESSION COUNT."""

from __future__ import annotations

import asyncio
import sys

from store_world import enqueue, receipt

from perdure.store import open_store


async def main(url: str, session: str, count: str) -> None:
    store = open_store(url)
    await store.open()
    answers = await asyncio.gather(*[store.apply(enqueue(session, str(number))) for number in range(int(count))])
    await store.close()
    print(*[receipt(answer)["sequence"] for answer in answers])


asyncio.run(main(*sys.argv[1:]))
