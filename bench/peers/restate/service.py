"""The measured service: one virtual object a conversation, whose turns Restate runs one after the other.

The durable points of a turn: the invocation with its input, the result of the one step, the output of the handler.
"""

from __future__ import annotations

import restate
from restate import ObjectContext, VirtualObject

OUTPUT = "o" * 300
RESPONSE = "r" * 300

conversation = VirtualObject("Conversation")


async def work() -> str:
    return OUTPUT


@conversation.handler()
async def turn(ctx: ObjectContext, text: str) -> str:
    await ctx.run_typed("work", work)
    return RESPONSE


app = restate.app([conversation])
