"""What the agents of the simulation do: what their input tells them to, word by word, noting all of it in a ledger."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, Protocol

from tests.simulation.virtual_loop import here

from perdure.errors import MessageRejected
from perdure.hosts.context import InitContext, Message, Turn, TurnContext
from perdure.records.definitions import AgentDefinition
from perdure.records.instants import SECOND


@dataclass(frozen=True)
class Note:
    """A handler has come this far: `began` is the first note of each. One that clings does not hear it is to stop."""

    at: float
    place: str
    session: str
    turn: int
    run: str
    what: str
    clings: bool


class Stage(Protocol):
    """What handlers know of the world."""

    bad_inits: dict[str, int]

    def effect(self, note: Note) -> None: ...

    def trace(self, text: str) -> None: ...


def _definition(name: str, **more: Any) -> AgentDefinition:
    return AgentDefinition(id=name, module=f"agents.{name}", file=f"agents/{name}.py", line=1, **more)


DEFINITIONS: Final = (
    _definition("brief", close_after_idle=4 * SECOND),
    _definition("careful", has_init=True),
    _definition("hasty", max_turn_duration=2 * SECOND),
    _definition("plain"),
)


class Handlers:
    """The handlers of one world."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        agents = {
            each.id: SimpleNamespace(turn_handler=self.play, init_handler=self.prepare if each.has_init else None)
            for each in DEFINITIONS
        }
        self.project: Final[Any] = SimpleNamespace(agents=agents)

    async def prepare(self, context: InitContext) -> str:
        """Take a little time, and fail as often as is planned."""
        await asyncio.sleep(0.05)
        left = self._stage.bad_inits.get(context.session.id, 0)
        if left:
            self._stage.bad_inits[context.session.id] = left - 1
            raise ValueError("a bad init")
        return context.run.id

    async def play(self, turn: Turn, context: TurnContext) -> str:
        """Do what the words say.

        `w` writes, `l` overwrites a live slot, `s:N` waits, `q` asks, `m` takes messages, `r` stages the response, `x`
        raises, `c:N` hears no cancellation for N seconds.
        """
        clings = "c:" in turn.text
        self._note(turn, context, "began")
        assert context.init_result in (None, context.run.id)
        for word in turn.text.split():
            name, _, argument = word.partition(":")
            await self._do(name, float(argument or 0), turn)
            self._note(turn, context, word, clings=clings)
        return turn.text

    def _note(self, turn: Turn, context: TurnContext, what: str, *, clings: bool = False) -> None:
        loop = asyncio.get_running_loop()
        note = Note(loop.time(), here(), context.session.id, turn.sequence, context.run.id, what, clings)
        self._stage.effect(note)
        self._stage.trace(f"turn {turn.sequence} of {context.session.id[-6:]} in run {context.run.number}: {what}")

    async def _do(self, name: str, argument: float, turn: Turn) -> None:
        if name == "w":
            await turn.output.write("out")
        elif name == "l":
            await turn.output.live("so far")
        elif name == "s":
            await asyncio.sleep(argument)
        elif name == "q":
            await turn.ask("well?", ["yes", "no"])
        elif name == "m":
            await _take_messages(turn)
        elif name == "r":
            with suppress(Exception):
                await turn.respond("done")
        elif name == "x":
            raise ValueError("as was asked")
        elif name == "c":
            await _cling(argument)


async def _take_messages(turn: Turn) -> None:
    async def hear(message: Message) -> None:
        if message.text.startswith("x"):
            raise MessageRejected
        await asyncio.sleep(0.01)

    with suppress(Exception):
        await turn.on_message(hear)


async def _cling(seconds: float) -> None:
    """Wait without hearing that one is to stop."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    cancelled = False
    while loop.time() < until:
        try:
            await asyncio.sleep(until - loop.time())
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
