"""The load over HTTP, in a process of its own: `python -m bench.ours.caller FOLDER PORT`.

A turn is two requests, enqueue (or create) and wait, on a kept connection that no other turn uses meanwhile.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from bench import load, wire
from bench.httpline import Lines
from bench.ours import server


class Caller:
    """What one client program holds: its connections, and the sessions that it has made by name."""

    def __init__(self, port: int) -> None:
        self._lines = Lines(port)
        self._sessions: dict[str, str] = {}

    async def turn(self, conversation: str, index: int) -> None:
        line = await self._lines.take()
        session = self._sessions.get(conversation)
        receipt = await (server.enqueue(line, session) if session else server.create(line, "plain"))
        self._sessions[conversation] = receipt["session_id"]
        turn = await server.settled(line, receipt)
        assert turn["status"] == "completed", turn
        self._lines.give_back(line)


async def hello() -> dict[str, Any]:
    return {"system": "http", "versions": {}, "durability": "load over HTTP on kept connections"}


async def main() -> None:
    answers, caller = wire.take_stdout(), Caller(int(sys.argv[2]))
    operations: dict[str, wire.Operation] = {
        "hello": hello,
        "turns": partial(load.converse, caller.turn),
        "create": partial(load.open_many, caller.turn),
        "extend": partial(load.extend, caller.turn),
    }
    await wire.serve(operations, answers)


if __name__ == "__main__":
    wire.run(main)
