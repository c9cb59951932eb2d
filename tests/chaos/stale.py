"""The one story that only the fence can end well: an owner sleeps through its lease without knowing it.

A worker is about to start a turn when its machine is suspended. Another takes the session over and does that turn. Then
that one stalls for a moment, too, just as the next input comes; and the first one goes on with what it was about to do.
Its clock tells it that nothing has been: its lease looks good. It starts the turn, unless the fence refuses it. Hints
would tell it in time by luck, so there are none; and it does not see what its own commit tells of the session's owner.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from tests.chaos.asking import Caller
from tests.chaos.checker import Problem, find
from tests.chaos.collecting import collect
from tests.chaos.evidence import Asked, Evidence
from tests.chaos.nemeses import Stage
from tests.chaos.nodes import Node
from tests.chaos.run import WORKERS, Options, staged, start

from perdure.client.aio import AsyncClient
from perdure.testing import CrashFile, Ledger

BROKEN: Final = Path(__file__).with_name("broken")
LEASE: Final = 6.0
_PATIENCE: Final = 60.0
_GLANCE: Final = 0.02
_WHILE: Final = 1.5


async def wake_a_stale_owner(*, fence: bool) -> list[Problem]:
    """Play the story with or without the check of the fence, and return what the checker finds."""
    with tempfile.TemporaryDirectory(prefix="perdure-stale-") as folder:
        crash = CrashFile(Path(folder) / "crash")
        extra = {
            **crash.environment,
            "PYTHONPATH": os.pathsep.join([str(BROKEN), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
            "CHAOS_HALTS": "on",
            "CHAOS_BLIND": "on",
            "CHAOS_FENCE": "on" if fence else "off",
        }
        options = Options(1, lease=LEASE, extra=extra, jumps=(), sleepers=WORKERS, hints=False)
        async with staged(options) as (stage, _):
            await start(stage)
            story = _Story(stage, crash)
            try:
                await story.play()
            finally:
                await story.caller.close()
            for node in stage.nodes:
                await node.stop(signal.SIGTERM)
            story.evidence.histories = await collect(stage.database.url())
            for node in stage.nodes:
                story.evidence.ledger += Ledger(node.ledger).entries()
    return find(story.evidence)


class _Story:
    def __init__(self, stage: Stage, crash: CrashFile) -> None:
        self.evidence = Evidence()
        self.caller = Caller([stage.servers[0].url], self.evidence, 1)
        self._stage = stage
        self._crash = crash
        self._session = ""

    async def play(self) -> None:
        # Without a fence two that take over take it from each other, and the story is another one.
        await self._stage.workers[2].stop(signal.SIGTERM)
        await self._create()
        self._crash.arm("engine.act.before", "raise", label="start_turn")
        first = await self._enqueue("say 1")
        note = await self._crash.wait(_PATIENCE)
        asleep, since = self._node_of(note.pid), time.monotonic()
        await self._ended(first)
        stalled = next(node for node in self._stage.workers if self._began(node, first))
        stalled.signal(signal.SIGSTOP)
        second = await self._enqueue("work 1000")
        asleep.sleep_through(time.monotonic() - since)
        asleep.signal(signal.SIGCONT)
        await self._waits_for(asleep, second)
        stalled.signal(signal.SIGCONT)
        await self._ended(second)

    async def _create(self) -> None:
        key = self.caller.key()
        text = f"{key} say 1"
        asked = Asked("create", key, None, text)

        async def ask(client: AsyncClient) -> Any:
            return await client.agents["plain"].create_session(text=text, idempotency_key=key)

        receipt = await self._surely(asked, ask)
        self._session = asked.session = receipt.session_id
        await self._ended(receipt.turn_id)

    async def _enqueue(self, words: str) -> str:
        key = self.caller.key()
        text = f"{key} {words}"

        async def ask(client: AsyncClient) -> Any:
            return await client.session(self._session).enqueue(text=text, idempotency_key=key)

        turn: str = (await self._surely(Asked("enqueue", key, self._session, text), ask)).turn_id
        return turn

    async def _surely(self, asked: Asked, ask: Any) -> Any:
        until = time.monotonic() + _PATIENCE
        return await self.caller.ask(asked, ask, lambda: until)

    async def _ended(self, turn: str) -> None:
        async with asyncio.timeout(_PATIENCE):
            while True:
                shown = await self.caller.read(
                    lambda client: client.session(self._session).turn(turn).get(), lambda: float("inf")
                )
                if shown.status not in ("queued", "running"):
                    return
                await asyncio.sleep(_GLANCE)

    def _node_of(self, pid: int) -> Node:
        return next(node for node in self._stage.workers if node.pid == pid)

    @staticmethod
    def _began(node: Node, turn: str) -> bool:
        return bool(Ledger(node.ledger).entries(kind="begin", turn=turn))

    async def _waits_for(self, asleep: Node, turn: str) -> None:
        """Give the one that was asleep time to do harm."""
        until = time.monotonic() + _WHILE
        while time.monotonic() < until and not self._began(asleep, turn):
            await asyncio.sleep(_GLANCE)
