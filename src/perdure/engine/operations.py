"""The engine's service: each operation as a command on the store, or a read of it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from perdure.computers.base import Capabilities
from perdure.crashpoints import areach
from perdure.deploy.build import build
from perdure.engine.deployments import agent_of
from perdure.engine.engine import Engine
from perdure.engine.feeds import follow_feed
from perdure.engine.service import ComputerView, LogChunk, Scope, Service, SessionView, WatchItem
from perdure.engine.watches import Follower
from perdure.errors import (
    AskNotFound,
    BadRequest,
    DeploymentNotFound,
    EnvironmentNotFound,
    PerdureError,
    RunNotFound,
    SessionKeyConflict,
    SessionNotFound,
    TurnNotFound,
    Unavailable,
)
from perdure.records import canonical
from perdure.records.content import ContentLike, encode_content
from perdure.records.definitions import AgentDefinition
from perdure.records.ids import check_id, check_key, new_id
from perdure.records.instants import SECOND
from perdure.records.sessions import ENDED, Ask, ComputerState, Run, SessionHead, Turn
from perdure.rules import commands as c
from perdure.rules.decision import receipt
from perdure.rules.retention import gone
from perdure.store.port import Deployment, EventPage, FeedPage, SessionFilter

_REASON_BYTES: Final = 4096
_ENVIRONMENTS: Final = 10_000
_LAST_OF_A_LOG: Final = 5 * SECOND


class EngineService(Service):
    """Answers the outside from one engine and its store."""

    def __init__(self, engine: Engine, *, backend: Capabilities | None = None) -> None:
        self._engine: Final = engine
        self._store: Final = engine.store
        self._backend = backend
        self._environments: dict[str, str] = {}

    # --- admission

    async def create_session(
        self,
        scope: Scope,
        agent: str,
        *,
        input: ContentLike | None = None,
        key: str | None = None,
        idempotency_key: str | None = None,
    ) -> bytes:
        content = None if input is None else encode_content(input, "input")
        if key is not None:
            check_key(key, "session key")
        asked = [agent.encode(), (key or "").encode(), b"" if key is None else b"k", content or b""]
        identity = _identity(scope, "create", agent, idempotency_key, *asked)
        return await self._create(scope, agent, content, key, identity)

    async def _create(
        self, scope: Scope, agent: str, content: bytes | None, key: str | None, identity: c.Idempotency | None
    ) -> bytes:
        try:
            deployment = await self._engine.deployments.current(scope.id)
            definition = agent_of(deployment, agent)
        except PerdureError:
            first = await self._store.receipt(identity) if identity is not None else None
            if first is None:
                raise
            # It was accepted before, while the agent was there: that receipt stands.
            return first
        template = definition.template
        command = c.CreateSession(
            session_id=new_id(),
            environment=scope.id,
            idempotency=identity,
            agent=agent,
            deployment=deployment.id,
            host=definition.host,
            limits=definition.limits,
            key=key,
            computer=None if template is None else ComputerState(new_id(), template.id),
            turn=None if content is None else c.NewTurn(new_id(), content),
            permit=self._engine.permit_new(deployment.id, definition) if content is not None else None,
            resumes=definition.resumes,
        )
        return await self._admit(command)

    async def get_or_create(
        self,
        scope: Scope,
        agent: str,
        *,
        key: str,
        input: ContentLike | None = None,
        idempotency_key: str | None = None,
    ) -> bytes:
        check_key(key, "session key")
        content = None if input is None else encode_content(input, "input")
        # One identity for both ways, so that the request sent again is known whichever way it went at first.
        identity = _identity(scope, "get_or_create", agent, idempotency_key, key.encode(), content or b"")
        session_id = await self._store.find_key(scope.id, agent, key)
        if session_id is None or (content is None and identity is not None):
            try:
                return await self._create(scope, agent, content, key, identity)
            except SessionKeyConflict as conflict:
                # Someone else created it before.
                session_id = conflict.details["session_id"]
        if content is None:
            return receipt(session_id=session_id, turn_id=None, sequence=None, created=False)
        return await self._enqueue(scope, session_id, content, identity)

    async def enqueue(
        self, scope: Scope, session_id: str, input: ContentLike, *, idempotency_key: str | None = None
    ) -> bytes:
        check_id(session_id, "session id")
        content = encode_content(input, "input")
        identity = _identity(scope, "enqueue", session_id, idempotency_key, content)
        return await self._enqueue(scope, session_id, content, identity)

    async def _enqueue(self, scope: Scope, session_id: str, content: bytes, identity: c.Idempotency | None) -> bytes:
        return await self._admit(
            c.Enqueue(
                session_id=session_id,
                environment=scope.id,
                idempotency=identity,
                turn=c.NewTurn(new_id(), content),
                permit=self._engine.permit(session_id),
            )
        )

    async def send(
        self, scope: Scope, session_id: str, input: ContentLike, *, idempotency_key: str | None = None
    ) -> bytes:
        check_id(session_id, "session id")
        turn = c.NewTurn(new_id(), encode_content(input, "input"))
        return await self._admit(
            c.Send(
                session_id=session_id,
                environment=scope.id,
                idempotency=_identity(scope, "send", session_id, idempotency_key, turn.input_json),
                turn=turn,
                message_id=new_id(),
                permit=self._engine.permit(session_id),
            )
        )

    async def send_to_turn(
        self, scope: Scope, session_id: str, turn_id: str, input: ContentLike, *, idempotency_key: str | None = None
    ) -> bytes:
        check_id(session_id, "session id")
        check_id(turn_id, "turn id")
        content = encode_content(input, "message")
        return await self._admit(
            c.SendToTurn(
                session_id=session_id,
                environment=scope.id,
                idempotency=_identity(scope, "send_to_turn", f"{session_id}/{turn_id}", idempotency_key, content),
                turn_id=turn_id,
                message_id=new_id(),
                content_json=content,
            )
        )

    async def _admit(self, command: c.Command) -> bytes:
        if self._engine.draining:
            raise Unavailable("The server is stopping. Nothing was accepted; send it again with the same key.")
        answer: bytes = await self._apply(command)
        return answer

    async def _apply(self, command: c.Command) -> Any:
        label = type(command).__name__
        await areach("engine.admit.before", label)
        applied = await self._store.apply(command)
        await areach("engine.admit.after", label)
        return applied.receipt

    # --- controls

    async def interrupt(
        self, scope: Scope, session_id: str, *, reason: str | None = None, idempotency_key: str | None = None
    ) -> bytes:
        if reason is not None and len(reason.encode("utf-8", "replace")) > _REASON_BYTES:
            raise BadRequest(f"The reason is longer than {_REASON_BYTES} bytes. Nothing was changed.")
        check_id(session_id, "session id")
        message = None if reason is None else canonical.clean_text(reason)
        return await self._admit(
            c.Interrupt(
                session_id=session_id,
                environment=scope.id,
                idempotency=_identity(scope, "interrupt", session_id, idempotency_key, (message or "").encode()),
                control_id=new_id(),
                hold_id=new_id(),
                issuer=scope.issuer,
                message=message,
            )
        )

    async def resume(self, scope: Scope, session_id: str, hold_id: str, *, idempotency_key: str | None = None) -> bytes:
        check_id(session_id, "session id")
        check_id(hold_id, "hold id")
        return await self._admit(
            c.Resume(
                session_id=session_id,
                environment=scope.id,
                idempotency=_identity(scope, "resume", session_id, idempotency_key, hold_id.encode()),
                control_id=new_id(),
                hold_id=hold_id,
                issuer=scope.issuer,
            )
        )

    async def close(self, scope: Scope, session_id: str, *, idempotency_key: str | None = None) -> bytes:
        return await self._control(c.Close, scope, session_id, idempotency_key)

    async def cancel(self, scope: Scope, session_id: str, *, idempotency_key: str | None = None) -> bytes:
        return await self._control(c.Cancel, scope, session_id, idempotency_key)

    async def _control(
        self, kind: type[c.Close | c.Cancel], scope: Scope, session_id: str, idempotency_key: str | None
    ) -> bytes:
        check_id(session_id, "session id")
        return await self._admit(
            kind(
                session_id=session_id,
                environment=scope.id,
                idempotency=_identity(scope, kind.__name__, session_id, idempotency_key),
                control_id=new_id(),
                issuer=scope.issuer,
            )
        )

    async def answer_ask(self, scope: Scope, session_id: str, ask_id: str, answer: Any, response_id: str) -> Ask:
        check_id(session_id, "session id")
        check_id(ask_id, "question id")
        ask: Ask = await self._apply(
            c.AnswerAsk(
                session_id=session_id,
                environment=scope.id,
                ask_id=ask_id,
                answer_json=canonical.encode(answer, "answer"),
                response_id=check_key(response_id, "response id"),
                issuer=scope.issuer,
            )
        )
        return ask

    # --- reading

    async def _head(self, scope: Scope, session_id: str) -> SessionHead:
        check_id(session_id, "session id")
        head = self._engine.head_in_memory(session_id) or await self._store.head(session_id)
        if head is None or head.environment != scope.id:
            raise SessionNotFound(session_id)
        return head

    async def _check_scope(self, scope: Scope, session_id: str) -> None:
        """Raise `SessionNotFound` unless the session is in the environment, which never changes."""
        if self._environments.get(session_id) != scope.id:
            self._environments[session_id] = (await self._head(scope, session_id)).environment
            while len(self._environments) > _ENVIRONMENTS:
                del self._environments[next(iter(self._environments))]

    async def session(self, scope: Scope, session_id: str) -> SessionView:
        return self._view(await self._head(scope, session_id))

    def _view(self, head: SessionHead) -> SessionView:
        if head.computer is None or self._backend is None:
            return SessionView(head, None)
        computer = ComputerView(
            head.computer.id,
            head.computer.template,
            self._backend.backend,
            head.computer.residency,
            self._backend.isolation,
            self._backend.keeps,
        )
        return SessionView(head, computer)

    async def _view_later(self, head: SessionHead) -> SessionView:
        return self._view(head)

    async def sessions(
        self,
        scope: Scope,
        *,
        agent: str | None = None,
        key: str | None = None,
        statuses: tuple[str, ...] = (),
        before: str | None = None,
        limit: int = 50,
    ) -> list[SessionView]:
        which = SessionFilter(scope.id, agent, key, statuses)
        return [self._view(head) for head in await self._store.sessions(which, before, limit)]

    async def turn(self, scope: Scope, session_id: str, turn_id: str) -> Turn:
        await self._head(scope, session_id)
        return await self._turn(session_id, turn_id)

    async def _turn(self, session_id: str, turn_id: str) -> Turn:
        check_id(turn_id, "turn id")
        turn = await self._store.turn(session_id, turn_id)
        if turn is None:
            head = await self._store.head(session_id)
            raise TurnNotFound(turn_id, gone(head) if head is not None else "")
        return turn

    async def turns(self, scope: Scope, session_id: str, *, after: int = 0, limit: int = 50) -> list[Turn]:
        await self._head(scope, session_id)
        return await self._store.turns(session_id, after, limit)

    async def wait_turn(self, scope: Scope, session_id: str, turn_id: str, timeout: int) -> Turn:
        await self._check_scope(scope, session_id)
        wait = self._engine.waits.add(session_id)
        ended = None
        try:
            number = self._engine.running_turn(session_id, turn_id)
            if number is None:
                turn = await self._turn(session_id, turn_id)
                if turn.status in ENDED:
                    return turn
                number = turn.number
            async with asyncio.timeout(timeout / 1_000_000):
                ended = await wait.until(number)
        except TimeoutError:
            pass
        finally:
            self._engine.waits.remove(session_id, wait)
        return ended or await self._turn(session_id, turn_id)

    async def asks(
        self, scope: Scope, session_id: str, *, status: str | None = None, after: str = "", limit: int = 50
    ) -> list[Ask]:
        await self._head(scope, session_id)
        return await self._store.asks(session_id, status, after, limit)

    async def ask(self, scope: Scope, session_id: str, ask_id: str) -> Ask:
        head = await self._head(scope, session_id)
        ask = await self._store.ask(session_id, check_id(ask_id, "question id"))
        if ask is None:
            raise AskNotFound(ask_id, gone(head))
        return ask

    async def events(self, scope: Scope, session_id: str, *, after: int = 0, limit: int = 100) -> EventPage:
        await self._head(scope, session_id)
        return await self._store.events(session_id, after, limit)

    async def watch(self, scope: Scope, session_id: str, after: int | None = None) -> AsyncIterator[WatchItem]:
        await self._head(scope, session_id)
        follower = Follower(self._store, self._engine.hub, self._view_later, session_id, after)
        async for item in follower.follow():
            yield item

    async def feed(self, scope: Scope, *, after: str = "", limit: int = 100) -> FeedPage:
        return await self._store.feed(await self._environment(scope), after, limit)

    async def follow(self, scope: Scope, after: str = "") -> AsyncIterator[FeedPage]:
        async for page in follow_feed(self._store, await self._environment(scope), after):
            yield page

    async def _environment(self, scope: Scope) -> str:
        if await self._store.environment(scope.id) is None:
            raise EnvironmentNotFound(scope.id, "Deploy there first: perdure deploy DIR --project P --env E.")
        return scope.id

    async def runs(self, scope: Scope, session_id: str, *, after: int = 0, limit: int = 50) -> list[Run]:
        await self._head(scope, session_id)
        return await self._store.runs(session_id, after, limit)

    async def run_log(
        self, scope: Scope, session_id: str, run_id: str, *, offset: int = 0, limit: int = 65536
    ) -> LogChunk:
        head = await self._head(scope, session_id)
        run = await self._store.run(session_id, check_id(run_id, "run id"))
        if run is None:
            raise RunNotFound(run_id, gone(head))
        data = await asyncio.to_thread(_read_file, self._engine.log_path(run_id), offset, limit)
        over = run.ended_at
        if data is None:
            # It was printed on another machine, whose worker brings the last of it a moment after the run's end.
            data = await self._store.log(run_id, offset, limit)
            over = None if over is None or self._engine.clock() < over + _LAST_OF_A_LOG else over
        return LogChunk(data, offset + len(data), over is not None and len(data) < limit)

    # --- agents and deployments

    async def agents(self, scope: Scope) -> list[AgentDefinition]:
        return list((await self._engine.deployments.current(scope.id)).agents)

    async def agent(self, scope: Scope, agent: str) -> AgentDefinition:
        return agent_of(await self._engine.deployments.current(scope.id), agent)

    async def deploy(self, scope: Scope, archive: bytes, *, promote: bool = True) -> Deployment:
        deployment_id = new_id()
        folder = self._engine.data / "deployments" / deployment_id
        built = await build(archive, folder)
        stored = await self._store.put_deployment(
            Deployment(
                id=deployment_id,
                environment=scope.id,
                digest=built.digest,
                created_at=self._engine.clock(),
                source=str(built.source_dir),
                agents=built.definitions,
            ),
            archive,
        )
        if stored.id != deployment_id:
            # The environment has this very source already: that deployment stands, its folder is enough.
            await asyncio.to_thread(shutil.rmtree, folder)
        return await self.promote(scope, stored.id) if promote else stored

    async def promote(self, scope: Scope, deployment_id: str) -> Deployment:
        deployment = await self.deployment(scope, deployment_id)
        await self._engine.deployments.promote(scope.id, deployment.id)
        self._engine.look_again()
        return deployment

    async def deployments(self, scope: Scope, *, before: str | None = None, limit: int = 50) -> list[Deployment]:
        return await self._store.deployments(scope.id, before, limit)

    async def deployment(self, scope: Scope, deployment_id: str) -> Deployment:
        deployment = await self._store.deployment(check_id(deployment_id, "deployment id"))
        if deployment is None or deployment.environment != scope.id:
            raise DeploymentNotFound(deployment_id)
        return deployment

    # --- health

    async def check_ready(self) -> None:
        if self._engine.draining:
            raise Unavailable("The server is stopping.")
        try:
            await self._store.environments()
        except PerdureError as error:
            raise Unavailable(f"The store does not answer: {error}") from error


def _identity(scope: Scope, operation: str, target: str, key: str | None, *asked: bytes) -> c.Idempotency | None:
    """Return an operation's identity: the same key on another operation or session is another operation."""
    if key is None:
        return None
    check_key(key, "idempotency key")
    caller = f"{scope.issuer.kind}:{scope.issuer.id}"
    where = canonical.digest(scope.id.encode(), caller.encode(), operation.encode(), target.encode(), key.encode())
    return c.Idempotency(key, where, canonical.digest(*asked))


def _read_file(path: Path, offset: int, limit: int) -> bytes | None:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(limit)
    except FileNotFoundError:
        return None
