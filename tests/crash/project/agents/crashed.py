"""Agents whose handlers note what they begin with and then do what their input says."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import perdure
from perdure import crashpoints
from perdure.testing import Ledger

# Processes of sessions see nothing of the server's environment but what their template names.
crashpoints.arm(os.environ.get("CRASH_POINT"))
small = perdure.Template(
    "small",
    image=perdure.Image("base").from_("python:3.12-slim"),
    cpu=1,
    memory="512MiB",
    pass_env=["CRASH_LEDGER", "CRASH_POINT"],
)


def note(kind: str, ctx: perdure.InitContext, **more: object) -> None:
    ledger = Ledger(os.environ["CRASH_LEDGER"])
    ledger.note(kind=kind, session=ctx.session.id, run=ctx.run.id, pid=os.getpid(), **more)


async def remember(ctx: perdure.InitContext) -> dict[str, int]:
    note("init", ctx)
    return {"turns": 0}


async def refuse_once(ctx: perdure.InitContext) -> dict[str, int]:
    if ctx.run.number == 1:
        raise RuntimeError("the first init fails")
    return await remember(ctx)


async def handle(turn: perdure.Turn, ctx: perdure.TurnContext) -> dict[str, object]:
    note("turn", ctx, sequence=turn.sequence)
    word, _, rest = turn.text.partition(" ")
    await WORDS[word](turn, rest)
    if ctx.init_result is not None:
        ctx.init_result["turns"] += 1
    return {"turn": turn.sequence, "in_process": ctx.init_result and ctx.init_result["turns"]}


async def say(turn: perdure.Turn, rest: str) -> None:
    await turn.output.write(rest)
    await turn.respond(f"said {rest}")


async def sketch(turn: perdure.Turn, rest: str) -> None:
    await turn.output.live("draft of " + rest)
    await say(turn, rest)


async def ask(turn: perdure.Turn, rest: str) -> None:
    answer = await turn.ask(rest)
    await turn.respond(f"answered {answer.text}")


async def reconsider(turn: perdure.Turn, rest: str) -> None:
    asking = asyncio.ensure_future(turn.ask(rest))
    await turn.output.write("asking")
    while not turn._execution._questions:
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    await turn.respond("never mind")


async def listen(turn: perdure.Turn, rest: str) -> None:
    heard: list[str] = []
    enough = asyncio.Event()

    async def hear(message: perdure.Message) -> None:
        heard.append(message.text)
        if message.text == "reject":
            enough.set()
            raise perdure.MessageRejected
        if len(heard) >= int(rest):
            enough.set()

    await turn.on_message(hear)
    await turn.output.write("listening")
    await enough.wait()
    await turn.respond("heard " + " ".join(heard))


async def fail(turn: perdure.Turn, rest: str) -> None:
    raise ValueError(rest)


async def wait(turn: perdure.Turn, rest: str) -> None:
    await turn.output.write("waiting")
    await asyncio.Event().wait()


async def wait_for(turn: perdure.Turn, rest: str) -> None:
    await turn.output.write("waiting")
    while not Path(rest).exists():
        await asyncio.sleep(0.005)
    await turn.respond("went on")


async def doze(turn: perdure.Turn, rest: str) -> None:
    """Have the process deaf after this turn, until there is a file."""

    def be_deaf() -> None:
        while not Path(rest).exists():
            time.sleep(0.005)

    asyncio.get_running_loop().call_later(0.05, be_deaf)


async def die(turn: perdure.Turn, rest: str) -> None:
    os._exit(int(rest))


async def noted(ctx: perdure.TurnContext, what: str) -> str:
    note("step", ctx, what=what)
    return what


async def refuse() -> None:
    raise ValueError("on purpose")


async def travel(turn: perdure.Turn, ctx: perdure.TurnContext) -> dict[str, object]:
    """Do steps of all kinds; what has no journal yet when a process is lost is done again."""
    note("turn", ctx, sequence=turn.sequence)
    key = await ctx.memo(f"key {turn.text}", lambda: str(os.getpid()))
    await ctx.step("search", noted, ctx, f"search {turn.sequence}", replay="safe")
    await turn.output.write(f"key {key}")
    try:
        await ctx.step("refuse", refuse, replay="safe")
    except perdure.errors.StepFailed:
        await turn.output.write("refused")
    try:
        booked = await ctx.step("book", noted, ctx, f"book {turn.sequence}")
    except perdure.errors.StepInterrupted:
        booked = "perhaps"
    await turn.respond(booked)
    return {"turn": turn.sequence, "key": key}


WORDS: dict[str, Callable[[perdure.Turn, str], Awaitable[None]]] = {
    word.__name__: word for word in (say, sketch, ask, reconsider, listen, fail, wait, wait_for, doze, die)
}

plain = perdure.Agent("plain")
warm = perdure.Agent("warm")
guest = perdure.Agent("guest", template=small)
sleeper = perdure.Agent("sleeper", template=small, hibernate_after_idle="50ms")
hasty = perdure.Agent("hasty", max_turn_duration="100ms")
moody = perdure.Agent("moody")
moody_guest = perdure.Agent("moody_guest", template=small)
brief = perdure.Agent("brief", close_after_idle="100ms")
steady = perdure.Agent("steady", recovery="resume")
steady_guest = perdure.Agent("steady_guest", template=small, recovery="resume")
for agent in (steady, steady_guest):
    agent.turn(travel)
for agent in (plain, warm, guest, sleeper, hasty, moody, moody_guest, brief):
    agent.turn(handle)
for agent in (warm, guest, sleeper):
    agent.init(remember)
for agent in (moody, moody_guest):
    agent.init(refuse_once)
