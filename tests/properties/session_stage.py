"""Where the test and the handlers of its agent meet: one queue of acts for each turn that runs."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

import perdure

Key = tuple[str, int]
UNWELCOME = "no, thanks"


@dataclass
class Act:
    """Something that a handler is to do; `done` gets what came of it."""

    kind: str
    text: str = ""
    done: asyncio.Future[object] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Stage:
    """What runs, what was started how often, and what was heard."""

    def __init__(self) -> None:
        self.acts: dict[Key, asyncio.Queue[Act]] = {}
        self.started: list[tuple[Key, str]] = []
        self.let_go: dict[Key, asyncio.Event] = {}
        self.heard: dict[Key, list[str]] = {}
        self.changed = asyncio.Event()

    def end_clinging(self) -> None:
        for event in self.let_go.values():
            event.set()

    def tell(self, session_id: str, number: int, kind: str, text: str = "") -> Act:
        act = Act(kind, text)
        self.acts[session_id, number].put_nowait(act)
        return act


stage: Stage | None = None


async def play(turn: perdure.Turn, ctx: perdure.TurnContext) -> str:
    assert stage is not None
    key = (ctx.session.id, turn.sequence)
    stage.started.append((key, ctx.run.id))
    acts = stage.acts[key] = asyncio.Queue()
    stage.changed.set()
    try:
        return await _perform(turn, key, acts)
    except asyncio.CancelledError:
        if key not in stage.let_go:
            raise
        await _cling(stage.let_go[key])
        return "at last"


async def _cling(let_go: asyncio.Event) -> None:
    """Do not hear that one is to stop."""
    while not let_go.is_set():
        with suppress(asyncio.CancelledError):
            await let_go.wait()


async def _perform(turn: perdure.Turn, key: Key, acts: asyncio.Queue[Act]) -> str:
    while True:
        act = await acts.get()
        if act.kind == "finish":
            await turn.respond(act.text)
            return act.text
        if act.kind == "raise":
            raise ValueError(act.text)
        act.done.set_result(await _do(turn, act, key))


async def _do(turn: perdure.Turn, act: Act, key: Key) -> object:
    assert stage is not None
    if act.kind == "cling":
        stage.let_go[key] = asyncio.Event()
        return None
    if act.kind == "output":
        return await turn.output.write(act.text)
    if act.kind == "ask":
        return (await turn.ask(act.text, ["yes", "no"])).selected
    heard = stage.heard.setdefault(key, [])

    async def hear(message: perdure.Message) -> None:
        if message.text == UNWELCOME:
            raise perdure.MessageRejected
        heard.append(message.text)

    await turn.on_message(hear)
    return None
