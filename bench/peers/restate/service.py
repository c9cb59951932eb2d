"""The measured service: one virtual object a conversation, whose turns Restate runs one after the other.

The durable points of a turn: the invocation with its input, the result of the one step, the output of the handler.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import restate
from restate import ObjectContext, VirtualObject

OUTPUT = "o" * 300
RESPONSE = "r" * 300

# Steps that have begun to wait are told of in the first; all wait for the second.
WAITING, GATE = Path(os.environ["BENCH_WAITING"]), Path(os.environ["BENCH_GATE"])

conversation = VirtualObject("Conversation")


async def work() -> str:
    return OUTPUT


@conversation.handler()
async def turn(ctx: ObjectContext, text: str) -> str:
    await ctx.run_typed("work", work)
    return RESPONSE


async def wait_for_the_gate() -> str:
    with WAITING.open("a") as waiting:
        waiting.write("one\n")
    while not GATE.exists():
        await asyncio.sleep(0.05)
    return OUTPUT


@conversation.handler()
async def stay(ctx: ObjectContext, text: str) -> str:
    """In flight until the gate is opened."""
    await ctx.run_typed("wait", wait_for_the_gate)
    return RESPONSE


app = restate.app([conversation])
