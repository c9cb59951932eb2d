"""What is broken in a chaos run: each nemesis breaks one thing, waits, and heals it again."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from tests.chaos.database import ClusterDatabase
from tests.chaos.network import Network
from tests.chaos.nodes import Node

HOUR: Final = 3600


@dataclass
class Stage:
    """Everything that can be broken. `lease` is that of the workers, in seconds."""

    workers: Sequence[Node]
    servers: Sequence[Node]
    database: ClusterDatabase
    network: Network
    lease: float
    random: random.Random
    database_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def nodes(self) -> list[Node]:
        """All workers and servers."""
        return [*self.workers, *self.servers]

    def free(self, nodes: Sequence[Node]) -> Node:
        """Return a node by chance, if possible one that nobody breaks just now."""
        unbroken = [node for node in nodes if not node.lock.locked()]
        return self.random.choice(unbroken or list(nodes))


@dataclass
class Injection:
    """One thing that was broken: when it was (seconds from the run's start), until when, and what came of it."""

    kind: str
    began: float = 0.0
    target: str = ""
    broken: float = 0.0
    healed: float = 0.0
    settled: float | None = None
    error: str = ""


Nemesis = Callable[[Stage, Injection], Awaitable[None]]


# --- nodes


async def kill_worker(stage: Stage, injection: Injection) -> None:
    """`kill -9` of a worker, which is started again a second later."""
    await _kill(stage, injection, stage.workers)


async def kill_server(stage: Stage, injection: Injection) -> None:
    """`kill -9` of a server, which is started again a second later."""
    await _kill(stage, injection, stage.servers)


async def _kill(stage: Stage, injection: Injection, nodes: Sequence[Node]) -> None:
    node = stage.free(nodes)
    async with node.lock:
        injection.target = node.name
        await node.stop(signal.SIGKILL)
        await asyncio.sleep(1.0)
        node.start()
        await node.until_ready()


async def kill_handler(stage: Stage, injection: Injection) -> None:
    """`kill -9` of a process in which a session lives."""
    found = [pid for node in stage.workers if node.pid is not None for pid in _descendants(node.pid)]
    if found:
        pid = stage.random.choice(found)
        injection.target = f"process {pid}"
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    """Return the processes below a worker's fork servers: those of sessions."""
    below: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            children = [int(word) for word in file.read().split()]
        for child in children:
            below += [child, *_descendants(child)]
    return below


async def stop_worker(stage: Stage, injection: Injection) -> None:
    """SIGSTOP of a worker for longer than its lease, then SIGCONT."""
    await _pause(stage, injection, stage.workers, stage.lease * 1.5 + 1)


async def suspend_worker(stage: Stage, injection: Injection) -> None:
    """A worker's machine is suspended for longer than its lease; on none of its clocks any time has passed then."""
    node = next(node for node in stage.workers if node.sleeps)
    async with node.lock:
        injection.target = node.name
        since = time.monotonic()
        node.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(stage.lease * 1.5 + 1)
            node.sleep_through(time.monotonic() - since)
        finally:
            node.signal(signal.SIGCONT)


async def stop_server(stage: Stage, injection: Injection) -> None:
    """SIGSTOP of a server for some seconds, then SIGCONT."""
    await _pause(stage, injection, stage.servers, 3.0)


async def _pause(stage: Stage, injection: Injection, nodes: Sequence[Node], seconds: float) -> None:
    node = stage.free(nodes)
    async with node.lock:
        injection.target = node.name
        node.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            node.signal(signal.SIGCONT)


async def restart_all(stage: Stage, injection: Injection) -> None:
    """SIGTERM of every worker and server, one after the other, each started again as in a rolling deploy."""
    injection.target = "all"
    for node in stage.nodes:
        async with node.lock:
            await node.stop(signal.SIGTERM)
            node.start()
            await node.until_ready()


# --- network and clocks


async def cut_worker(stage: Stage, injection: Injection) -> None:
    """A partition of a worker from the database, for longer than its lease."""
    await _cut(stage, injection, stage.workers, stage.lease * 1.5 + 1)


async def cut_server(stage: Stage, injection: Injection) -> None:
    """A partition of a server from the database, for some seconds."""
    await _cut(stage, injection, stage.servers, 4.0)


async def _cut(stage: Stage, injection: Injection, nodes: Sequence[Node], seconds: float) -> None:
    node = stage.free(nodes)
    async with node.lock:
        injection.target = node.name
        stage.network.cut(node.name)
        try:
            await asyncio.sleep(seconds)
        finally:
            stage.network.heal(node.name)


async def move_clocks(stage: Stage, injection: Injection) -> None:
    """The clocks of a worker and a server jump an hour ahead, then an hour behind, then back."""
    nodes = [node for node in stage.nodes if node.jumps]
    injection.target = ", ".join(node.name for node in nodes) or "none"
    for offset in (HOUR, -HOUR, 0):
        for node in nodes:
            node.set_clock(offset)
        await asyncio.sleep(2.0 if offset else 0.0)


# --- the database


async def restart_database(stage: Stage, injection: Injection) -> None:
    """An orderly restart of the primary: all its connections are ended."""
    await _restart(stage, injection, "fast")


async def crash_database(stage: Stage, injection: Injection) -> None:
    """A crash of the primary, which recovers."""
    await _restart(stage, injection, "immediate")


async def _restart(stage: Stage, injection: Injection, mode: str) -> None:
    async with stage.database_lock:
        injection.target = stage.database.cluster.primary.name
        await asyncio.to_thread(stage.database.restart, mode)


async def fail_over(stage: Stage, injection: Injection) -> None:
    """`kill -9` of all of the primary; its synchronous standby is promoted, and it comes back as the standby."""
    async with stage.database_lock:
        injection.target = stage.database.cluster.primary.name
        await asyncio.to_thread(stage.database.fail_over)
        await asyncio.sleep(1.0)
        await asyncio.to_thread(stage.database.rejoin)


async def lose_standby(stage: Stage, injection: Injection) -> None:
    """`kill -9` of the standby: until it is back no commit is acknowledged."""
    async with stage.database_lock:
        standby = await asyncio.to_thread(stage.database.lose_standby)
        injection.target = standby.name
        await asyncio.sleep(2.0)
        await asyncio.to_thread(standby.start)


async def freeze_database(stage: Stage, injection: Injection) -> None:
    """The primary stands still for some seconds, with all its connections open."""
    async with stage.database_lock:
        primary = stage.database.cluster.primary
        injection.target = primary.name
        await asyncio.to_thread(primary.freeze)
        try:
            await asyncio.sleep(3.0)
        finally:
            await asyncio.to_thread(primary.thaw)


async def fill_disk(stage: Stage, injection: Injection) -> None:
    """The database's disk is full for some seconds."""
    async with stage.database_lock:
        injection.target = "both"
        try:
            await asyncio.to_thread(stage.database.fill)
            await asyncio.sleep(4.0)
        finally:
            await asyncio.to_thread(stage.database.free)


async def drop_hints(stage: Stage, injection: Injection) -> None:
    """Whoever listens for hints loses its connection, again and again."""
    await _drop(stage, injection, 4.0, listeners=True)


async def drop_connections(stage: Stage, injection: Injection) -> None:
    """All connections to the database are ended by an administrator, twice."""
    await _drop(stage, injection, 0.5, listeners=False)


async def _drop(stage: Stage, injection: Injection, seconds: float, *, listeners: bool) -> None:
    async with stage.database_lock:
        until, dropped = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            dropped += await asyncio.to_thread(stage.database.drop, listeners=listeners)
            await asyncio.sleep(0.3)
        injection.target = f"{dropped} connections"


NEMESES: Final[dict[str, Nemesis]] = {
    nemesis.__name__: nemesis
    for nemesis in (
        kill_worker,
        stop_worker,
        drop_hints,
        restart_database,
        kill_server,
        cut_worker,
        crash_database,
        kill_handler,
        fail_over,
        stop_server,
        suspend_worker,
        lose_standby,
        move_clocks,
        cut_server,
        drop_connections,
        fill_disk,
        freeze_database,
        restart_all,
    )
}
"""All of them, in the order of a directed run."""


def missing(stage: Stage) -> dict[str, str]:
    """Return which nemeses this machine does not allow, and why."""
    found = {}
    no_clocks = "there is no libfaketime: apt-get install libfaketime"
    if not any(node.jumps for node in stage.nodes):
        found["move_clocks"] = no_clocks
    if not any(node.sleeps for node in stage.workers):
        found["suspend_worker"] = no_clocks
    if not stage.database.small:
        found["fill_disk"] = "only root may mount a small disk"
    return found
