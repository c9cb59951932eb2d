"""A process that writes to a store until it is killed; it prints each step, so that the parent knows what it was told.

Usage: crash_child.py FOLDER POINT ACTION NTH. Lines: `session ID`, then `sent N` and `answered N` for each input, and
`reached` when a crash point hangs.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time

from store_world import World, enqueue

from perdure import crashpoints
from perdure.store import open_store


def say(*words: object) -> None:
    print(*words, flush=True)


def watch_for_hang(nth: int) -> None:
    while (armed := crashpoints._armed) is None or armed.seen < nth:
        time.sleep(0.002)
    say("reached")


async def main(folder: str, point: str, action: str, nth: str) -> None:
    store = open_store(folder)
    await store.open()
    session = await World(store).create()
    say("session", session.id)
    if point:
        crashpoints.arm(f"{point}=Enqueue:{action}:{nth}")
    if action == "hang":
        threading.Thread(target=watch_for_hang, args=(int(nth),), daemon=True).start()
    for number in range(1, 1000):
        say("sent", number)
        await store.apply(enqueue(session.id, f"input {number}"))
        say("answered", number)


asyncio.run(main(*sys.argv[1:]))
