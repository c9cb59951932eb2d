"""What the clients of a chaos run do: many conversations at once, each by a script of its own seed."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from tests.chaos.asking import Caller
from tests.chaos.evidence import Asked
from tests.chaos.reading import Reader, Readers

from perdure.client.aio import AsyncClient, AsyncSessionHandle
from perdure.testing.history import ENDS, TERMINAL

AGENTS: Final = ("plain", "plain", "warm", "guest")
_BACKLOG: Final = 5
_PATIENCE: Final = 90.0
_LIVES: Final = 25.0


@dataclass
class Progress:
    """What is under way, as clients know it."""

    open: dict[str, float] = field(default_factory=dict)
    """Turns that were accepted and have not ended, and when they were accepted."""
    latencies: list[tuple[float, float]] = field(default_factory=list)
    """When a turn ended, and how many seconds after it was queued, as a reader heard of both."""
    ends: dict[str, int] = field(default_factory=dict)

    def heard(self, event: dict[str, Any]) -> None:
        """Follow what a reader hears."""
        kind, turn = event["type"], event["turn_id"]
        if kind == "turn.queued":
            self.open[turn] = event["heard"]
        elif kind in ENDS:
            self.ends[ENDS[kind]] = self.ends.get(ENDS[kind], 0) + 1
            if (queued := self.open.pop(turn, None)) is not None:
                self.latencies.append((event["heard"], event["heard"] - queued))


class Conversation:
    """One session, as its client lives it."""

    def __init__(self, load: Load, number: int) -> None:
        self.load = load
        self.random = random.Random(f"{load.seed}/{number}")
        self.number = number
        self.agent = self.random.choice(AGENTS)
        self.session = ""
        self.status = "open"
        self.open: set[str] = set()
        self.listening: str | None = None
        self.news = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._reader: Reader | None = None

    # --- asking

    async def _ask(self, what: str, ask: Callable[[AsyncSessionHandle, str], Awaitable[Any]], text: str = "") -> Any:
        key = self.load.caller.key()
        told = f"{key} {text}" if text else None
        asked = Asked(what, key, self.session, told)
        return await self.load.caller.ask(
            asked, lambda client: ask(client.session(self.session), key if told is None else told), self.load.hard_end
        )

    async def enqueue(self, words: str) -> Any:
        """Say something to the session; it becomes a turn."""
        return await self._ask(
            "enqueue", lambda session, text: session.enqueue(text=text, idempotency_key=text.split()[0]), words
        )

    async def steer(self, words: str) -> Any:
        """Say something to the running turn if it listens, else to the session."""
        return await self._ask(
            "send", lambda session, text: session.send(text=text, idempotency_key=text.split()[0]), words
        )

    async def message(self, turn: str, words: str) -> Any:
        """Say something to one turn."""
        return await self._ask(
            "message", lambda session, text: session.turn(turn).send(text=text, idempotency_key=text.split()[0]), words
        )

    async def interrupt(self) -> None:
        """Stop what runs, and let the session go on a little later."""
        told = await self._ask("interrupt", lambda session, key: session.interrupt(idempotency_key=key))
        await asyncio.sleep(self.random.random())
        if told is not None:
            await self.resume(told.hold_id)

    async def resume(self, hold: str) -> None:
        """Release a hold."""
        await self._ask("resume", lambda session, key: session.resume(hold, idempotency_key=key))

    async def close(self) -> None:
        """Take no more, and end when all is done."""
        await self._ask("close", lambda session, key: session.close(idempotency_key=key))

    async def _answer(self, ask_id: str) -> None:
        await asyncio.sleep(self.random.random() * 0.5)
        key = self.load.caller.key()
        text = f"because {key}"
        asked = Asked("answer", key, self.session, text)

        async def ask(client: AsyncClient) -> Any:
            return await client.session(self.session).ask(ask_id).answer(text, response_id=key)

        await self.load.caller.ask(asked, ask, self.load.hard_end)

    # --- hearing

    def heard(self, event: dict[str, Any]) -> None:
        """Hear an event, and do what a person or an operator does about it."""
        kind, turn, data = event["type"], event["turn_id"], event["data"]
        self.load.progress.heard(event)
        if kind == "turn.queued":
            self.open.add(turn)
        elif kind in ENDS:
            self.open.discard(turn)
            self.listening = None if self.listening == turn else self.listening
        elif kind == "turn.output" and data["content"][0]["text"].endswith(" listens"):
            self.listening = turn
        elif kind == "ask.created":
            self._begin(self._answer(data["ask_id"]))
        elif kind == "session.held" and data["issuer"]["kind"] == "system":
            self._begin(self.resume(data["hold_id"]))
        elif kind in ("session.closed", "session.cancelled", "session.closing"):
            self.status = kind.partition(".")[2]
        self.news.set()

    def _begin(self, doing: Awaitable[Any]) -> None:
        task = asyncio.ensure_future(doing)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.load.broken.append(error)

    # --- the course of it

    async def live(self, until: Callable[[], float]) -> None:
        """Begin, and talk until the time is up or enough was said."""
        if not await self._create():
            return
        self._reader = Reader(self.load.readers, self.session, f"reader of {self.number}", self.heard)
        self._begin(self._reader.follow())
        enough = time.monotonic() + self.random.expovariate(1 / _LIVES)
        while time.monotonic() < min(until(), enough):
            await self._act()
            await asyncio.sleep(self.random.expovariate(1 / self.load.pause))
            await self._catch_up(until)
        if time.monotonic() < until() and self.random.random() < 0.7:
            await self.close()

    async def _create(self) -> bool:
        caller = self.load.caller
        key = caller.key()
        text = f"{key} say 1" if self.random.random() < 0.5 else None
        name = f"{self.load.seed}-{self.number}" if self.random.random() < 0.7 else None

        async def ask(client: AsyncClient) -> Any:
            agent = client.agents[self.agent]
            if name is not None and self.number % 2:
                return await agent.get_or_create(name, text=text, idempotency_key=key)
            return await agent.create_session(text=text, key=name, idempotency_key=key)

        receipt = await caller.ask(asked := Asked("create", key, None, text), ask, self.load.hard_end)
        if receipt is None:
            return False
        self.session = asked.session = receipt.session_id
        self.load.sessions.append(self.session)
        return True

    async def _act(self) -> None:
        chance = self.random.random()
        if chance < 0.08:
            await self.interrupt()
        elif chance < 0.20:
            await self.steer(f"say {self.random.randint(1, 2)}")
        elif chance < 0.32 and self.listening is not None:
            await self.message(self.listening, "say 1")
        elif chance < 0.42:
            for _ in range(3):
                await self.enqueue(self._words())
        else:
            await self.enqueue(self._words())

    def _words(self) -> str:
        kinds = {
            "say": (4, lambda: self.random.randint(1, 3)),
            "draft": (2, lambda: self.random.randint(3, 8)),
            "work": (4, lambda: self.random.choice((50, 200, 800, 2000))),
            "listen": (2, lambda: self.random.randint(300, 1500)),
            "ask": (2, lambda: "why"),
            "fail": (1, lambda: "now"),
            "die": (1 if self.agent == "guest" else 0, lambda: 9),
        }
        (word,) = self.random.choices(list(kinds), [weight for weight, _ in kinds.values()])
        return f"{word} {kinds[word][1]()}"

    async def _catch_up(self, until: Callable[[], float]) -> None:
        """Wait while too much is under way."""
        while len(self.open) >= _BACKLOG and time.monotonic() < until():
            self.news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self.news.wait()

    # --- the end

    async def settle(self) -> None:
        """Now that everything is healed: let go of all holds and wait until the session is at rest, then end it."""
        if not self.session:
            return
        await self._until_rest()
        await self._end_some()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    async def _until_rest(self) -> None:
        while time.monotonic() < self.load.hard_end():
            shown = await self.load.caller.read(lambda client: client.session(self.session).get(), self.load.hard_end)
            if shown is None:
                return
            busy = shown.active_turn_id or shown.queued or shown.holds
            if not busy and shown.status != "closing" and (shown.status not in TERMINAL or shown.run is None):
                return
            for hold in shown.holds:
                await self.resume(hold.id)
            await asyncio.sleep(0.3)

    async def _end_some(self) -> None:
        """Close most sessions, so that their readers come to the end of the stream, too."""
        if self.status == "open" and self.random.random() < 0.7:
            await self.close()
            await self._until_rest()
        if self._reader is not None:
            await self._read_all(self._reader)

    async def _read_all(self, reader: Reader) -> None:
        """Give the reader time to hear the last of it."""
        shown = await self.load.caller.read(lambda client: client.session(self.session).get(), self.load.hard_end)
        if shown is None:
            return
        reader.reading.due = shown.last_event_seq
        while time.monotonic() < self.load.hard_end():
            if reader.last >= shown.last_event_seq and (reader.reading.ended or shown.status not in TERMINAL):
                return
            await asyncio.sleep(0.05)


class Load:
    """All conversations of a run: so many at once, one after another. `pause` is how long each takes between acts."""

    def __init__(self, caller: Caller, readers: Readers, seed: int, *, at_once: int, pause: float) -> None:
        self.caller = caller
        self.readers = readers
        self.seed = seed
        self.pause = pause
        self.at_once = at_once
        self.progress = Progress()
        self.sessions: list[str] = []
        self.conversations: list[Conversation] = []
        self.broken: list[BaseException] = []
        self._hard_end = math.inf

    def hard_end(self) -> float:
        """Return the time of the monotonic clock after which clients give up."""
        return self._hard_end

    async def run(self, until: Callable[[], float]) -> None:
        """Talk until the time that `until` tells is over."""
        await asyncio.gather(*(self._place(until) for _ in range(self.at_once)))

    async def _place(self, until: Callable[[], float]) -> None:
        while time.monotonic() < until():
            conversation = Conversation(self, len(self.conversations))
            self.conversations.append(conversation)
            await conversation.live(until)

    async def settle_after(self, talking: asyncio.Task[None], patience: float = _PATIENCE) -> None:
        """Wait until the conversations have said their last, and every session is at rest; so long at most."""
        self._hard_end = time.monotonic() + patience
        await talking
        await asyncio.gather(*(conversation.settle() for conversation in self.conversations))

    async def settled(self, patience: float) -> float | None:
        """Return after how many seconds all that is under way now has ended; None when that takes longer."""
        waiting, begun = set(self.progress.open), time.monotonic()
        while time.monotonic() < begun + patience:
            waiting &= self.progress.open.keys()
            if not waiting:
                return time.monotonic() - begun
            await asyncio.sleep(0.05)
        return None
