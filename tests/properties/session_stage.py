"""Where the test and the handlers of its agent meet: one queue of acts for each turn that runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import perdure

Key = tuple[str, int]


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
        self.started: Counter[Key] = Counter()
        self.heard: dict[Key, list[str]] = {}
        self.changed = asyncio.Event()

    def tell(self, session_id: str, number: int, kind: str, text: str = "") -> Act:
        act = Act(kind, text)
        self.acts[session_id, number].put_nowait(act)
        return act


stage: Stage | None = None


async def play(turn: perdure.Turn, ctx: perdure.TurnContext) -> str:
    assert stage is not None
    key = (ctx.session.id, turn.sequence)
    stage.started[key] += 1
    acts = stage.acts[key] = asyncio.Queue()
    stage.changed.set()
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
    if act.kind == "output":
        return await turn.output.write(act.text)
    if act.kind == "ask":
        return (await turn.ask(act.text, ["yes", "no"])).selected
    heard = stage.heard.setdefault(key, [])

    async def hear(message: perdure.Message) -> None:
        heard.append(message.text)

    await turn.on_message(hear)
    return None
