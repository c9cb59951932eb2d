"""The client for asyncio. `perdure.client.sync` has the same surface and blocks; both are shells over one core."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
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


class AsyncLink:
    """A client's connections to its server."""

    def __init__(self, settings: Settings, transport: httpx2.AsyncBaseTransport | None) -> None:
        self.settings = settings
        self.http: httpx2.AsyncClient = httpx2.AsyncClient(
            transport=transport, limits=LIMITS, trust_env=settings.trusts_environment
        )

    async def send(self, call: Call[T], retry: Retry | None = None, until: float | None = None) -> T:
        """Make a request, again if it fails for a passing reason, and return its answer."""
        attempts = Attempts(retry or self.settings.retry, call.key, until)
        while True:
            try:
                return call.answer(await self.http.request(**self.settings.request(call)))
            except (httpx2.RequestError, PerdureError) as error:
                delay = attempts.after(error)
            await asyncio.sleep(delay)

    async def wait_turn(self, session_id: str, turn_id: str, timeout: Timeout) -> WaitResult:
        """Poll until the turn has ended or the time is up."""
        waiting = Waiting(timeout, self.settings.retry)
        while True:
            call = operations.wait_turn(session_id, turn_id, waiting.next_poll())
            result = await self.send(call, waiting.retry, waiting.until)
            if not waiting.goes_on(result.status):
                return result

    async def follow(self, following: Following[T]) -> AsyncGenerator[T, None]:
        """Yield a stream's items, over as many connections as it takes."""
        while not following.ended:
            try:
                async with self.http.stream(**following.request()) as reply:
                    if not reply.is_success:
                        await reply.aread()
                    following.opened(reply)
                    async for chunk in reply.aiter_bytes():
                        for item in following.feed(chunk):
                            yield item
                delay = following.stopped()
            except (httpx2.RequestError, PerdureError, Fault) as error:
                delay = following.after(error)
            await asyncio.sleep(delay)


class AsyncClient:
    """A client of one environment of a Perdure server, for asyncio; for the event loop that it is used on.

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
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._link = AsyncLink(settings_from(url, api_key, project, environment, retry), transport)
        self.agents: AsyncAgents = AsyncAgents(self._link)
        self.sessions: AsyncSessions = AsyncSessions(self._link)
        self.deployments: AsyncDeployments = AsyncDeployments(self._link)

    def session(self, session_id: str) -> AsyncSessionHandle:
        """Return a handle on the session of that id, without asking whether there is one."""
        return AsyncSessionHandle(self._link, session_id)

    async def deploy(
        self, source: str | Path | bytes, *, promote: bool = True, idempotency_key: str | None = None
    ) -> Deployment:
        """Build a project's folder, Python file or gzip tar (a file or its bytes) and, with `promote`, make it current.

        Raises `ProjectError` kinds when the source is refused or does not import; the current deployment then stays.
        """
        archive = await asyncio.to_thread(archive_of, source)
        return await self._link.send(operations.deploy(archive, promote, idempotency_key))

    async def events(self, *, after: str | None = None, limit: int | None = None) -> FeedPage:
        """Return a page of the events of all sessions in commit order: 100 events or `limit`, 1000 at most.

        `after` is the `cursor` of the page before, or `now`; without it the page begins with the oldest event.
        """
        return await self._link.send(operations.feed(after, limit))

    def follow_events(
        self, *, after: str | None = None, on_lost: OnLost | None = None
    ) -> AsyncGenerator[FeedPage, None]:
        """Yield pages of the events of all sessions in commit order as they come, for ever; the first may be empty.

        Reconnects by itself: every event comes exactly once. Whoever keeps a page's `cursor` with what it did goes on
        after that page the next time, on whatever server.
        """
        return self._link.follow(FeedFollowing(self._link.settings, after, on_lost))

    async def server(self) -> ServerInfo:
        """Return which server answers."""
        return await self._link.send(operations.server())

    async def close(self) -> None:
        """Close the connections. The client cannot be used afterwards."""
        await self._link.http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncAgents:
    """The agents of the environment's current deployment."""

    def __init__(self, link: AsyncLink) -> None:
        self._link = link

    def __getitem__(self, name: str) -> AsyncAgentHandle:
        return AsyncAgentHandle(self._link, name)

    async def list(self) -> list[Agent]:
        """Return all agents, by id."""
        return (await self._link.send(operations.agents())).agents

    async def get(self, name: str) -> Agent:
        """Return one agent's definition; raises `AgentNotFound`."""
        return await self._link.send(operations.agent(name))


class AsyncAgentHandle:
    """One agent, by name."""

    def __init__(self, link: AsyncLink, name: str) -> None:
        self._link = link
        self.name = name

    async def get(self) -> Agent:
        """Return the agent's definition; raises `AgentNotFound`."""
        return await self._link.send(operations.agent(self.name))

    async def create_session(
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
        return await self._link.send(operations.create_session(self.name, parts, key, idempotency_key))

    async def get_or_create(
        self,
        key: str,
        *,
        text: str | None = None,
        input: Input | None = None,
        idempotency_key: str | None = None,
    ) -> Receipt:
        """Find the session of a key or create it, and enqueue the text or input if there is one."""
        parts = chosen_input(text, input)
        return await self._link.send(operations.get_or_create(self.name, key, parts, idempotency_key))

    async def session(self, key: str) -> AsyncSessionHandle:
        """Return a handle on the agent's session of that key; raises `SessionNotFound`."""
        found = (await self._link.send(operations.sessions(self.name, key, None, None, None))).sessions
        if not found:
            raise SessionNotFound(key)
        return AsyncSessionHandle(self._link, found[0].id)


class AsyncSessions:
    """The sessions of the environment."""

    def __init__(self, link: AsyncLink) -> None:
        self._link = link

    async def list(
        self,
        *,
        agent: str | None = None,
        key: str | None = None,
        status: str | Sequence[str] | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> SessionPage:
        """Return a page of sessions, newest first: 50 or `limit`, 100 at most; `cursor` is the last page's."""
        return await self._link.send(operations.sessions(agent, key, status, cursor, limit))

    async def iter(
        self, *, agent: str | None = None, key: str | None = None, status: str | Sequence[str] | None = None
    ) -> AsyncIterator[Session]:
        """Yield all sessions, newest first, asking for pages as they are needed."""
        cursor: str | None = None
        while True:
            page = await self.list(agent=agent, key=key, status=status, cursor=cursor)
            for item in page.sessions:
                yield item
            if (cursor := page.next_cursor) is None:
                return


class AsyncDeployments:
    """The deployments of the environment."""

    def __init__(self, link: AsyncLink) -> None:
        self._link = link

    async def list(self, *, cursor: str | None = None, limit: int | None = None) -> DeploymentPage:
        """Return a page of deployments, newest first."""
        return await self._link.send(operations.deployments(cursor, limit))

    async def get(self, deployment_id: str) -> Deployment:
        """Return one deployment; raises `DeploymentNotFound`."""
        return await self._link.send(operations.deployment(deployment_id))

    async def promote(self, deployment_id: str) -> Deployment:
        """Make a deployment the environment's current one: new sessions begin on it."""
        return await self._link.send(operations.promote(deployment_id))


class AsyncSessionHandle:
    """One session, by id. All methods raise `SessionNotFound` when there is none."""

    def __init__(self, link: AsyncLink, session_id: str) -> None:
        self._link = link
        self.id = session_id

    async def get(self) -> Session:
        """Return the session as it is now."""
        return await self._link.send(operations.session(self.id))

    async def enqueue(
        self, input: Input | None = None, *, text: str | None = None, idempotency_key: str | None = None
    ) -> Receipt:
        """Accept an input as a new turn behind those that wait; raises `SessionNotOpen` and `QueueFull`."""
        return await self._link.send(operations.enqueue(self.id, needed_input(text, input), idempotency_key))

    async def send(
        self, input: Input | None = None, *, text: str | None = None, idempotency_key: str | None = None
    ) -> SendReceipt:
        """Steer the running turn if its handler takes messages, else enqueue; raises `SessionHeld` too."""
        return await self._link.send(operations.send(self.id, needed_input(text, input), idempotency_key))

    async def interrupt(self, *, reason: str | None = None, idempotency_key: str | None = None) -> ControlReceipt:
        """Stop the running turn and hold the session; the receipt's `hold_id` is what `resume` takes."""
        return await self._link.send(operations.interrupt(self.id, reason, idempotency_key))

    async def resume(self, hold_id: str, *, idempotency_key: str | None = None) -> ControlReceipt:
        """Release exactly one hold; twice changes nothing. Raises `HoldNotFound`."""
        return await self._link.send(operations.resume(self.id, hold_id, idempotency_key))

    async def close(self, *, idempotency_key: str | None = None) -> ControlReceipt:
        """Refuse new input, finish what was accepted, then end. Releases no hold."""
        return await self._link.send(operations.close(self.id, idempotency_key))

    async def cancel(self, *, idempotency_key: str | None = None) -> ControlReceipt:
        """End the session at once: its running turn and all queued ones are cancelled."""
        return await self._link.send(operations.cancel(self.id, idempotency_key))

    async def events(self, *, after: int = 0, limit: int | None = None) -> EventPage:
        """Return a page of the log after a sequence number: 100 events or `limit`, 1000 at most."""
        return await self._link.send(operations.events(self.id, after, limit))

    async def iter_events(self, *, after: int = 0, follow: bool = False) -> AsyncIterator[Event]:
        """Yield the log's events in order; with `follow`, new ones too, until the session is closed or cancelled."""
        if follow:
            async with aclosing(self.watch(after=after)) as items:
                async for item in items:
                    if isinstance(item, Event):
                        yield item
            return
        more = True
        while more:
            page = await self.events(after=after, limit=operations.EVENTS_A_PAGE)
            for item in page.events:
                yield item
            after, more = page.next_after, page.has_more

    def watch(self, *, after: int | None = None, on_lost: OnLost | None = None) -> AsyncGenerator[WatchItem, None]:
        """Yield a snapshot (or, with `after`, the events since), live updates, `CaughtUp`, and what is new.

        Reconnects by itself, for ever once it was connected: every durable event comes exactly once and in order,
        live updates and `CaughtUp` come again after a reconnect, and a reader that fell far behind gets a new snapshot.
        Ends with `End` when the session is closed or cancelled. `on_lost` is told of lost connections.
        """
        return self._link.follow(Watching(self._link.settings, self.id, after, on_lost))

    async def turns(self, *, after: int = 0, limit: int | None = None) -> TurnPage:
        """Return a page of turns after a sequence number, in order."""
        return await self._link.send(operations.turns(self.id, after, limit))

    async def iter_turns(self, *, after: int = 0) -> AsyncIterator[Turn]:
        """Yield all turns in order, asking for pages as they are needed."""
        next_after: int | None = after
        while next_after is not None:
            page = await self.turns(after=next_after)
            for item in page.turns:
                yield item
            next_after = page.next_after

    def turn(self, turn_id: str) -> AsyncTurnHandle:
        """Return a handle on one turn, without asking whether there is one."""
        return AsyncTurnHandle(self._link, self.id, turn_id)

    async def asks(self, *, status: str | None = None, cursor: str | None = None, limit: int | None = None) -> AskPage:
        """Return a page of questions, oldest first; `status` is pending, responded or cancelled."""
        return await self._link.send(operations.asks(self.id, status, cursor, limit))

    def ask(self, ask_id: str) -> AsyncAskHandle:
        """Return a handle on one question, without asking whether there is one."""
        return AsyncAskHandle(self._link, self.id, ask_id)

    async def runs(self, *, after: int = 0, limit: int | None = None) -> RunPage:
        """Return a page of the session's periods of execution, in order."""
        return await self._link.send(operations.runs(self.id, after, limit))

    async def logs(self, run_id: str, *, offset: int = 0, limit: int | None = None) -> LogPage:
        """Return what user code printed in a run, from a byte offset; raises `RunNotFound`."""
        return await self._link.send(operations.logs(self.id, run_id, offset, limit))


class AsyncTurnHandle:
    """One turn of a session, by id. All methods raise `TurnNotFound` when there is none."""

    def __init__(self, link: AsyncLink, session_id: str, turn_id: str) -> None:
        self._link = link
        self.session_id = session_id
        self.id = turn_id

    async def get(self) -> Turn:
        """Return the turn as it is now."""
        return await self._link.send(operations.turn(self.session_id, self.id))

    async def wait(self, timeout: Timeout = None) -> WaitResult:
        """Wait until the turn has ended: `settled`, or `timeout` when the time was up, which cancels nothing.

        Outlasts a restart of the server.
        """
        return await self._link.wait_turn(self.session_id, self.id, timeout)

    async def send(
        self, input: Input | None = None, *, text: str | None = None, idempotency_key: str | None = None
    ) -> MessageReceipt:
        """Say something to exactly this running turn; raises `MessageClosed` when it takes no messages."""
        parts = needed_input(text, input)
        return await self._link.send(operations.send_to_turn(self.session_id, self.id, parts, idempotency_key))


class AsyncAskHandle:
    """One question of a session, by id. All methods raise `AskNotFound` when there is none."""

    def __init__(self, link: AsyncLink, session_id: str, ask_id: str) -> None:
        self._link = link
        self.session_id = session_id
        self.id = ask_id

    async def get(self) -> Ask:
        """Return the question and, once there is one, its answer."""
        return await self._link.send(operations.ask(self.session_id, self.id))

    async def answer(self, answer: Any, *, response_id: str | None = None) -> Ask:
        """Answer the question. The first valid answer wins; the same `response_id` and answer return it again.

        Raises `AnswerInvalid`, `AskAlreadyResponded` and `AskCancelled`.
        """
        return await self._link.send(operations.answer_ask(self.session_id, self.id, answer, response_id))
