"""Agents that note, outside of the database, what they begin, do and end, and then do what their input says.

An input is `KEY WORD ARGUMENT`. Whatever a handler commits names the nonce of that very call, so that the log tells
which call wrote it.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import perdure
from perdure.testing import Ledger

small = perdure.Template(
    "small",
    image=perdure.Image("base").from_("python:3.12-slim"),
    cpu=1,
    memory="512MiB",
    pass_env=["CHAOS_LEDGER", "CHAOS_NODE"],
)


def uptime() -> float:
    """Return seconds of a clock that is the same for all nodes: theirs are moved by chaos."""
    return float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])


@dataclass(frozen=True)
class Call:
    """One call of a handler."""

    turn: perdure.Turn
    ctx: perdure.TurnContext
    nonce: str

    def note(self, kind: str, **more: object) -> None:
        """Append to this node's ledger, and wait for the disk."""
        Ledger(os.environ["CHAOS_LEDGER"]).note(
            kind=kind,
            node=os.environ["CHAOS_NODE"],
            pid=os.getpid(),
            session=self.ctx.session.id,
            run=self.ctx.run.id,
            turn=self.turn.id,
            sequence=self.turn.sequence,
            nonce=self.nonce,
            at=uptime(),
            **more,
        )

    async def write(self, text: object) -> None:
        await self.turn.output.write(f"{self.nonce} {text}")


async def handle(turn: perdure.Turn, ctx: perdure.TurnContext) -> dict[str, object]:
    call = Call(turn, ctx, uuid.uuid4().hex)
    call.note("begin")
    _key, word, argument = turn.text.split(" ", 2)
    await WORDS[word](call, argument)
    call.note("end")
    return {"nonce": call.nonce, "sequence": turn.sequence, "run": ctx.run.id, "node": os.environ["CHAOS_NODE"]}


async def say(call: Call, argument: str) -> None:
    for number in range(int(argument)):
        await call.write(number)
    await call.turn.respond(f"{call.nonce} said {argument}")


async def draft(call: Call, argument: str) -> None:
    for number in range(int(argument)):
        await call.turn.output.live(f"{call.nonce} {number}")
        await asyncio.sleep(0.02)
    await call.write("drafted")


async def work(call: Call, argument: str) -> None:
    """Take some milliseconds, with an effect in the middle that must not be had twice."""
    await call.write("begins")
    await asyncio.sleep(int(argument) / 2000)
    call.note("effect", name="charge")
    await asyncio.sleep(int(argument) / 2000)
    await call.write("ends")


async def ask(call: Call, argument: str) -> None:
    answer = await call.turn.ask(f"{call.nonce} {argument}")
    call.note("heard", text=answer.text)
    await call.turn.respond(f"{call.nonce} heard {answer.text}")


async def listen(call: Call, argument: str) -> None:
    """Take messages for some milliseconds."""

    async def hear(message: perdure.Message) -> None:
        call.note("message", message=message.id, text=message.text)

    await call.turn.on_message(hear)
    await call.write("listens")
    await asyncio.sleep(int(argument) / 1000)


async def fail(call: Call, argument: str) -> None:
    await call.write("fails")
    raise ValueError(f"{call.nonce} fails on purpose")


async def die(call: Call, argument: str) -> None:
    """Take the process down. For agents that have one of their own."""
    os._exit(int(argument))


async def remember(ctx: perdure.InitContext) -> dict[str, int]:
    return {}


WORDS: dict[str, Callable[[Call, str], Awaitable[None]]] = {
    word.__name__: word for word in (say, draft, work, ask, listen, fail, die)
}

plain = perdure.Agent("plain")
warm = perdure.Agent("warm")
guest = perdure.Agent("guest", template=small)
for agent in (plain, warm, guest):
    agent.turn(handle)
for agent in (warm, guest):
    agent.init(remember)
