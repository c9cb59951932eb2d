"""`perdure dev`: server and worker in one process on the embedded store, following a project's source."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, Final, TextIO

import msgspec

from perdure.authoring.config import read_config
from perdure.deploy.archive import SourceArchive, pack
from perdure.deploy.watch import watch_source
from perdure.engine.service import Scope
from perdure.errors import PerdureError
from perdure.records.sessions import Issuer
from perdure.server.app import build_app
from perdure.server.auth import is_loopback
from perdure.server.keys import create_key, list_keys, load_policy
from perdure.server.node import Node, open_node
from perdure.server.serve import Listener
from perdure.store.port import Deployment

PROJECT: Final = "demo"
ENVIRONMENT: Final = "development"
DATA: Final = ".perdure"
_AT_ONCE: Final = 130

Say = Callable[..., None]


def run_dev(
    project: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 7373,
    data: str | Path | None = None,
    reload: bool = True,
    json: bool = False,
) -> None:
    """Run a project until SIGINT or SIGTERM, then stop gracefully; at a second signal, at once.

    `data` is the data folder, by default `.perdure` in the project. With `reload`, each change of the source becomes
    the deployment that sessions take at their next run. `json` prints one JSON document a line instead of text; user
    code that writes to stdout outside of a run writes to stderr.

    Raises the errors of a project that does not import when there is no earlier deployment to go on with,
    `AddressUnavailable`, `StoreInUse` and other `StoreError`s. Nothing is left running then.
    """
    path = Path(project).resolve()
    folder = Path(data).resolve() if data is not None else (path if path.is_dir() else path.parent) / DATA
    with _own_stdout() as out, _loop_runner() as runner:
        runner.run(_dev(path, folder, host, port, reload, partial(_say_json if json else _say_text, out)))


@contextlib.contextmanager
def _own_stdout() -> Iterator[TextIO]:
    """Keep stdout for what the server says: what modules and child processes of user code print goes to stderr."""
    sys.stdout.flush()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As stderr is: what is printed is to be seen at once.
        sys.stdout.reconfigure(line_buffering=True)
    ours = os.dup(1)
    try:
        os.dup2(2, 1)
        with open(os.dup(ours), "w", encoding="utf-8", errors="replace") as out:
            yield out
    finally:
        os.dup2(ours, 1)
        os.close(ours)


def _loop_runner() -> asyncio.Runner:
    if sys.platform == "win32":
        return asyncio.Runner()
    import uvloop

    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


async def _dev(path: Path, data: Path, host: str, port: int, reload: bool, say: Say) -> None:
    scope = Scope(_project_name(path), ENVIRONMENT, Issuer("user", "local"))
    archive = await asyncio.to_thread(pack, path)
    listener = Listener(host, port)
    try:
        async with open_node(data, address=listener.url, following=frozenset({scope.id})) as node:
            # Only now are the data ours: of a folder that is another server's, or no folder, nothing is touched.
            _ensure_keys(data, host, say)
            auth = load_policy(data)
            auth.check_bind(host)
            await _deploy_first(node, scope, archive, say)
            stop = _stop_on_signals()
            app = build_app(node.service, auth=auth, mode="dev")
            watching = asyncio.create_task(_follow(node, scope, path, archive.digest, say)) if reload else None
            try:
                await listener.serve(app, stop, on_started=lambda: _ready(say, listener.url, path, data))
            finally:
                await _end(watching)
                say("stopping", "Stopping: letting running turns finish")
    finally:
        listener.close()


def _project_name(path: Path) -> str:
    """Return what commands that are given no project mean in this folder."""
    return (read_config(path).project if path.is_dir() else None) or PROJECT


def _ensure_keys(data: Path, host: str, say: Say) -> None:
    """An address that others can reach needs keys: make the first one, and show it this once."""
    if is_loopback(host) or list_keys(data):
        return
    key = create_key(data, "perdure dev")
    say("key", f"API key, shown once: {key.secret}", key=key.secret)


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()

    def heard() -> None:
        if stop.is_set():
            # Somebody does not want to wait. It is as safe as kill -9: the next start settles what ran.
            os._exit(_AT_ONCE)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, heard)
    return stop


async def _deploy_first(node: Node, scope: Scope, archive: SourceArchive, say: Say) -> None:
    """Deploy the source; what is current already is not built again, so that a server is back at once."""
    try:
        deployment = await _unchanged(node, scope, archive.digest) or await node.service.deploy(scope, archive.data)
    except PerdureError as error:
        if await node.store.environment(scope.id) is None:
            raise
        say("broken", f"{error}\nGoing on with the code that worked before", error=error.message)
        return
    say("deployed", f"Agents: {', '.join(agent.id for agent in deployment.agents)}", deployment_id=deployment.id)


async def _unchanged(node: Node, scope: Scope, digest: str) -> Deployment | None:
    """Return the current deployment if it was made of this very source and is still on the disk."""
    environment = await node.store.environment(scope.id)
    current = environment and environment.current_deployment
    deployment = await node.store.deployment(current) if current else None
    if deployment is None or deployment.digest != digest:
        return None
    return deployment if await asyncio.to_thread(Path(deployment.source).is_dir) else None


async def _follow(node: Node, scope: Scope, path: Path, digest: str, say: Say) -> None:
    """Deploy each change of the source; a broken edit is shown, and the old code goes on."""
    async with aclosing(watch_source(path, digest)) as changes:
        async for change in changes:
            if isinstance(change, PerdureError):
                say("broken", f"{change}\nGoing on with the code before", error=change.message)
                continue
            try:
                deployment = await node.service.deploy(scope, change.data)
            except PerdureError as error:
                say("broken", f"{error}\nGoing on with the code before", error=error.message)
            else:
                say("reloaded", "New code: sessions use it from their next process", deployment_id=deployment.id)


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _ready(say: Say, url: str, path: Path, data: Path) -> None:
    say("ready", f"Perdure is ready at {url}\n  project  {path}\n  data     {data}", url=url, data=str(data))


def _say_text(out: TextIO, _event: str, text: str, **_fields: Any) -> None:
    print(text, file=out, flush=True)


def _say_json(out: TextIO, event: str, _text: str, **fields: Any) -> None:
    print(msgspec.json.encode({"event": event, **fields}).decode(), file=out, flush=True)
