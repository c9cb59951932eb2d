"""`perdure dev`: server and worker in one process on the embedded store, following a project's source."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Final

from perdure.deploy.archive import pack
from perdure.deploy.watch import watch_source
from perdure.engine.service import Scope
from perdure.errors import PerdureError
from perdure.records.sessions import Issuer
from perdure.server.app import build_app
from perdure.server.auth import is_loopback
from perdure.server.keys import create_key, list_keys, load_policy
from perdure.server.node import Node, open_node
from perdure.server.process import Say, end_task, run_process, stop_on_signals
from perdure.server.projects import ENVIRONMENT, deploy_first, project_name
from perdure.server.serve import Listener

DATA: Final = ".perdure"


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
    run_process(lambda say: _dev(path, folder, host, port, reload, say), json=json)


async def _dev(path: Path, data: Path, host: str, port: int, reload: bool, say: Say) -> None:
    scope = Scope(project_name(path), ENVIRONMENT, Issuer("user", "local"))
    archive = await asyncio.to_thread(pack, path)
    listener = Listener(host, port)
    try:
        async with open_node(data, address=listener.url, following=frozenset({scope.id})) as node:
            # Only now are the data ours: of a folder that is another server's, or no folder, nothing is touched.
            _ensure_keys(data, host, say)
            auth = load_policy(data)
            auth.check_bind(host)
            await deploy_first(node, scope, archive, say)
            stop = stop_on_signals()
            app = build_app(node.service, auth=auth, mode="dev")
            watching = asyncio.create_task(_follow(node, scope, path, archive.digest, say)) if reload else None
            try:
                await listener.serve(app, stop, on_started=lambda: _ready(say, listener.url, path, data))
            finally:
                await end_task(watching)
                say("stopping", "Stopping: letting running turns finish")
    finally:
        listener.close()


def _ensure_keys(data: Path, host: str, say: Say) -> None:
    """An address that others can reach needs keys: make the first one, and show it this once."""
    if is_loopback(host) or list_keys(data):
        return
    key = create_key(data, "perdure dev")
    say("key", f"API key, shown once: {key.secret}", key=key.secret)


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


def _ready(say: Say, url: str, path: Path, data: Path) -> None:
    say("ready", f"Perdure is ready at {url}\n  project  {path}\n  data     {data}", url=url, data=str(data))
