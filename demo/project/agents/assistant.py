"""The tutorial's agent as it stands at its end, with short timers, and with the id of its process in each result."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import perdure

# A handler's working directory is its Computer's durable folder, /workspace.
LOG = Path("log.txt")

computer = perdure.Template(
    "assistant",
    image=perdure.Image("assistant").from_("python:3.12-slim"),
    cpu=1,
    memory="1GiB",
)

assistant = perdure.Agent(
    "assistant",
    template=computer,
    close_after_idle="1d",
    hibernate_after_idle="1s",
    max_turn_duration="10m",
)


@dataclass
class Live:
    """Lives as long as the session's process: it could as well hold a client or a child process."""

    started_as: str
    turns: int = 0


@assistant.init
async def init(ctx: perdure.InitContext) -> Live:
    """Run once per process, before its first turn."""
    return Live(started_as=ctx.recovery.kind)


@assistant.turn
async def turn(turn: perdure.Turn, ctx: perdure.TurnContext) -> dict[str, Any]:
    """Run once per accepted input."""
    live: Live = ctx.init_result
    text = turn.text.strip()
    if not text:
        raise ValueError("Send some text")

    live.turns += 1
    entries = record(f"{turn.sequence}: {text}")
    if text.startswith("think"):
        await think(turn)

    await turn.output.write(f'Recorded "{text}"')
    await turn.respond(f"Turn {live.turns} in this process. Log entries: {entries}.")
    return {
        "turns_in_process": live.turns,
        "log_entries": entries,
        "started_as": live.started_as,
        "pid": os.getpid(),
    }


async def think(turn: perdure.Turn) -> None:
    """Stay in the middle of the turn until somebody says something to it."""
    told = asyncio.Event()

    async def hear(message: perdure.Message) -> None:
        await turn.output.write(f'Heard "{message.text}"')
        told.set()

    await turn.on_message(hear)
    await turn.output.write("Thinking until I am told to go on")
    await told.wait()


def record(entry: str) -> int:
    """Append a line to the log, flushed to disk, and return how many it has."""
    with LOG.open("a+", encoding="utf-8") as log:
        log.write(entry.replace("\n", " ") + "\n")
        log.flush()
        os.fsync(log.fileno())
        log.seek(0)
        return sum(1 for _ in log)
