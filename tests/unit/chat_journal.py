"""A journal in memory that keeps what is committed, loses what is not, and can pull the plug at any commit."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from tests.unit.chat_rules import broken_rules

from perdure.chat import entries as e
from perdure.chat.deltas import Delta, Draft, Grew
from perdure.chat.journal import Batch, Intent, Loaded, Question, StoredDocument
from perdure.chat.loop import Verdict
from perdure.chat.output import OutputBuffer
from perdure.chat.transcript import build


class Crashed(BaseException):
    """The process is gone."""


class Store:
    """What survives a crash."""

    def __init__(self) -> None:
        self.entries: list[e.Entry] = []
        self.intents: dict[str, Intent] = {}
        self.questions: dict[tuple[str, int], Question] = {}
        self.verdicts: dict[tuple[str, int], Verdict] = {}
        self.documents: dict[str, StoredDocument] = {}
        self.memos: dict[tuple[str, str], Any] = {}
        self.live: dict[str, list[Delta | str]] = {}
        self.waiting: list[e.Steer] = []
        self.aborted = False
        self.commits = 0
        self.clock = 0


class MemoryJournal:
    """One process's view of a store. `plug` tells at which commit it crashes, and whether before it or after."""

    turn = 1

    def __init__(self, store: Store, plug: int | None = None, after: bool = False) -> None:
        self.store, self._plug, self._after = store, plug, after
        self.something = asyncio.Event()
        self._is_dead = False

    @property
    def aborted(self) -> bool:
        return self.store.aborted

    def now(self) -> int:
        return self.store.clock

    def new_id(self) -> str:
        self.store.clock += 1
        return f"id-{self.store.clock}"

    async def load(self) -> Loaded:
        store = self.store
        answers = [each for each in store.entries if isinstance(each, e.AssistantMessage)]
        ended = [each for each in answers if each.stop not in ("error", "lost")]
        prefix = f"call:{ended[-1].id}:" if ended else "call:none:"
        open_calls = {int(key.removeprefix(prefix)): intent for key, intent in store.intents.items() if prefix in key}
        draft = Draft()
        for delta in store.live.get("answer", []):
            assert not isinstance(delta, str)
            draft.apply(delta)
        return Loaded(
            entries=[e.decode(e.encode(entry)) for entry in store.entries],
            started={slot: intent.replay for slot, intent in open_calls.items()},
            arguments={slot: intent.arguments for slot, intent in open_calls.items()},
            parked=frozenset(slot for answers, slot in store.questions if ended and answers == ended[-1].id),
            output={slot: self._output(f"tool:{prefix}{slot}") for slot in open_calls},
            documents=dict(store.documents),
            draft=draft.parts(),
        )

    def _output(self, slot: str) -> e.Content:
        buffer = OutputBuffer()
        for piece in self.store.live.get(slot, []):
            assert isinstance(piece, str)
            buffer.add(piece)
        return buffer.content()

    async def commit(self, batch: Batch) -> None:
        await asyncio.sleep(0)
        store = self.store
        store.commits += 1
        if store.commits == self._plug and not self._after:
            self._is_dead = True
        self._check_alive()
        self._apply(batch)
        if store.commits == self._plug:
            self._is_dead = True
        self._check_alive()

    def _check_alive(self) -> None:
        if self._is_dead:
            raise Crashed

    def _apply(self, batch: Batch) -> None:
        store = self.store
        known = {entry.id for entry in store.entries}
        assert not known & {entry.id for entry in batch.entries}
        store.entries += [e.decode(e.encode(entry)) for entry in batch.entries]
        assert broken_rules(build(store.entries)) == []
        for intent in batch.intents:
            assert intent.key not in store.intents
            store.intents[intent.key] = intent
        for key in batch.ends:
            store.intents.pop(key, None)
        for question in batch.questions:
            store.questions[question.answers, question.slot] = question
        for kind, value in batch.documents.items():
            assert value is not None
            store.documents[kind] = value
        store.waiting = [steer for steer in store.waiting if steer.message not in batch.placed]
        for slot in batch.clears:
            store.live.pop(slot, None)

    async def memo(self, key: str, name: str, value: Any) -> Any:
        self._check_alive()
        return self.store.memos.setdefault((key, name), value)

    async def grow(self, slot: str, more: Sequence[Delta | str]) -> None:
        self._check_alive()
        self.store.live.setdefault(slot, []).extend(more)
        if any(isinstance(delta, Grew) for delta in more):
            self.something.set()

    def steers(self) -> Sequence[e.Steer]:
        return list(self.store.waiting)

    def verdicts(self, answers: str) -> Mapping[int, Verdict]:
        return {slot: verdict for (known, slot), verdict in self.store.verdicts.items() if known == answers}

    async def happens(self, until: int | None) -> None:
        if until is not None:
            self.store.clock = max(self.store.clock, until)
            return
        await self.something.wait()
        self.something.clear()
