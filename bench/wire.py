"""The protocol between the harness and a driver: one JSON object a line, over the driver's stdin and stdout.

A driver is one system under test in a process of its own. The harness writes `{"op": name, ...arguments}` and the
driver answers `{"ok": result}` or `{"error": text}`. Only the standard library and uvloop are used: peers run this in
their own environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TextIO

Operation = Callable[..., Awaitable[Any]]


def take_stdout() -> TextIO:
    """Keep the real stdout for the protocol; whatever the system under test prints goes to stderr instead."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


async def serve(operations: Mapping[str, Operation], answers: TextIO) -> None:
    """Answer one request after the other until stdin ends."""
    requests = _requests(asyncio.get_running_loop())
    while (line := await requests.get()) is not None:
        answers.write(json.dumps(await _answer(operations, json.loads(line))) + "\n")
        answers.flush()


def _requests(loop: asyncio.AbstractEventLoop) -> asyncio.Queue[str | None]:
    """Lines of stdin as a queue: a plain thread, because pipes and event loops of all kinds agree on nothing else."""
    queue: asyncio.Queue[str | None] = asyncio.Queue()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(queue.put_nowait, line)
        loop.call_soon_threadsafe(queue.put_nowait, None)

    threading.Thread(target=read, daemon=True).start()
    return queue


async def _answer(operations: Mapping[str, Operation], request: dict[str, Any]) -> dict[str, Any]:
    operation = operations.get(request.pop("op"))
    if operation is None:
        return {"error": "this driver has no such operation"}
    try:
        return {"ok": await operation(**request)}
    except Exception:  # the harness must hear of it whatever it was
        return {"error": traceback.format_exc()}


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run a driver's `main` on uvloop and leave without waiting for the threads of the system under test."""
    import uvloop

    async def body() -> None:
        await main()

    uvloop.run(body())
    sys.stderr.flush()
    os._exit(0)
