"""A node: store, engine, hosts and service of one data folder, put together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from perdure.computers.local import LocalBackend
from perdure.computers.machine import machine_id
from perdure.deploy.build import sweep_unfinished
from perdure.engine.deployments import Deployments
from perdure.engine.engine import Engine, Settings
from perdure.engine.operations import EngineService
from perdure.hosts.logs import capture
from perdure.hosts.process.host import ProcessHost
from perdure.store import open_store
from perdure.store.port import Listener, Store
from perdure.telemetry.process import observed

_LONGEST_BUILD: Final = 3600.0


@dataclass(frozen=True)
class Node:
    """What runs in one process of the server's."""

    data: Path
    store: Store
    engine: Engine
    service: EngineService


@asynccontextmanager
async def open_node(
    data: Path,
    *,
    store: str | None = None,
    works: bool = True,
    address: str | None = None,
    following: frozenset[str] = frozenset(),
    settings: Settings | None = None,
) -> AsyncIterator[Node]:
    """Open a store and drive its sessions until the block is left; then stop gracefully.

    `store` is the store's address, by default the data folder itself; without `works` its sessions are others' to run.
    `data` is this machine's folder for code, logs and Computers; workers that use the same one adopt each other's
    processes. `following` names the environments whose sessions take the current deployment at their next run. Raises
    `StoreInUse`, `StoreTooNew` and other `StoreError`s when the store cannot be opened.
    """
    opened = open_store(store or data, address=address)
    await opened.open()
    try:
        async with _drive(opened, data, following, replace(settings or Settings(), works=works)) as node:
            yield node
    finally:
        await opened.close()


@asynccontextmanager
async def _drive(store: Store, data: Path, following: frozenset[str], settings: Settings) -> AsyncIterator[Node]:
    alone = store.leases is None
    await asyncio.to_thread(sweep_unfinished, data / "deployments", older_than=0.0 if alone else _LONGEST_BUILD)
    host = ProcessHost(data / "computers", data / "servers") if settings.works else None
    computers = host.computers if host is not None else LocalBackend(data / "computers")
    backend = await computers.capabilities()
    capture()
    machine = await asyncio.to_thread(machine_id, data)
    engine = Engine(store, data, Deployments(store, data, following), host, settings, machine=machine)
    service = EngineService(engine, backend=backend)
    counted = {"awake": lambda: engine.awake, "watchers": lambda: len(engine.hub)}
    async with observed(_own_commits(store), works=settings.works, **counted):
        await engine.start()
        try:
            yield Node(data, store, engine, service)
        finally:
            await engine.stop()


def _own_commits(store: Store) -> Callable[[Listener], Callable[[], None]]:
    """Return how to subscribe to what this process commits; what others do is theirs to count."""
    return lambda listener: store.subscribe(listener, lambda _: False)
