"""A store in memory that several simulated processes share: one truth, and a view of it for each process.

Commands are decided by the real batch and the real rules, all at one instant of the truth's own clock. What lies
between a process and the truth is its `Link`: it takes time, loses what is asked and what is answered, and hints worse.
A commit whose answer was lost is resolved by reading, as on PostgreSQL, and where that is not possible in time its
caller is told that nobody knows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from typing import Any, Final, TypeVar

from tests.simulation import reads
from tests.simulation.truth import Batch, Truth

from perdure.errors import NotSupported, StoreError
from perdure.records.sessions import Ask, Message, Run, SessionHead, Turn
from perdure.rules.commands import Command, Idempotency
from perdure.rules.dispatch import needs_owner
from perdure.store import leases
from perdure.store.leases import LeaseView
from perdure.store.listeners import Listeners
from perdure.store.port import (
    ApiKey,
    Applied,
    Committed,
    Deployment,
    Environment,
    EventPage,
    FeedPage,
    Interest,
    Listener,
    SessionFilter,
    Snapshot,
    Store,
)
from perdure.store.waiting import Waiting, answer, publish

T = TypeVar("T")

LANES: Final = 2
LARGEST_BATCH: Final = 256
PATIENCE: Final = 3.0
HINT_PAUSE: Final = 0.01
LIVE: Final = 1
OWNERLESS: Final = 2


class Link:
    """What lies between one process and the truth. This one is perfect; simulations have worse ones.

    Delays are seconds. `up` is whether anything gets through; what does not is noticed after `notice()`.
    """

    up = True
    hints_up = True

    def delay(self) -> float:
        """Return how long one message takes."""
        return 0.0

    def notice(self) -> float:
        """Return after how long the loss of a message is noticed."""
        return 0.1

    def loses_answer(self) -> bool:
        """Whether the answer to a commit is lost on its way."""
        return False

    def hint_delays(self) -> tuple[float, ...]:
        """Return when a hint arrives: never, once or several times."""
        return (0.0,)


class _Attempt:
    """One transaction on its way. Refused, it cannot commit any more; closed, nobody waits for it any more."""

    __slots__ = ("closed", "done", "refused", "taken", "timer")

    def __init__(self, taken: list[Waiting]) -> None:
        self.taken = taken
        self.done = False
        self.refused = False
        self.closed = False
        self.timer: asyncio.TimerHandle | None = None


class MemoryStore(Store):
    """One process's view of the truth. With `shared` it has leases and hears of others' commits by hints."""

    def __init__(
        self,
        truth: Truth,
        link: Link | None = None,
        *,
        shared: bool = False,
        outside: Context | None = None,
        name: str = "",
    ) -> None:
        self.name: Final = name
        self.truth: Final = truth
        self.link: Final = link or Link()
        self._shared = shared
        self._listeners = Listeners()
        self._outside = outside
        self._context: Context | None = None
        self._open = False
        self._waiting: deque[Waiting] = deque()
        self._free = LANES
        self._in_flight: set[str] = set()
        self._woken = False
        self._known: dict[str, SessionHead] = {}
        self._changed: dict[str, int] = {}
        self._sending = False
        self._postponed: dict[str, int] = {}
        self._leases = Leases(self) if shared else None

    # --- life

    async def open(self) -> None:
        self.truth.check_version()
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._outside = self._outside or self._context
        self._open = True
        if self._shared:
            self.truth.views.append(self)

    async def close(self) -> None:
        while self._waiting or self._free < LANES:
            await asyncio.sleep(0.01)
        self.forget()
        self._open = False

    def forget(self) -> None:
        """Let the truth forget this view, as when its process has died."""
        if self in self.truth.views:
            self.truth.views.remove(self)

    @property
    def leases(self) -> Leases | None:
        """Which workers are alive, where several share the store."""
        return self._leases

    @property
    def hints_heard(self) -> bool:
        """Whether hints arrive now."""
        return not self._shared or (self.link.hints_up and self.link.up)

    # --- commands

    async def apply(self, command: Command) -> Applied:
        if not self._open:
            raise RuntimeError("the store is not open")
        waiting: asyncio.Future[Applied] = self._loop.create_future()
        self._waiting.append(Waiting(command, waiting))
        if self._free and not self._woken:
            self._woken = True
            self._loop.call_soon(self._pump, context=self._context)
        return await waiting

    def _pump(self) -> None:
        self._woken = False
        while self._free and (taken := self._take()):
            self._free -= 1
            self._in_flight.update(request.command.session_id for request in taken)
            self._send(taken, self._loop.time() + PATIENCE)

    def _take(self) -> list[Waiting]:
        taken: list[Waiting] = []
        later: list[Waiting] = []
        while self._waiting and len(taken) < LARGEST_BATCH:
            request = self._waiting.popleft()
            (later if request.command.session_id in self._in_flight else taken).append(request)
        self._waiting.extendleft(reversed(later))
        return taken

    def _send(self, taken: list[Waiting], until: float) -> None:
        attempt = _Attempt(taken)
        loop, link = self._loop, self.link
        loop.call_later(link.delay(), self._arrive, attempt, until, context=self._outside)
        attempt.timer = loop.call_later(PATIENCE + link.notice(), self._lost, attempt, until, context=self._context)

    def _arrive(self, attempt: _Attempt, until: float) -> None:
        """The truth's end of the line: decide and commit at one instant, or do nothing at all."""
        loop, link = self._loop, self.link
        if attempt.refused:
            return
        if not self._reaches():
            loop.call_later(link.notice(), self._lost, attempt, until, context=self._context)
            return
        batch = Batch(self.truth, self.name)
        for request in attempt.taken:
            request.found.clear()
            request.outcome = batch.decide(request)
        batch.commit()
        attempt.done = True
        late = link.notice() if link.loses_answer() else None
        if late is None:
            loop.call_later(link.delay(), self._answered, attempt, context=self._context)
        else:
            loop.call_later(late, self._lost, attempt, until, context=self._context)

    def _reaches(self) -> bool:
        return self.link.up and self.truth.up

    def _answered(self, attempt: _Attempt) -> None:
        if attempt.closed:
            return
        self._end(attempt)
        for request in attempt.taken:
            if request.outcome is not None and request.outcome.committed is not None:
                self._learn(request.outcome.committed.head)
        publish(attempt.taken, {}, self._tell)
        self._hear_postponed()
        self._pump()

    def _lost(self, attempt: _Attempt, until: float) -> None:
        """Nothing was heard of an attempt: read whether it has happened, which also keeps it from happening later."""
        if attempt.closed:
            return
        if attempt.done and self._reaches():
            self._answered(attempt)
        elif self._loop.time() >= until:
            attempt.refused = self._reaches()
            self._fail(attempt)
        elif self._reaches():
            attempt.refused = attempt.closed = True
            self._send(attempt.taken, until)
        else:
            self._loop.call_later(self.link.notice(), self._lost, attempt, until, context=self._context)

    def _fail(self, attempt: _Attempt) -> None:
        self._end(attempt)
        known = "Nothing was changed." if attempt.refused else "Whether it was done is not known."
        for request in attempt.taken:
            answer(request.answer, StoreError(f"The store did not answer. {known}"))
        self._hear_postponed()
        self._pump()

    def _end(self, attempt: _Attempt) -> None:
        attempt.closed = True
        assert attempt.timer is not None
        attempt.timer.cancel()
        self._free += 1
        self._in_flight.difference_update(request.command.session_id for request in attempt.taken)

    # --- telling and hearing

    def subscribe(self, listener: Listener, interest: Interest | None = None) -> Callable[[], None]:
        return self._listeners.add(listener, interest)

    def _tell(self, news: Committed) -> None:
        if self._shared:
            ownerless = news.head.run is None and needs_owner(news.head)
            self._note(self._changed, news.head.id, LIVE * news.live | OWNERLESS * ownerless)
            if not self._sending:
                self._sending = True
                self._loop.call_later(HINT_PAUSE, self._send_hints, context=self._context)
        self._listeners.tell(news)

    def _note(self, changed: dict[str, int], session_id: str, what: int) -> None:
        changed[session_id] = what | changed.get(session_id, 0)

    def _send_hints(self) -> None:
        self._sending = False
        changed, self._changed = self._changed, {}
        if not self._reaches():
            return
        for view in self.truth.views:
            if view is not self and view.link.hints_up:
                for delay in view.link.hint_delays():
                    self._loop.call_later(self.link.delay() + delay, view._hinted, changed, context=view._context)

    def _hinted(self, changed: Mapping[str, int]) -> None:
        """Read what others have changed, but not what this process is changing itself, which is told in its turn."""
        if not self._listeners or not self._open:
            return
        wanted: dict[str, int] = {}
        for session_id, what in changed.items():
            if session_id in self._in_flight:
                self._note(self._postponed, session_id, what)
            elif what & OWNERLESS or self._listeners.wants(session_id):
                wanted[session_id] = what
        if wanted and self._reaches():
            self._ask(lambda truth: [truth.head(key) for key in wanted], lambda heads: self._heard(heads, wanted))

    def _heard(self, heads: list[SessionHead | None], wanted: Mapping[str, int]) -> None:
        for head in heads:
            if head is None:
                continue
            what = wanted[head.id]
            if head.id in self._in_flight:
                self._note(self._postponed, head.id, what)
            elif self._learn(head):
                news = Committed(head, None, (), None, bool(what & LIVE))
                self._listeners.tell(news, ownerless=bool(what & OWNERLESS))

    def _hear_postponed(self) -> None:
        if self._postponed:
            # Whatever it was that was overtaken: it is looked at as if all of it were news.
            postponed, self._postponed = dict.fromkeys(self._postponed, LIVE | OWNERLESS), {}
            self._loop.call_soon(self._hinted, postponed, context=self._context)

    def _learn(self, head: SessionHead) -> bool:
        known = self._known.get(head.id)
        if known is not None and (head.fence, head.last_seq) < (known.fence, known.last_seq):
            return False
        self._known[head.id] = head
        return True

    # --- reading

    def _ask(
        self, read: Callable[[Truth], Any], take: Callable[[Any], None], fail: Callable[[Exception], None] | None = None
    ) -> None:
        """Have the truth read something, and take the answer in this process."""
        loop, link, context = self._loop, self.link, self._context

        def arrive() -> None:
            if not self._reaches():
                if fail is not None:
                    loop.call_later(link.notice(), fail, StoreError("The store does not answer."), context=context)
                return
            try:
                found = read(self.truth)
            except Exception as error:
                if fail is not None:
                    loop.call_later(link.delay(), fail, error, context=context)
                return
            loop.call_later(link.delay(), answered, found, link.loses_answer(), context=context)

        def answered(found: Any, is_lost: bool) -> None:
            if not is_lost and self._reaches():
                take(found)
            elif fail is not None:
                # It was done all the same, if it did anything.
                loop.call_later(link.notice(), fail, StoreError("The store's answer was lost."), context=context)

        loop.call_later(link.delay(), arrive, context=self._outside)

    async def _read(self, function: Callable[..., T], *args: Any) -> T:
        if not self._open:
            raise RuntimeError("the store is not open")
        future: asyncio.Future[T] = self._loop.create_future()

        def take(found: T) -> None:
            if not future.done():
                future.set_result(found)

        def fail(error: Exception) -> None:
            if not future.done():
                future.set_exception(error)

        self._ask(lambda truth: function(truth, *args), take, fail)
        return await future

    async def receipt(self, identity: Idempotency) -> bytes | None:
        return await self._read(Truth.receipt, identity)

    async def head(self, session_id: str) -> SessionHead | None:
        return await self._read(Truth.head, session_id)

    async def changed(self, known: Mapping[str, int]) -> list[SessionHead]:
        """Return the heads of those of the sessions that have moved on from the given number."""
        return await self._read(Truth.changed, dict(known))

    async def find_key(self, environment: str, agent: str, key: str) -> str | None:
        return await self._read(Truth.find_key, environment, agent, key)

    async def sessions(self, which: SessionFilter, before: str | None, limit: int) -> list[SessionHead]:
        return await self._read(reads.sessions, which, before, limit)

    async def due(self, until: int, limit: int) -> list[tuple[str, int]]:
        return await self._read(reads.due, until, limit)

    async def unsettled(self, after: str, limit: int) -> list[SessionHead]:
        return await self._read(reads.unsettled, after, limit)

    async def snapshot(self, session_id: str, turns: int) -> Snapshot | None:
        return await self._read(reads.snapshot, session_id, turns)

    async def events(self, session_id: str, after: int, limit: int, max_bytes: int = 4 * 1024 * 1024) -> EventPage:
        return await self._read(reads.events, session_id, after, limit, max_bytes)

    async def turn(self, session_id: str, turn_id: str) -> Turn | None:
        return await self._read(reads.turn, session_id, turn_id)

    async def turn_by_number(self, session_id: str, number: int) -> Turn | None:
        return await self._read(reads.turn_by_number, session_id, number)

    async def turns(self, session_id: str, after: int, limit: int) -> list[Turn]:
        return await self._read(reads.turns, session_id, after, limit)

    async def asks(self, session_id: str, status: str | None, after: str, limit: int) -> list[Ask]:
        return await self._read(reads.asks, session_id, status, after, limit)

    async def ask(self, session_id: str, ask_id: str) -> Ask | None:
        return await self._read(reads.ask, session_id, ask_id)

    async def message(self, session_id: str, message_id: str) -> Message | None:
        return await self._read(reads.message, session_id, message_id)

    async def runs(self, session_id: str, after: int, limit: int) -> list[Run]:
        return await self._read(reads.runs, session_id, after, limit)

    async def run(self, session_id: str, run_id: str) -> Run | None:
        return await self._read(reads.run, session_id, run_id)

    async def feed(self, environment: str, after: str, limit: int) -> FeedPage:
        return await self._read(reads.feed, environment, after, limit)

    async def retention(self, environment: str) -> Any:
        raise NotSupported("Nothing is ever pruned in memory.")

    async def set_retention(self, environment: str, policy: Any) -> None:
        raise NotSupported("Nothing is ever pruned in memory.")

    async def prune(self, environment: str, now: int, limit: int) -> Any:
        raise NotSupported("Nothing is ever pruned in memory.")

    async def environment(self, environment: str) -> Environment | None:
        return await self._read(Truth.environment, environment)

    async def environments(self) -> list[Environment]:
        return await self._read(lambda truth: sorted(truth.environments.values(), key=lambda one: one.id))

    async def put_deployment(self, deployment: Deployment, archive: bytes | None = None) -> Deployment:
        return await self._read(Truth.put_deployment, deployment, archive)

    async def archive(self, deployment_id: str) -> bytes | None:
        return await self._read(Truth.archive, deployment_id)

    async def promote(self, environment: str, deployment_id: str) -> Environment:
        return await self._read(Truth.promote, environment, deployment_id)

    async def deployment(self, deployment_id: str) -> Deployment | None:
        return await self._read(lambda truth: truth.deployments.get(deployment_id))

    async def deployments(self, environment: str, before: str | None, limit: int) -> list[Deployment]:
        return await self._read(reads.deployments, environment, before, limit)

    async def api_keys(self) -> list[ApiKey]:
        return await self._read(lambda truth: sorted(truth.keys_of_api.values(), key=lambda key: key.created_at))

    async def put_api_key(self, key: ApiKey) -> None:
        await self._read(Truth.put_api_key, key)

    async def end_api_key(self, key_id: str, at: int) -> bool:
        return await self._read(Truth.end_api_key, key_id, at)

    async def append_log(self, run_id: str, offset: int, data: bytes) -> None:
        await self._read(Truth.append_log, run_id, offset, data)

    async def log(self, run_id: str, offset: int, limit: int) -> bytes:
        return await self._read(Truth.log, run_id, offset, limit)


class Leases(leases.Leases):
    """Leases in the truth, by its clock."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def renew(self, worker: str, duration: int, address: str | None = None, machine: str | None = None) -> bool:
        return await self._store._read(Truth.renew, worker, duration, address, machine)

    async def release(self, worker: str) -> None:
        await self._store._read(Truth.release, worker)

    async def claim(self, worker: str, machine: str | None, limit: int) -> list[str]:
        return await self._store._read(Truth.claim, worker, machine, limit)

    async def claimed(self, worker: str) -> list[str]:
        return await self._store._read(Truth.claimed, worker)

    async def owner_address(self, session_id: str) -> str | None:
        return await self._store._read(Truth.owner_address, session_id)

    async def alive(self) -> list[LeaseView]:
        return await self._store._read(Truth.alive)

    async def now(self) -> int:
        """Return the truth's time."""
        return await self._store._read(lambda truth: truth.clock())
