"""The agents that are measured. Payloads as in bench/load.py: a server's project cannot import the harness."""

from __future__ import annotations

import asyncio
import os
import time

import perdure

OUTPUT = "o" * 300
RESPONSE = "r" * 300

image = perdure.Image("hosted").from_("python:3.12-slim")
plain = perdure.Agent("plain", close_after_idle="1d")
waiting = perdure.Agent("waiting", close_after_idle="1d")
stuck = perdure.Agent("stuck", close_after_idle="1d")
hosted = perdure.Agent("hosted", template=perdure.Template("hosted", image=image), close_after_idle="1d")


@plain.turn
async def answer(turn, ctx):
    """One turn as all systems do it: one durable output, one response."""
    await turn.output.write(OUTPUT)
    await turn.respond(RESPONSE)


@stuck.turn
async def never(turn, ctx):
    """In flight for as long as its server lives."""
    await turn.output.write(OUTPUT)
    await asyncio.sleep(3600)


@waiting.turn
async def wait_first(turn, ctx):
    """In flight until the file that its input names is there."""
    await turn.output.write(OUTPUT)
    while not os.path.exists(turn.text):
        await asyncio.sleep(0.05)
    await turn.respond(RESPONSE)


@hosted.turn
async def tell(turn, ctx):
    """When the handler ran, and in which process."""
    return {"pid": os.getpid(), "running_at_us": time.time_ns() // 1000}
