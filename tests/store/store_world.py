"""What the conformance tests are written with: an engine to open stores of, and sessions to act in."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from perdure.records.ids import new_id
from perdure.records.sessions import ComputerState, HostKind, Issuer, Limits, SessionHead
from perdure.rules import commands
from perdure.rules.commands import Command, Idempotency, NewTurn, Permit
from perdure.store import open_store
from perdure.store.port import Applied, Store

ENVIRONMENT = "demo/development"
AGENT = "assistant"
DEPLOYMENT = new_id()
ADA = Issuer("user", "ada")
WORKER = "worker-1"
NO_LIMITS = Limits()


class Clock:
    """A clock that stands still until it is moved, but never gives one instant twice unless it is frozen."""

    def __init__(self) -> None:
        self.now = 1_800_000_000_000_000
        self._step = 1

    def __call__(self) -> int:
        self.now += self._step
        return self.now

    def freeze(self, at: int) -> None:
        """Give this instant until further notice."""
        self.now, self._step = at, 0

    def thaw(self) -> None:
        """Move again with each look."""
        self._step = 1


class Engine(ABC):
    """One engine on one place: each `store()` is another Store object over the same data, not opened yet."""

    address: str

    @abstractmethod
    def store(self) -> Store: ...

    @abstractmethod
    def make_newer(self) -> None:
        """Mark the closed store as written by a newer schema."""

    @abstractmethod
    def contents(self) -> bytes:
        """Return all that is stored, as bytes to compare."""


def text(said: str) -> bytes:
    return json.dumps([{"text": said, "type": "text"}], separators=(",", ":")).encode()


def key(name: str, request: str = "same") -> Idempotency:
    return Idempotency(name, name.encode(), request.encode())


def receipt(applied: Applied) -> Any:
    return json.loads(applied.receipt)


class World:
    """Sessions in a store, acted on in few words."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def apply(self, command: Command) -> Applied:
        return await self.store.apply(command)

    async def create(
        self,
        *,
        said: str | None = None,
        start: bool = False,
        name: str | None = None,
        agent: str = AGENT,
        environment: str = ENVIRONMENT,
        host: HostKind = "inline",
        limits: Limits = NO_LIMITS,
        computer: ComputerState | None = None,
        idempotency: Idempotency | None = None,
        resumes: bool = False,
    ) -> SessionHead:
        """Create a session and return its head; with `start` its first turn runs."""
        applied = await self.apply(
            commands.CreateSession(
                session_id=new_id(),
                environment=environment,
                agent=agent,
                deployment=DEPLOYMENT,
                host=host,
                limits=limits,
                key=name,
                computer=computer,
                turn=None if said is None else NewTurn(new_id(), text(said)),
                permit=permit() if start else None,
                idempotency=idempotency,
                resumes=resumes,
            )
        )
        assert applied.head is not None
        return applied.head

    async def enqueue(
        self, session: SessionHead, said: str = "more", *, start: bool = False, idempotency: Idempotency | None = None
    ) -> Applied:
        return await self.apply(enqueue(session.id, said, start=start, idempotency=idempotency))

    async def head(self, session: SessionHead) -> SessionHead:
        head = await self.store.head(session.id)
        assert head is not None
        return head

    async def output(self, session: SessionHead, op: int = 1, said: str = "out") -> Applied:
        return await self.apply(await self.write(session, op, said))

    async def write(self, session: SessionHead, op: int = 1, said: str = "out") -> commands.WriteOutput:
        """Return a write for the turn that runs."""
        head = await self.head(session)
        assert head.active is not None
        return commands.WriteOutput(
            session_id=head.id, fence=head.fence, turn=head.active.number, op=op, content_json=text(said)
        )

    async def complete(self, session: SessionHead, response: str | None = "done") -> Applied:
        head = await self.head(session)
        assert head.active is not None
        return await self.apply(
            commands.CompleteTurn(
                session_id=head.id,
                fence=head.fence,
                turn=head.active.number,
                result_json=b'{"ok":true}',
                response_json=None if response is None else text(response),
            )
        )

    async def turns(self, session: SessionHead, count: int) -> None:
        """Live through some whole turns."""
        for number in range(count):
            await self.enqueue(session, f"input {number}", start=True)
            await self.output(session)
            await self.complete(session)

    async def log(self, session: SessionHead) -> list[tuple[int, str]]:
        """Return number and type of all events."""
        found: list[tuple[int, str]] = []
        after = 0
        while True:
            page = await self.store.events(session.id, after, 1000)
            found += [(event.seq, event.type) for event in page.events]
            after = page.next_after
            if not page.has_more:
                return found


def permit() -> Permit:
    return Permit(WORKER, new_id())


def enqueue(
    session_id: str, said: str = "more", *, start: bool = False, idempotency: Idempotency | None = None
) -> commands.Enqueue:
    return commands.Enqueue(
        session_id=session_id,
        environment=ENVIRONMENT,
        turn=NewTurn(new_id(), text(said)),
        permit=permit() if start else None,
        idempotency=idempotency,
    )


@asynccontextmanager
async def opening() -> AsyncIterator[Callable[[str], Awaitable[Store]]]:
    """Yield what opens stores at addresses; all are closed in the end."""
    opened: list[Store] = []

    async def open_at(url: str) -> Store:
        store = open_store(url)
        await store.open()
        opened.append(store)
        return store

    yield open_at
    for store in opened:
        await store.close()


async def said(store: Store, session: SessionHead) -> list[bytes]:
    """Return the inputs of a session, whose numbers and log have no gap."""
    turns = await store.turns(session.id, 0, 1000)
    assert [turn.number for turn in turns] == list(range(1, len(turns) + 1))
    log = await World(store).log(session)
    assert [number for number, _ in log] == list(range(1, len(turns) + 2))
    return [turn.input_json for turn in turns]
