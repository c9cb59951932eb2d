"""The client that blocks. `perdure.client.aio` has the same surface for asyncio; both are shells over one core."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx2

from perdure.api.asks import Ask, AskPage
from perdure.api.deployments import Agent, Deployment, DeploymentPage, ServerInfo
from perdure.api.events import Event, EventPage, FeedPage
from perdure.api.runs import LogPage, RunPage
from perdure.api.sessions import ControlReceipt, MessageReceipt, Receipt, SendReceipt, Session, SessionPage
from perdure.api.turns import Turn, TurnPage, WaitResult
from perdure.client import operations
from perdure.client.call import LIMITS, Call, Settings, settings_from
from perdure.client.content import Input, chosen_input, needed_input
from perdure.client.feeds import FeedFollowing
from perdure.client.following import Fault, Following, OnLost
from perdure.client.retry import Attempts, Retry
from perdure.client.source import archive_of
from perdure.client.waiting import Timeout, Waiting
from perdure.client.watching import Watching, WatchItem
from perdure.errors import PerdureError, SessionNotFound

T = TypeVar("T")


class Link:
    """A client's connections to its server."""

    def __init__(self, settings: Settings, transport: httpx2.BaseTransport | None) -> None:
        self.settings = settings
        self.http: httpx2.Client = httpx2.Client(
            transport=transport, limits=LIMITS, trust_env=settings.trusts_environment
        )

    def send(self, call: Call[T], retry: Retry | None = None, until: float | None = None) -> T:
        """Make a request, again if it fails for a passing reason, and return its answer."""
        attempts = Attempts(retry or self.settings.retry, call.key, until)
        while True:
            try:
                return call.answer(self.http.request(**self.settings.request(call)))
            except (httpx2.RequestError, PerdureError) as error:
                delay = attempts.after(error)
            time.sleep(delay)

    def wait_turn(self, session_id: str, turn_id: str, timeout: Timeout) -> WaitResult:
        """Poll until the turn has ended or the time is up."""
        waiting = Waiting(timeout, self.settings.retry)
        while True:
            call = operations.wait_turn(session_id, turn_id, waiting.next_poll())
            result = self.send(call, waiting.retry, waiting.until)
            if not waiting.goes_on(result.status):
                return result

    def follow(self, following: Following[T]) -> Generator[T, None, None]:
        """Yield a stream's items, over as many connections as it takes."""
        while not following.ended:
            try:
                with self.http.stream(**following.request()) as reply:
                    if not reply.is_success:
                        reply.read()
                    following.opened(reply)
                    for chunk in reply.iter_bytes():
                        yield from following.feed(chunk)
                delay = following.stopped()
            except (httpx2.RequestError, PerdureError, Fault) as error:
                delay = following.after(error)
            time.sleep(delay)


class Client:
    """A blocking client of one environment of a Perdure server; safe to share between threads.

    `url` and `api_key` default to PERDURE_API_URL and PERDURE_API_KEY, then to a local `perdure dev`. `retry` says how
    requests that fail for a passing reason are sent again; every write carries an idempotency key, so that this is
    safe. All methods raise the classes of `perdure.errors`; `details["request_id"]` names the failed request.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        project: str = "demo",
        environment: str = "development",
        *,
        retry: Retry | None = None,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        self._link = Link(settings_from(url, api_key, project, environment, retry), transport)
        self.agents: Agents = Agents(self._link)
        self.sessions: Sessions = Sessions(self._link)
        self.deployments: Deployments = Deployments(self._link)

    def session(self, session_id: str) -> SessionHandle:
        """Return a handle on the session of that id, without asking whether there is one."""
        return SessionHandle(self._link, session_id)

    def deploy(
        self, source: str | Path | bytes, *, promote: bool = True, idempotency_key: str | None = None
    ) -> Deployment:
        """Build a project's folder, Python file or gzip tar (a file or its bytes) and, with `promote`, make it current.

        Raises `ProjectError` kinds when the source is refused or does not import; the current deployment then stays.
        """
        return self._link.send(operations.deploy(archive_of(source), promote, idempotency_key))

    def events(self, *, after: str | None = None, limit: int | None = None) -> FeedPage:
        """Return a page of the events of all sessions in commit order: 100 events or `limit`, 1000 at most.

        `after` is the `cursor` of the page before, or `now`; without it the page begins with the oldest event.
        """
        return self._link.send(operations.feed(after, limit))

    def follow_events(
        self, *, after: str | None = None, on_lost: OnLost | None = None
    ) -> Generator[FeedPage, None, None]:
        """Yield pages of the events of all sessions in commit order as they come, for ever; the first may be empty.

        Reconnects by itself: every event comes exactly once. Whoever keeps a page's `cursor` with what it did goes on
        after that page the next time, on whatever server.
        """
        return self._link.follow(FeedFollowing(self._link.settings, after, on_lost))

    def server(self) -> ServerInfo:
        """Return which server answers."""
        return self._link.send(operations.server())

    def close(self) -> None:
        """Close the connections. The client cannot be used afterwards."""
        self._link.http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Agents:
    """The agents of the environment's current deployment."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def __getitem__(self, name: str) -> AgentHandle:
        return AgentHandle(self._link, name)

    def list(self) -> list[Agent]:
        """Return all agents, by id."""
        return self._link.send(operations.agents()).agents

    def get(self, name: str) -> Agent:
        """Return one agent's definition; raises `AgentNotFound`."""
        return self._link.send(operations.agent(name))


class AgentHandle:
    """One agent, by name."""

    def __init__(self, link: Link, name: str) -> None:
        self._link = link
        self.name = name

    def get(self) -> Agent:
        """Return the agent's definition; raises `AgentNotFound`."""
        return self._link.send(operations.agent(self.name))

    def create_session(
        self,
        *,
        text: str | None = None,
        input: Input | None = None,
        key: str | None = None,
        idempotency_key: str | None = None,
    ) -> Receipt:
        """Create a session, with a first turn when there is text or an input.

        Raises `SessionKeyConflict`, naming the session, when another one of this agent has the key.
        """
        parts = chosen_input(text, input)
        return self._link.send(operations.create_session(self.name, parts, key, idempotency_key))

    def get_or_create(
        self,
        key: str,
        *,
        text: str | None = None,
        input: Input | None = None,
        idempotency_key: str | None = None,
    ) -> Receipt:
        """Find the session of a key or create it, and enqueue the text or input if there is one."""
        parts = chosen_input(text, input)
        return self._link.send(operations.get_or_create(self.name, key, parts, idempotency_key))

    def session(self, key: str) -> SessionHandle:
        """Return a handle on the agent's session of that key; raises `SessionNotFound`."""
        found = self._link.send(operations.sessions(self.name, key, None, None, None)).sessions
        if not found:
            raise SessionNotFound(key)
        return SessionHandle(self._link, found[0].id)


class Sessions:
    """The sessions of the environment."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def list(
        self,
        *,
        agent: str | None = None,
        key: str | None = None,
        status: str | Sequence[str] | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> SessionPage:
        """Return a page of sessions, newest first: 50 or `limit`, 100 at most; `cursor` is the last page's."""
        return self._link.send(operations.sessions(agent, key, status, cursor, limit))

    def iter(
        self, *, agent: str | None = None, key: str | None = None, status: str | Sequence[str] | None = None
    ) -> Iterator[Session]:
        """Yield all sessions, newest first, asking for pages as they are needed."""
        cursor: str | None = None
        while True:
            page = self.list(agent=agent, key=key, status=status, cursor=cursor)
            yield from page.sessions
            if (cursor := page.next_cursor) is None:
                return


class Deployments:
    """The deployments of the environment."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def list(self, *, cursor: str | None = None, limit: int | None = None) -> DeploymentPage:
        """Return a page of deployments, newest first."""
        return self._link.send(operations.deployments(cursor, limit))

    def get(self, deployment_id: str) -> Deployment:
        """Return one deployment; raises `DeploymentNotFound`."""
        return self._link.send(operations.deployment(deployment_id))

    def promote(self, deployment_id: str) -> Deployment:
        """Make a deployment the environment's current one: new sessions begin on it."""
        return self._link.send(operations.promote(deployment_id))


class SessionHandle:
    """One session, by id. All methods raise `SessionNotFound` when there is none."""

    def __init__(self, link: Link, session_id: str) -> None:
        self._link = link
        self.id = session_id

    def get(self) -> Session:
        """Return the session as it is now."""
        return self._link.send(operations.session(self.id))

    def enqueue(
        self, input: Input | None = None, *, text: str | None = None, idempotency_key: str | None = None
    ) -> Receipt:
        """Accept an input as a new turn behind those that wait; raises `SessionNotOpen` and `QueueFull`."""
        return self._link.send(operations.enqueue(self.id, needed_input(text, input), idempotency_key))

    def send(
        self, input: Input | None = None, *, text: str | None = None, idempotency_key: str | None = None
    ) -> SendReceipt:
        """Steer the running turn if its handler takes messages, else enqueue; raises `SessionHeld` too."""
        return self._link.send(operations.send(self.id, needed_input(text, input), idempotency_key))

    def interrupt(self, *, reason: str | None = None, idempotency_key: str | None = None) -> ControlReceipt:
        """Stop the running turn and hold the session; the receipt's `hold_id` is what `resume` takes."""
        return self._link.send(operations.interrupt(self.id, reason, idempotency_key))

    def resume(self, hold_id: str, *, idempotency_key: str | None = None) -> ControlReceipt:
        """Release exactly one hold; twice changes nothing. Raises `HoldNotFound`."""
        return self._link.send(operations.resume(self.id, hold_id, idempotency_key))

    def close(self, *, idempotency_key: str | None = None) -> ControlReceipt:
        """Refuse new input, finish what was accepted, then end. Releases no hold."""
        return self._link.send(operations.close(self.id, idempotency_key))

    def cancel(self, *, idempotency_key: str | None = None) -> ControlReceipt:
        """End the session at once: its running turn and all queued ones are cancelled."""
        return self._link.send(operations.cancel(self.id, idempotency_key))

    def events(self, *, after: int = 0, limit: int | None = None) -> EventPage:
        """Return a page of the log after a sequence number: 100 events or `limit`, 1000 at most."""
        return self._link.send(operations.events(self.id, after, limit))

    def iter_events(self, *, after: int = 0, follow: bool = False) -> Iterator[Event]:
        """Yield the log's events in order; with `follow`, new ones too, until the session is closed or cancelled."""
        if follow:
            with closing(self.watch(after=after)) as items:
                yield from (item for item in items if isinstance(item, Event))
            return
        more = True
        while more:
            page = self.events(after=after, limit=operations.EVENTS_A_PAGE)
            yield from page.events
            after, more = page.next_after, page.has_more

    def watch(self, *, after: int | None = None, on_lost: OnLost | None = None) -> Generator[WatchItem, None, None]:
        """Yield a snapshot (or, with `after`, the events since), live updates, `CaughtUp`, and what is new.

        Reconnects by itself, for ever once it was connected: every durable event comes exactly once and in order,
        live updates and `CaughtUp` come again after a reconnect, and a reader that fell far behind gets a new snapshot.
        Ends with `End` when the session is closed or cancelled. `on_lost` is told of lost connections.
        """
        return self._link.follow(Watching(self._link.settings, self.id, after, on_lost))

    def turns(self, *, after: int = 0, limit: int | None = None) -> TurnPage:
        """Return a page of turns after a sequence number, in order."""
        return self._link.send(operations.turns(self.id, after, limit))

    def iter_turns(self, *, after: int = 0) -> Iterator[Turn]:
        """Yield all turns in order, asking for pages as they are needed."""
        next_after: int | None = after
        while next_after is not None:
            page = self.turns(after=next_after)
            yield from page.turns
            next_after = page.next_after

    def turn(self, turn_id: str) -> TurnHandle:
        """Return a handle on one turn, without asking whether there is one."""
        return TurnHandle(self._link, self.id, turn_id)

    def asks(self, *, status: str | None = None, cursor: str | None = None, limit: int | None = None) -> AskPage:
        """Return a page of questions, oldest first; `status` is pending, responded or cancelled."""
        return self._link.send(operations.asks(self.id, status, cursor, limit))

    def ask(self, ask_id: str) -> AskHandle:
        """Return a handle on one question, without asking whether there is one."""
        return AskHandle(self._link, self.id, ask_id)

    def runs(self, *, after: int = 0, limit: int | None = None) -> RunPage:
        """Return a page of the session's periods of execution, in order."""
        return self._link.send(operations.runs(self.id, after, limit))

    def logs(self, run_id: str, *, offset: int = 0, limit: int | None = None) -> LogPage:
        """Return what user code printed in a run, from a byte offset; raises `RunNotFound`."""
        return self._link.send(operations.logs(self.id, run_id, offset, limit))


class TurnHandle:
    """One turn of a session, by id. All methods raise `TurnNotFound` when there is none."""

    def __init__(self, link: Link, session_id: str, turn_id: str) -> None:
        self._link = link
        self.session_id = session_id
        self.id = turn_id

    def get(self) -> Turn:
        """Return the turn as it is now."""
        return self._link.send(operations.turn(self.session_id, self.id))

    def wait(self, timeout: Timeout = None) -> WaitResult:
        """Wait until the turn has ended: `settled`, or `timeout` when the time was up, which cancels nothing.

        Outlasts a restart of the server.
        """
        return self._link.wait_turn(self.session_id, self.id, timeout)

    def send(
        self, input: Input | None = None, *, text: str | None = None, idempotency_key: str | None = None
    ) -> MessageReceipt:
        """Say something to exactly this running turn; raises `MessageClosed` when it takes no messages."""
        parts = needed_input(text, input)
        return self._link.send(operations.send_to_turn(self.session_id, self.id, parts, idempotency_key))


class AskHandle:
    """One question of a session, by id. All methods raise `AskNotFound` when there is none."""

    def __init__(self, link: Link, session_id: str, ask_id: str) -> None:
        self._link = link
        self.session_id = session_id
        self.id = ask_id

    def get(self) -> Ask:
        """Return the question and, once there is one, its answer."""
        return self._link.send(operations.ask(self.session_id, self.id))

    def answer(self, answer: Any, *, response_id: str | None = None) -> Ask:
        """Answer the question. The first valid answer wins; the same `response_id` and answer return it again.

        Raises `AnswerInvalid`, `AskAlreadyResponded` and `AskCancelled`.
        """
        return self._link.send(operations.answer_ask(self.session_id, self.id, answer, response_id))
