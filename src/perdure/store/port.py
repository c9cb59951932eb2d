"""The store: what the engine and the server ask of it, and what every engine of it guarantees.

Guarantees, which the conformance suite in `tests/store` checks for each engine:

* **One commit.** `apply` commits all that a command does (head, events, rows, receipt, idempotency key), or nothing.
* **Answered after the flush.** A caller is answered, and listeners are told, only once the commit would survive a power
  failure. Listeners are told in commit order, before the callers are answered.
* **Gap-free.** Events of a session are numbered 1, 2, 3 … in commit order. A reader that asks for the events after the
  last one that it saw misses none and sees none twice.
* **Nothing behind a reader.** The feed over all sessions has events in the order of their commits, and what commits
  late comes after what was read, never before it.
* **Alone.** A command that is refused changes nothing, for itself and for the commands that share its commit.
* **The same receipt.** A command that carries an idempotency key that was used before for the same request gets the
  first receipt, byte for byte, whatever has happened since; the rule is not asked. Another request under the key is
  refused with `IdempotencyConflict`.
* **Fenced.** A worker's command is decided against the fence in the same commit that writes what it says.
* **Closed to the future.** A store written by a newer schema is refused (`StoreTooNew`) and left unchanged.

Not guaranteed: that a command whose caller was cut off did not commit. Send it again with the same key and read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from perdure.records.definitions import AgentDefinition
from perdure.records.sessions import ActiveTurn, Ask, Event, LoggedEvent, Message, QueuedTurn, Run, SessionHead, Turn
from perdure.rules.commands import Command, Idempotency
from perdure.store.leases import Leases

LOG_BYTES: Final = 8 * 1024 * 1024
"""How much of a run's log a store keeps: its first bytes."""

FEED_END: Final = "now"
"""The cursor of a feed for what will be committed from now on."""


class Committed(msgspec.Struct, frozen=True):
    """What one command changed, told to listeners after the flush. `head` must not be changed by listeners.

    Where several processes share a store, commits of others are told of too, as hints: with the head as it is now,
    without command and events, several of them as one, and some not at all. A head is never told after a newer one.
    `ended` is the turn that the commit ended, as it was while it ran.
    """

    head: SessionHead
    command: Command | None
    events: Sequence[Event]
    started: QueuedTurn | None
    live: bool = False
    ended: ActiveTurn | None = None


class Applied(msgspec.Struct, frozen=True):
    """The answer to a command. `replayed` tells that an idempotency key was found and nothing was done now."""

    receipt: Any
    head: SessionHead | None
    replayed: bool = False


class LiveSlot(msgspec.Struct, frozen=True):
    """The newest partial state of something unfinished."""

    turn_id: str
    content_json: bytes
    at: int


class Snapshot(msgspec.Struct, frozen=True):
    """A session at one instant: its head, its newest turns in order, and its live slots by name."""

    head: SessionHead
    turns: list[Turn]
    live: dict[str, LiveSlot]
    has_earlier: bool


class EventPage(msgspec.Struct, frozen=True):
    """Events in order; `has_more` tells that more were stored when the page was read."""

    events: list[LoggedEvent]
    next_after: int
    has_more: bool
    retained_after: int


class SessionFilter(msgspec.Struct, frozen=True):
    """Which sessions are meant: of one environment, and of those only what the other fields say."""

    environment: str
    agent: str | None = None
    key: str | None = None
    statuses: tuple[str, ...] = ()


class Deployment(msgspec.Struct, frozen=True):
    """One immutable build of a project in an environment."""

    id: str
    environment: str
    digest: str
    created_at: int
    source: str
    agents: tuple[AgentDefinition, ...]
    live: bool = False


class Environment(msgspec.Struct, frozen=True):
    """A scope of sessions; `id` is `project/environment`."""

    id: str
    current_deployment: str | None
    created_at: int


class FeedPage(msgspec.Struct, frozen=True):
    """Events of an environment in the order of their commits; `has_more` tells that more could be read at once."""

    events: list[LoggedEvent]
    cursor: str
    has_more: bool


class Retention(msgspec.Struct, frozen=True):
    """For how many microseconds an environment keeps what has ended; None is for ever.

    `events`: of sessions that go on, the events of turns that have ended, with turns, questions, messages, runs and
    logs. `sessions`: whole sessions, from their end on. `receipts`: for how long an operation that is sent again under
    its idempotency key gets the first one's receipt. The feed reaches back as far as the shorter of the first two.
    """

    events: int | None = None
    sessions: int | None = None
    receipts: int | None = None


class Pruned(msgspec.Struct, frozen=True):
    """How many of each have gone; `done` when nothing was left that is due to go."""

    done: bool
    sessions: int = 0
    turns: int = 0
    events: int = 0
    receipts: int = 0


class ApiKey(msgspec.Struct, frozen=True):
    """A key that lets in whoever has its secret, of which only the hash is known; until `ended_at`, if there is one."""

    id: str
    name: str
    sha256: str
    created_at: int
    ended_at: int | None = None


Listener: TypeAlias = Callable[[Committed], None]
Interest: TypeAlias = Callable[[str], bool]
"""Tells of a session, by its id, whether what others commit to it matters."""


class Store(ABC):
    """A durable store of sessions. Its methods are called on one event loop; see this module for the guarantees.

    Raises `StoreError` (or a subclass) when the machine does not let it do its work: full disk, read-only folder.
    """

    # --- life

    @abstractmethod
    async def open(self) -> None:
        """Open the store, migrating it to this version's schema; raises `StoreInUse` and `StoreTooNew`."""

    @abstractmethod
    async def close(self) -> None:
        """Finish the commits under way, then let go of everything."""

    # --- others that share the store

    @property
    @abstractmethod
    def leases(self) -> Leases | None:
        """Which workers are alive and what they may claim; None where one process owns all that is in the store."""

    @property
    @abstractmethod
    def hints_heard(self) -> bool:
        """Whether hints of the commits of others arrive now; true where there are no others."""

    @abstractmethod
    async def changed(self, known: Mapping[str, int]) -> list[SessionHead]:
        """Return heads, in no order, of those of the sessions whose log is longer than the length that is given.

        It is for finding out what hints did not tell, and costs a look-up a session that has not changed.
        """

    # --- commands

    @abstractmethod
    async def apply(self, command: Command) -> Applied:
        """Decide and commit a command; raises the rule's `PerdureError` when it is refused."""

    @abstractmethod
    async def receipt(self, identity: Idempotency) -> bytes | None:
        """Return the receipt of an operation that was done before, for when it cannot even be decided anew.

        Raises `IdempotencyConflict` when the key was used for another request.
        """

    @abstractmethod
    def subscribe(self, listener: Listener, interest: Interest | None = None) -> Callable[[], None]:
        """Call `listener` on the loop after each commit of this process, and with hints of the commits of others.

        Of what others commit, whoever says what is of `interest` hears only of such sessions, and of those that need an
        owner and have none: the cost of a hint does not grow with the number of processes that it is not for. Returns
        what ends the subscription.
        """

    # --- sessions

    @abstractmethod
    async def head(self, session_id: str) -> SessionHead | None:
        """Return a session's head, or None. The caller must not change it."""

    @abstractmethod
    async def find_key(self, environment: str, agent: str, key: str) -> str | None:
        """Return the id of the session that has the key."""

    @abstractmethod
    async def sessions(self, which: SessionFilter, before: str | None, limit: int) -> list[SessionHead]:
        """Return heads, newest first (ids descending), with ids below `before`."""

    @abstractmethod
    async def due(self, until: int, limit: int) -> list[tuple[str, int]]:
        """Return `(session id, instant)` of sessions to look at at or before `until`, earliest first.

        The instant is never before the session's wake time; it is later, by a sixty-fourth at most, only where that is
        the end of a long idleness.
        """

    @abstractmethod
    async def unsettled(self, after: str, limit: int) -> list[SessionHead]:
        """Return heads of sessions that need an owner (`rules.dispatch.needs_owner`), ids ascending after `after`."""

    @abstractmethod
    async def snapshot(self, session_id: str, turns: int) -> Snapshot | None:
        """Return a consistent picture of a session with its newest `turns` turns."""

    # --- what is in a session

    @abstractmethod
    async def events(self, session_id: str, after: int, limit: int, max_bytes: int = 4 * 1024 * 1024) -> EventPage:
        """Return events after a sequence number; at least one if there is one, else within `max_bytes` of data.

        Raises `SessionNotFound`, `InvalidCursor` beyond the end and `CursorExpired` below the retention floor.
        """

    @abstractmethod
    async def turn(self, session_id: str, turn_id: str) -> Turn | None:
        """Return one turn."""

    @abstractmethod
    async def turn_by_number(self, session_id: str, number: int) -> Turn | None:
        """Return one turn by its number in the session."""

    @abstractmethod
    async def turns(self, session_id: str, after: int, limit: int) -> list[Turn]:
        """Return turns in order of number, after one."""

    @abstractmethod
    async def asks(self, session_id: str, status: str | None, after: str, limit: int) -> list[Ask]:
        """Return questions by id, after one."""

    @abstractmethod
    async def ask(self, session_id: str, ask_id: str) -> Ask | None:
        """Return one question."""

    @abstractmethod
    async def message(self, session_id: str, message_id: str) -> Message | None:
        """Return one steering message."""

    @abstractmethod
    async def runs(self, session_id: str, after: int, limit: int) -> list[Run]:
        """Return runs in order of number, after one."""

    @abstractmethod
    async def run(self, session_id: str, run_id: str) -> Run | None:
        """Return one run."""

    # --- all sessions of an environment

    @abstractmethod
    async def feed(self, environment: str, after: str, limit: int) -> FeedPage:
        """Return events of all sessions in the order of their commits, after a cursor that a page has given.

        No text stands for the oldest that is kept, `FEED_END` for the present end. Events that one commit wrote to one
        session stand together and in order; what was committed after something that it could know of comes after it.
        Nothing is ever put in behind a cursor, whatever commits late. Raises `InvalidCursor` and, below the retention
        floor, `CursorExpired` with a cursor to go on from.
        """

    # --- environments and deployments

    @abstractmethod
    async def environment(self, environment: str) -> Environment | None:
        """Return an environment by `project/environment`."""

    @abstractmethod
    async def environments(self) -> list[Environment]:
        """Return all environments in order of id."""

    @abstractmethod
    async def put_deployment(self, deployment: Deployment, archive: bytes | None = None) -> Deployment:
        """Store a deployment and its environment; the same digest in the environment returns the first one.

        `archive` is its source, for whoever shares the store and not the disk; one is kept for each digest.
        """

    @abstractmethod
    async def archive(self, deployment_id: str) -> bytes | None:
        """Return the source of a deployment, if it is in the store."""

    @abstractmethod
    async def promote(self, environment: str, deployment_id: str) -> Environment:
        """Make a deployment current; raises `DeploymentNotFound`."""

    @abstractmethod
    async def deployment(self, deployment_id: str) -> Deployment | None:
        """Return one deployment."""

    @abstractmethod
    async def deployments(self, environment: str, before: str | None, limit: int) -> list[Deployment]:
        """Return deployments, newest first."""

    # --- retention

    @abstractmethod
    async def retention(self, environment: str) -> Retention:
        """Return for how long an environment keeps what has ended; raises `EnvironmentNotFound`."""

    @abstractmethod
    async def set_retention(self, environment: str, policy: Retention) -> None:
        """Set for how long an environment keeps what has ended; raises `EnvironmentNotFound`. Removes nothing yet."""

    @abstractmethod
    async def prune(self, environment: str, now: int, limit: int) -> Pruned:
        """Remove what is older than the environment's policy allows: about `limit` rows, in short transactions.

        May be broken off at any point and called again; readers and turns go on beside it. What unfinished turns need
        stays. Raises `EnvironmentNotFound`.
        """

    # --- who may ask

    @abstractmethod
    async def api_keys(self) -> list[ApiKey]:
        """Return all API keys in order of their making, those that have ended included."""

    @abstractmethod
    async def put_api_key(self, key: ApiKey) -> None:
        """Store a new API key; one of that id that is there stays as it is."""

    @abstractmethod
    async def end_api_key(self, key_id: str, at: int) -> bool:
        """End an API key; returns whether there was one that had not ended."""

    # --- what runs print

    @abstractmethod
    async def append_log(self, run_id: str, offset: int, data: bytes) -> None:
        """Store a piece of a run's log from a byte on; the same piece again changes nothing.

        Of what is beyond the first `LOG_BYTES` nothing is kept.
        """

    @abstractmethod
    async def log(self, run_id: str, offset: int, limit: int) -> bytes:
        """Return at most `limit` bytes of a run's log; fewer, or none, where the next ones are not in the store."""
