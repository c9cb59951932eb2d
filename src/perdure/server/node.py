"""A node: store, engine, hosts and service of one data folder, put together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from perdure.deploy.build import sweep_unfinished
from perdure.engine.deployments import Deployments
from perdure.engine.engine import Engine, Settings
from perdure.engine.operations import EngineService
from perdure.hosts.logs import capture
from perdure.hosts.process.host import ProcessHost
from perdure.store import open_store
from perdure.store.port import Store


@dataclass(frozen=True)
class Node:
    """What runs in one process of the server's."""

    data: Path
    store: Store
    engine: Engine
    service: EngineService


@asynccontextmanager
async def open_node(
    data: Path, *, address: str | None = None, following: frozenset[str] = frozenset(), settings: Settings | None = None
) -> AsyncIterator[Node]:
    """Open a data folder and drive its sessions until the block is left; then stop gracefully.

    `following` names the environments whose sessions take the current deployment at their next run. Raises
    `StoreInUse`, `StoreTooNew` and other `StoreError`s when the folder cannot be opened.
    """
    store = open_store(data, address=address)
    await store.open()
    try:
        await asyncio.to_thread(sweep_unfinished, data / "deployments")
        host = ProcessHost(data / "computers", data / "servers")
        capture()
        engine = Engine(store, data, Deployments(store, following), host, settings)
        service = EngineService(engine, backend=await host.computers.capabilities())
        await engine.start()
        try:
            yield Node(data, store, engine, service)
        finally:
            await engine.stop()
    finally:
        await store.close()
