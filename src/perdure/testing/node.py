"""A node in the test's own process and event loop: the real store, engine and hosts, without HTTP."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from perdure.computers.machine import machine_id
from perdure.deploy.archive import pack
from perdure.engine.deployments import Deployments
from perdure.engine.engine import Engine, Settings
from perdure.engine.operations import EngineService
from perdure.engine.service import Scope
from perdure.hosts.process.host import ProcessHost
from perdure.records import instants
from perdure.records.durations import parse_duration
from perdure.records.sessions import Issuer
from perdure.store import open_store
from perdure.store.port import Deployment, Store

SCOPE: Final = Scope("demo", "development", Issuer("user", "local"))


class ManualClock:
    """A clock that moves only when it is told to. Calling it returns its instant, in microseconds."""

    def __init__(self, start: int | None = None) -> None:
        """Take the first instant; by default that of the machine's clock."""
        self.now = instants.now() if start is None else start

    def __call__(self) -> int:
        return self.now

    def advance(self, by: str) -> None:
        """Move on by a duration such as `"5m"`."""
        self.now += parse_duration(by)


@dataclass(frozen=True)
class LocalNode:
    """What `local_node` has opened. `service` has the operations, to be called with `scope`."""

    store: Store
    engine: Engine
    service: EngineService
    scope: Scope = SCOPE

    async def deploy(self, project: str | os.PathLike[str]) -> Deployment:
        """Build a project and make it current; raises `ProjectError` kinds."""
        return await self.service.deploy(self.scope, pack(Path(project)).data)

    def look_at_clock(self) -> None:
        """Have timers look at the clock, after it was moved by hand."""
        self.engine.look_again()


@asynccontextmanager
async def local_node(
    data: str | os.PathLike[str],
    project: str | os.PathLike[str] | None = None,
    *,
    clock: Callable[[], int] = instants.now,
    settings: Settings | None = None,
) -> AsyncIterator[LocalNode]:
    """Open a data folder in this process, deploy `project` if one is given, and drive its sessions in this loop.

    Leaving the block stops gracefully. Raises `StoreInUse` and other `StoreError`s, and `ProjectError` kinds.
    """
    folder = Path(data)
    store = open_store(folder, clock=clock)
    await store.open()
    try:
        host = ProcessHost(folder / "computers", folder / "servers")
        engine = Engine(
            store, folder, Deployments(store, folder), host, settings or Settings(drain=0.1), clock, machine_id(folder)
        )
        node = LocalNode(store, engine, EngineService(engine, backend=await host.computers.capabilities()))
        await engine.start()
        try:
            if project is not None:
                await node.deploy(project)
            yield node
        finally:
            await engine.stop()
    finally:
        await store.close()
