"""Agents that do what their input says: a command and, after a space, its argument.

A command that waits does so for a file, its *gate*, and says so first in an output; beside the gate it keeps a ledger
with a line for each time that it was started.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import perdure

log = logging.getLogger("stage")
SMALL = perdure.Template("small", image=perdure.Image("base").from_("python:3.12-slim"), cpu=1, memory="512MiB")
COMMANDS: dict[str, Callable[..., Awaitable[Any]]] = {}
VERSION = 1


def command(handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    COMMANDS[handler.__name__] = handler
    return handler


async def begin(ctx: perdure.InitContext) -> dict[str, Any]:
    return {"turns": 0, "started_as": ctx.recovery.kind, "reason": ctx.recovery.reason}


async def act(turn: perdure.Turn, ctx: perdure.TurnContext) -> Any:
    state = ctx.init_result
    if state is not None:
        state["turns"] += 1
    name, _, argument = turn.text.partition(" ")
    return await COMMANDS[name](turn, state, argument)


def staged(agent: perdure.Agent) -> perdure.Agent:
    agent.init(begin)
    agent.turn(act)
    return agent


inline = staged(perdure.Agent("inline"))
process = staged(perdure.Agent("process", template=SMALL))
bare = perdure.Agent("bare")
bare.turn(act)
sleeper = staged(perdure.Agent("sleeper", template=SMALL, hibernate_after_idle="200ms"))
inline_hasty = staged(perdure.Agent("inline_hasty", max_turn_duration="1s"))
process_hasty = staged(perdure.Agent("process_hasty", template=SMALL, max_turn_duration="1s"))
inline_fleeting = staged(perdure.Agent("inline_fleeting", close_after_idle="300ms"))
process_fleeting = staged(perdure.Agent("process_fleeting", template=SMALL, close_after_idle="300ms"))
hopeless = perdure.Agent("hopeless", template=SMALL)
hopeless.turn(act)
inline_moody = perdure.Agent("inline_moody")
inline_moody.turn(act)
process_moody = perdure.Agent("process_moody", template=SMALL)
process_moody.turn(act)


@hopeless.init
async def crash(ctx: perdure.InitContext) -> None:
    os._exit(7)


@inline_moody.init
@process_moody.init
async def refuse(ctx: perdure.InitContext) -> dict[str, Any]:
    """Raise until there is a file of the name that is the session's key."""
    assert ctx.session.key is not None
    if not Path(ctx.session.key).exists():
        raise LookupError("the service is away")
    return await begin(ctx)


def raised(kind: str) -> BaseException:
    """Return what a handler may raise, by name."""
    return {
        "value": ValueError("on purpose"),
        "empty": KeyError(),
        "cancelled": asyncio.CancelledError("by itself"),
        "exit": SystemExit(3),
        "keyboard": KeyboardInterrupt(),
        "generator": GeneratorExit(),
        "group": BaseExceptionGroup("many", [asyncio.CancelledError()]),
        "surrogate": ValueError("a\ud800b\0c"),
        "unspeakable": Unspeakable(),
        "long": ValueError("x" * 5000),
    }[kind]


inline_odd = perdure.Agent("inline_odd")
inline_odd.turn(act)
process_odd = perdure.Agent("process_odd", template=SMALL)
process_odd.turn(act)


@inline_odd.init
@process_odd.init
async def be_odd(ctx: perdure.InitContext) -> None:
    """Raise what the session's key says."""
    assert ctx.session.key is not None
    raise raised(ctx.session.key)


inline_slow = perdure.Agent("inline_slow")
inline_slow.turn(act)
process_slow = perdure.Agent("process_slow", template=SMALL)
process_slow.turn(act)


@inline_slow.init
@process_slow.init
async def take_time(ctx: perdure.InitContext) -> dict[str, Any]:
    """Wait for the gate that is the session's key."""
    assert ctx.session.key is not None
    note(ctx.session.key)
    await opened(ctx.session.key)
    Path(f"{ctx.session.key}.over").touch()
    return await begin(ctx)


# --- commands


@command
async def count(turn: perdure.Turn, state: Any, argument: str) -> Any:
    return state


@command
async def version(turn: perdure.Turn, state: Any, argument: str) -> Any:
    return VERSION


@command
async def pid(turn: perdure.Turn, state: Any, argument: str) -> Any:
    return os.getpid()


async def opened(gate: str) -> None:
    while not Path(gate).exists():
        await asyncio.sleep(0.005)


def note(gate: str) -> None:
    with open(f"{gate}.ledger", "a") as ledger:
        ledger.write("started\n")


@command
async def wait(turn: perdure.Turn, state: Any, argument: str) -> Any:
    note(argument)
    await turn.output.write("waiting")
    await opened(argument)
    try:
        await turn.output.write("went on")
    finally:
        Path(f"{argument}.over").touch()
    await turn.respond("done")
    return state


@command
async def child(turn: perdure.Turn, state: Any, argument: str) -> Any:
    """Start a child that counts into a file for ever."""
    counting = "n=0; while :; do n=$((n+1)); echo $n > counted.new; mv counted.new counted; sleep 0.01; done"
    return subprocess.Popen(["sh", "-c", counting]).pid


@command
async def counted(turn: perdure.Turn, state: Any, argument: str) -> Any:
    return int(Path("counted").read_text())


@command
async def stream(turn: perdure.Turn, state: Any, argument: str) -> Any:
    """Write outputs 1, 2, 3 … until the gate is open, and return how many."""
    note(argument)
    number = 0
    while number == 0 or not Path(argument).exists():
        number += 1
        await turn.output.write(str(number))
        await asyncio.sleep(0.01)
    return number


@command
async def many(turn: perdure.Turn, state: Any, argument: str) -> Any:
    for number in range(int(argument)):
        await turn.output.write({"type": "json", "value": number})
    return int(argument)


@command
async def big(turn: perdure.Turn, state: Any, argument: str) -> Any:
    """Write outputs of 200 KiB until one is refused."""
    written = 0
    try:
        while True:
            await turn.output.write("x" * (200 * 1024))
            written += 1
    except perdure.PerdureError as error:
        return [written, error.code, error.details]


@command
async def write(turn: perdure.Turn, state: Any, argument: str) -> Any:
    """Try outputs that cannot be stored."""
    refused = []
    for content in ("x" * (300 * 1024), {"type": "json", "value": float("inf")}, ["x"] * 65, {"type": "sound"}, 7, []):
        try:
            await turn.output.write(content)  # type: ignore[arg-type]
        except perdure.PerdureError as error:
            refused.append(error.code)
    return refused


@command
async def strange(turn: perdure.Turn, state: Any, argument: str) -> Any:
    """Return what is not JSON, or only nearly."""
    values: dict[str, Any] = {
        "object": object(), "nan": [1, {"deep": float("nan")}], "bytes": b"x", "keys": {1: 2}, "set": {1},
        "huge": "x" * (2 << 20), "long": 2**70, "surrogate": "a\ud800b\0c", "tuple": (1, None), "none": None,
    }  # fmt: skip
    return values[argument]


@command
async def echo(turn: perdure.Turn, state: Any, argument: str) -> Any:
    await turn.output.write(turn.input)
    await turn.respond(turn.input)
    return turn.text


@command
async def respond(turn: perdure.Turn, state: Any, argument: str) -> Any:
    """Stage each response of a JSON list, a number being that much text, and return what was refused; null raises."""
    refused = []
    for response in json.loads(argument):
        if response is None:
            raise ValueError("on purpose")
        try:
            await turn.respond("x" * response if isinstance(response, int) else response)
        except perdure.PerdureError as error:
            refused.append(error.code)
    return refused


@command
async def pipe(turn: perdure.Turn, state: Any, argument: str) -> Any:
    """Pipe fragments of which the third cannot be stored."""

    async def fragments() -> AsyncIterator[Any]:
        yield "one"
        yield "two"
        yield {"type": "json", "value": float("nan")}
        yield "never"

    return await turn.output.pipe(fragments())


@command
async def block(turn: perdure.Turn, state: Any, argument: str) -> Any:
    """Block the event loop until the gate is open."""
    note(argument)
    await turn.output.write("blocking")
    while not Path(argument).exists():
        time.sleep(0.01)
    await turn.output.write("went on")
    return state


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@command
async def fail(turn: perdure.Turn, state: Any, argument: str) -> Any:
    await turn.respond("never seen")
    raise raised(argument)


@command
async def die(turn: perdure.Turn, state: Any, argument: str) -> Any:
    os._exit(9)


@command
async def stubborn(turn: perdure.Turn, state: Any, argument: str) -> Any:
    """Hear nothing of being cancelled until the gate is open, then go on writing."""
    cancelled = 0
    try:
        await turn.output.write("waiting")
    except asyncio.CancelledError:
        # Whoever saw the output may be faster than the news of it is here.
        cancelled += 1
    while not Path(argument).exists():
        try:
            await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            cancelled += 1
    Path(f"{argument}.cancelled").write_text(str(cancelled))
    try:
        await turn.output.write("too late")
    except perdure.PerdureError as error:
        Path(f"{argument}.refused").write_text(error.code)
    return "too late"


@command
async def deaf(turn: perdure.Turn, state: Any, argument: str) -> Any:
    """Hear one cancellation, and end in peace when the gate is open."""
    try:
        await turn.output.write("waiting")
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        Path(f"{argument}.heard").touch()
        await opened(argument)
    return "in peace"


@command
async def shout(turn: perdure.Turn, state: Any, argument: str) -> Any:
    """Print in each way that there is, and say a word that tells the sessions apart."""
    print(f"{argument} on stdout")
    print(f"{argument} on stderr", file=sys.stderr)
    sys.stdout.writelines([f"{argument} in ", "lines\n"])
    log.info("%s in a log", argument)
    await asyncio.to_thread(print, f"{argument} from a thread")
    print(f"{argument} lone \ud800 surrogate")
    try:
        raise ValueError(argument)
    except ValueError:
        log.exception("%s went wrong", argument)


# --- speaking with people


@command
async def ask(turn: perdure.Turn, state: Any, argument: str) -> Any:
    if argument:
        note(argument)
    answer = await turn.ask("What is your name?")
    return {"value": answer.value, "by": [answer.by_kind, answer.by_id], "state": state}


@command
async def choose(turn: perdure.Turn, state: Any, argument: str) -> Any:
    answer = await turn.ask("Which?", [perdure.Option("a", "Apple", value=1), perdure.Option("b", "Beer", value=[2])])
    return answer.selected


@command
async def unjoined(turn: perdure.Turn, state: Any, argument: str) -> Any:
    """Return while a question is still open."""
    asking = asyncio.ensure_future(turn.ask("Anybody there?"))
    await opened(argument)
    return asking.done()


@command
async def withdrawn(turn: perdure.Turn, state: Any, argument: str) -> Any:
    """Take a question back when the gate is open, and go on."""
    asking = asyncio.ensure_future(turn.ask("Anybody there?"))
    await opened(argument)
    asking.cancel()
    await asyncio.wait([asking])
    return asking.cancelled()


@command
async def steered(turn: perdure.Turn, state: Any, argument: str) -> Any:
    """Take as many messages as the argument says and return their texts."""
    heard: list[str] = []
    enough = asyncio.Event()

    @turn.on_message
    async def hear(message: perdure.Message) -> None:
        if message.text == "nonsense":
            raise perdure.MessageRejected("not that")
        if message.text.startswith("raise "):
            raise raised(message.text.removeprefix("raise "))
        heard.append(message.text)
        if len(heard) == int(argument):
            enough.set()

    await hear
    await turn.output.write("listening")
    await enough.wait()
    return heard


@command
async def live(turn: perdure.Turn, state: Any, argument: str) -> Any:
    await turn.output.live("thin")
    await turn.output.live("thinking")
    await turn.output.live("tool", slot="tool:1")
    await turn.output.write("waiting")
    await opened(argument)
    await turn.output.live("thinking about it")
    await turn.output.write("went on")


@command
async def ticks(turn: perdure.Turn, state: Any, argument: str) -> Any:
    """Write the time into a live slot, again and again, until the gate is open."""
    while not Path(argument).exists():
        await turn.output.live(str(time.time()))
        await asyncio.sleep(0.05)
