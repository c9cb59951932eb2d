"""What the harness asks of whoever keeps the conversation: one port, so that a turn runs the same on any store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from perdure.chat import entries as e
from perdure.chat.deltas import Delta
from perdure.chat.loop import Verdict


class Intent(msgspec.Struct, frozen=True):
    """A step is about to begin: a model call, or a call of a tool with its policy and arguments."""

    key: str
    kind: str
    replay: str = "safe"
    arguments: bytes = b"{}"


class Question(msgspec.Struct, frozen=True):
    """A call waits for a person. The turn needs no memory until the answer."""

    answers: str
    slot: int
    prompt: str
    tool: str
    arguments: bytes


class StoredDocument(msgspec.Struct, frozen=True):
    """A document's value as it is stored, and how many changes lie between it and its last base."""

    version: int
    value: Any
    since_base: int = 0


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """What is committed together, or not at all. `placed` are the ids of steering messages that the entries hold.

    `clears` names live slots that are over; `ends` the keys of steps that have ended.
    """

    entries: tuple[e.Entry, ...] = ()
    intents: tuple[Intent, ...] = ()
    ends: tuple[str, ...] = ()
    questions: tuple[Question, ...] = ()
    documents: Mapping[str, StoredDocument | None] = {}
    placed: tuple[str, ...] = ()
    clears: tuple[str, ...] = ()


class Loaded(msgspec.Struct, frozen=True):
    """A conversation as a turn finds it.

    `draft` is an answer whose writing a crash has ended; `started`, `arguments`, `parked` and `output` are of the calls
    of the newest answer that have no result yet, by their place.
    """

    entries: Sequence[e.Entry]
    started: Mapping[int, str] = {}
    arguments: Mapping[int, bytes] = {}
    parked: frozenset[int] = frozenset()
    output: Mapping[int, e.Content] = {}
    documents: Mapping[str, StoredDocument] = {}
    draft: tuple[e.AnswerPart, ...] = ()


class Journal(Protocol):
    """Where a turn's conversation is kept.

    A commit is durable when it returns, or raises and nothing of it is. One turn writes at a time, and the journal
    refuses whoever is not that turn any more.
    """

    @property
    def turn(self) -> int:
        """The number of the turn."""
        ...

    @property
    def aborted(self) -> bool:
        """Whether a person has stopped the turn."""
        ...

    def now(self) -> int:
        """Return the instant."""
        ...

    def new_id(self) -> str:
        """Return a new id for an entry."""
        ...

    async def load(self) -> Loaded:
        """Return the conversation since its newest cut, and the open steps of this turn."""
        ...

    async def commit(self, batch: Batch) -> None:
        """Commit a batch."""
        ...

    async def memo(self, key: str, name: str, value: Any) -> Any:
        """Return the value that a step's memo has: this one, unless there was one before."""
        ...

    async def grow(self, slot: str, more: Sequence[Delta | str]) -> None:
        """Add to a live slot, which watchers see and a crash may cost the newest of."""
        ...

    def steers(self) -> Sequence[e.Steer]:
        """Return the steering messages that wait to be placed, oldest first."""
        ...

    def verdicts(self, answers: str) -> Mapping[int, Verdict]:
        """Return what people have said of the calls of an answer."""
        ...

    async def happens(self, until: int | None) -> None:
        """Return when an instant has come, the turn was aborted, a person has answered or a message has come."""
        ...
