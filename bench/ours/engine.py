"""Perdure in process: a store, an engine and its service, and one turn through them as the server would do it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from bench import disk
from bench.load import INPUT
from perdure.authoring.project import load_project
from perdure.engine.deployments import Deployments
from perdure.engine.engine import Engine, Settings
from perdure.engine.operations import EngineService
from perdure.engine.service import Scope
from perdure.records import instants
from perdure.records.ids import new_id
from perdure.records.sessions import Issuer
from perdure.store import open_store
from perdure.store.port import Committed, Deployment

PROJECT = Path(__file__).parent.parent / "project"
SCOPE = Scope("demo", "development", Issuer("user", "bench"))
PATIENCE = 60 * instants.SECOND
ALWAYS_AWAKE = Settings(sleep_after=3600.0, awake=1 << 30)
RESTLESS = Settings(sleep_after=0.0, awake=0)
"""Idle sessions sleep at the engine's next sweep, within a second or so."""


class Receipt(msgspec.Struct):
    session_id: str
    turn_id: str


class Perdure:
    """One engine on one data folder, with its store in it or at a URL. Conversations have names here and ids there."""

    def __init__(self, folder: Path, settings: Settings, store: str | None = None) -> None:
        self._folder, self._settings = folder, settings
        self._store = open_store(store or folder)
        self._acknowledged = 0
        self._sessions: dict[str, str] = {}
        self._receipts = msgspec.json.Decoder(Receipt)

    async def open(self) -> None:
        await self._store.open()
        # Only a store that is open can say whether it is shared.
        deployments = Deployments(self._store, self._folder)
        self._engine = Engine(self._store, self._folder, deployments, settings=self._settings)
        self._service = EngineService(self._engine)
        project = load_project(PROJECT)
        deployment = Deployment(new_id(), SCOPE.id, "bench", instants.now(), str(PROJECT), project.definitions)
        stored = await self._store.put_deployment(deployment)
        await deployments.promote(SCOPE.id, stored.id)
        self._store.subscribe(self._count)
        await self._engine.start()

    async def close(self) -> None:
        """Stop gracefully."""
        await self._engine.stop()
        await self._store.close()

    def _count(self, news: Committed) -> None:
        # Without a command it tells of another process's commit.
        self._acknowledged += news.command is not None

    async def counted(self, work: Callable[..., Awaitable[dict[str, Any]]], **arguments: Any) -> dict[str, Any]:
        """What `work` answers, and how many commands were acknowledged as durable meanwhile."""
        before = self._acknowledged
        answer = await work(self.turn, **arguments)
        return {**answer, "acknowledged": self._acknowledged - before}

    async def turn(self, conversation: str, index: int) -> None:
        """One whole turn: admitted, run, its end committed and known here."""
        session = self._sessions.get(conversation)
        if session is None:
            answer = await self._service.create_session(SCOPE, "plain", input=INPUT)
        else:
            answer = await self._service.enqueue(SCOPE, session, INPUT)
        receipt = self._receipts.decode(answer)
        self._sessions[conversation] = receipt.session_id
        turn = await self._service.wait_turn(SCOPE, receipt.session_id, receipt.turn_id, PATIENCE)
        assert turn.status == "completed", turn

    async def keyed(self, key: str) -> str:
        """The id of a new session with a key, whose first turn has ended."""
        receipt = self._receipts.decode(await self._service.create_session(SCOPE, "plain", input=INPUT, key=key))
        await self._service.wait_turn(SCOPE, receipt.session_id, receipt.turn_id, PATIENCE)
        return receipt.session_id

    async def asleep(self) -> None:
        """Return once no session is in the engine's memory; for a restless engine only."""
        while self._engine.awake:
            await asyncio.sleep(0.01)

    async def stored(self) -> int:
        """Bytes of the database file with its log folded in."""
        return await asyncio.to_thread(disk.stored, self._folder / "perdure.db")

    async def sessions(self) -> dict[str, str]:
        """Names and ids, for a later process on the same folder."""
        return self._sessions

    async def know(self, sessions: dict[str, str]) -> None:
        """Take over the names of an earlier process."""
        self._sessions.update(sessions)
