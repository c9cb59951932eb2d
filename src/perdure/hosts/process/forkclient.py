"""The worker's end of its fork servers: finds the one of a deployment and template, or starts it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import perdure
from perdure.computers.environment import clean_environment
from perdure.computers.exits import wait_child
from perdure.computers.identity import ProcessIdentity
from perdure.errors import ProcessStartFailed
from perdure.hosts.process.child import empty_mark
from perdure.hosts.process.exitnotes import ExitNote
from perdure.hosts.process.guest import Launch
from perdure.hosts.process.serverwire import FROM_SERVER, Exited, Spawn, Spawned, SpawnFailed
from perdure.hosts.process.sockets import dial_path, listen
from perdure.hosts.process.wire import Connection, connect, encode, rebuild_failure

START_TIMEOUT: Final = 60.0
_DESCRIPTOR: Final = 3
_LAST_MOMENT: Final = 1.0


class ForkServerGone(ProcessStartFailed):
    """Raised when a fork server ended before it answered: it may or may not have forked. Internal to the host."""


@dataclass(frozen=True)
class ServerRecipe:
    """What makes one fork server different from another: the code and the environment that its children share."""

    deployment_id: str
    source: str
    template_id: str
    environment: Mapping[str, str]

    def key(self) -> str:
        """Return a file name for it, without secrets in it."""
        parts = [perdure.__version__, sys.executable, self.deployment_id, self.source, self.template_id]
        parts += [f"{name}={value}" for name, value in sorted(self.environment.items())]
        return hashlib.blake2b("\0".join(parts).encode(), digest_size=12).hexdigest()


@dataclass
class _Server:
    """A connection to a fork server."""

    connection: Connection
    spawning: dict[int, asyncio.Future[Spawned | SpawnFailed]] = field(default_factory=dict)
    last_id: int = 0


class ForkServers:
    """All fork servers that this worker uses. `exited` is told of every guest whose end they report."""

    def __init__(self, folder: Path, exited: Callable[[ExitNote], None]) -> None:
        """Take the folder for sockets and logs; it is made when first needed."""
        self._folder, self._exited = folder, exited
        self._servers: dict[str, _Server] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        self._reapers: set[asyncio.Task[None]] = set()

    async def spawn(self, recipe: ServerRecipe, launch: Launch) -> ProcessIdentity:
        """Have a guest forked. Raises `ProcessStartFailed`, or the project's own error when it does not import."""
        server = await self._server(recipe)
        server.last_id += 1
        number = server.last_id
        answer: asyncio.Future[Spawned | SpawnFailed] = asyncio.get_running_loop().create_future()
        server.spawning[number] = answer
        server.connection.send(encode(Spawn(number, launch)))
        try:
            async with asyncio.timeout(START_TIMEOUT):
                reply = await answer
        except TimeoutError:
            server.connection.close("it was too slow")
            raise ProcessStartFailed(
                f"The project of deployment {recipe.deployment_id} was not imported in {START_TIMEOUT:g} s. No process "
                f"was started and the input stays queued; see {self._log(recipe.key())}."
            ) from None
        finally:
            server.spawning.pop(number, None)
        if isinstance(reply, SpawnFailed) and reply.failure is not None:
            # It could not import the project, and ends.
            self._forget(recipe.key(), server)
        return self._process(reply)

    @staticmethod
    def _process(reply: Spawned | SpawnFailed) -> ProcessIdentity:
        if isinstance(reply, Spawned) and reply.process is not None:
            return reply.process
        if isinstance(reply, SpawnFailed) and reply.failure is not None:
            raise rebuild_failure(reply.failure)
        why = reply.message if isinstance(reply, SpawnFailed) else "it ended at once"
        raise ProcessStartFailed(f"The session's process could not be started: {why}. Its input stays queued.")

    async def warm(self, recipe: ServerRecipe) -> None:
        """Start the server of `recipe` ahead of need; it imports the project in the background."""
        await self._server(recipe)

    async def find(self, recipe: ServerRecipe) -> None:
        """Connect to the server of `recipe` if it lives, to hear how its children end; start none."""
        async with self._opening.setdefault(recipe.key(), asyncio.Lock()):
            if recipe.key() not in self._servers:
                await self._connect(recipe.key())

    async def close(self) -> None:
        """Let go of all servers; those with children live on until the last child has ended."""
        for server in list(self._servers.values()):
            server.connection.close("the worker lets go")
            await server.connection.until_gone(_LAST_MOMENT)
        for reaper in self._reapers:
            reaper.cancel()

    def knows(self, recipe: ServerRecipe) -> bool:
        """Tell whether the server of `recipe` is connected and so will report how its children end."""
        return recipe.key() in self._servers

    # --- connections

    async def _server(self, recipe: ServerRecipe) -> _Server:
        key = recipe.key()
        async with self._opening.setdefault(key, asyncio.Lock()):
            server = self._servers.get(key) or await self._connect(key)
            if server is None:
                self._start(recipe)
                server = await self._connect(key)
        if server is None:
            raise ProcessStartFailed(f"The fork server could not be reached; see {self._log(key)}. Input stays queued.")
        return server

    async def _connect(self, key: str) -> _Server | None:
        def take(_: Connection, message: Any) -> None:
            self._take(server, message)

        def lost(_: Connection, why: str) -> None:
            self._lost(key, server, why)

        connection = Connection(FROM_SERVER, take, lost)
        server = _Server(connection)
        try:
            with dial_path(self._folder, f"{key}.sock") as path:
                await connect(connection, path)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        self._servers[key] = server
        return server

    def _take(self, server: _Server, message: Any) -> None:
        if isinstance(message, Exited):
            self._exited(ExitNote(message.run_id, message.pid, message.code))
            return
        answer = server.spawning.get(message.id)
        if answer is not None and not answer.done():
            answer.set_result(message)

    def _lost(self, key: str, server: _Server, why: str) -> None:
        self._forget(key, server)
        for answer in server.spawning.values():
            if not answer.done():
                answer.set_exception(
                    ForkServerGone(
                        f"The fork server ended before it had started a process ({why}). The input stays queued; see "
                        f"{self._log(key)}."
                    )
                )

    def _forget(self, key: str, server: _Server) -> None:
        if self._servers.get(key) is server:
            del self._servers[key]
        server.connection.close("it is not needed any more")

    # --- processes

    def _sweep(self) -> None:
        """Remove what servers have left that are gone: their sockets, and logs with nothing in them."""
        for path in self._folder.glob("*.sock"):
            if _is_deserted(self._folder, path.name):
                path.unlink(missing_ok=True)
                log = path.with_suffix(".log")
                if log.exists() and log.stat().st_size == 0:
                    log.unlink()

    def _log(self, key: str) -> Path:
        return self._folder / f"{key}.log"

    def _start(self, recipe: ServerRecipe) -> None:
        """Start a server on a socket that listens already, so that nobody has to wait for it to do so."""
        key = recipe.key()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._sweep()
        variables = clean_environment(recipe.environment)
        with listen(self._folder, f"{key}.sock") as listener, contextlib.ExitStack() as stack:
            log = os.open(self._log(key), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, log)
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-P", "-m", "perdure.hosts.process.forkserver", recipe.source, str(_DESCRIPTOR)],
                {**variables, **empty_mark()},
                file_actions=_descriptors(listener, log),
                setsid=True,
            )
        reaper = asyncio.get_running_loop().create_task(_reap(pid))
        self._reapers.add(reaper)
        reaper.add_done_callback(self._reapers.discard)


def _is_deserted(folder: Path, name: str) -> bool:
    """Tell whether nobody listens on a socket's file any more."""
    with socket.socket(socket.AF_UNIX) as trial, dial_path(folder, name) as path:
        trial.setblocking(False)
        try:
            trial.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
        return False


def _descriptors(listener: socket.socket, log: int) -> list[tuple[Any, ...]]:
    return [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, log, 1),
        (os.POSIX_SPAWN_DUP2, log, 2),
        (os.POSIX_SPAWN_DUP2, listener.fileno(), _DESCRIPTOR),
    ]


async def _reap(pid: int) -> None:
    await wait_child(pid)
    _collect(pid)


def _collect(pid: int) -> None:
    os.waitpid(pid, os.WNOHANG)
