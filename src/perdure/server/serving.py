"""`perdure serve` and `perdure worker`: an installation in parts, of which there may be any number on one store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from perdure.deploy.archive import pack
from perdure.engine.engine import Settings
from perdure.engine.service import Scope
from perdure.errors import BadRequest
from perdure.records.sessions import Issuer
from perdure.server.app import build_app, build_health_app
from perdure.server.auth import AuthPolicy, is_loopback
from perdure.server.keyring import Keyring
from perdure.server.keys import load_policy
from perdure.server.node import Node, open_node
from perdure.server.place import Place
from perdure.server.process import Say, end_task, run_process, stop_on_signals
from perdure.server.projects import ENVIRONMENT, deploy_changed, project_name, say_deployed
from perdure.server.serve import Listener

LINGER_SECONDS: Final = 1.0
LEASE_SECONDS: Final = 15.0


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """How `perdure serve` serves: where it listens, whether it works too, and how it stops; times in seconds."""

    host: str = "127.0.0.1"
    port: int = 7373
    works: bool = True
    lease: float = LEASE_SECONDS
    linger: float = LINGER_SECONDS


class Working(msgspec.Struct, frozen=True, kw_only=True):
    """How `perdure worker` works: what it brings along, and where its health can be asked for; `lease` in seconds."""

    project: Path | None = None
    scope: tuple[str, str] | None = None
    health: tuple[str, int] | None = None
    lease: float = LEASE_SECONDS


def run_serve(place: Place, serving: Serving, *, json: bool = False) -> None:
    """Serve the API of a store until SIGINT or SIGTERM, then stop gracefully; at a second signal, at once.

    Raises `BadRequest` for an embedded store without a worker, `AddressUnavailable`, `AuthenticationRequired` for an
    address beyond this machine without keys, and `StoreError`s. Nothing is left running then.
    """
    if place.embedded and not serving.works:
        raise BadRequest(
            f"The embedded store {place.shown} is owned by one process, which serves and works. Nothing was started; "
            "leave --no-worker out, or move to PostgreSQL with `perdure store copy`."
        )
    run_process(lambda say: _serve(place, serving, say), json=json)


def run_worker(place: Place, working: Working, *, json: bool = False) -> None:
    """Own sessions of a store and run their handlers until SIGINT or SIGTERM, then hand them over and stop.

    A second signal stops at once. Raises `BadRequest` for an embedded store, the errors of a project that does not
    import when its environment has no deployment to go on with, `AddressUnavailable` and `StoreError`s.
    """
    if place.embedded:
        raise BadRequest(
            f"The embedded store {place.shown} is owned by one process, which serves and works. Nothing was started; "
            "use `perdure serve`, or move to PostgreSQL with `perdure store copy`."
        )
    run_process(lambda say: _work(place, working, say), json=json)


async def _serve(place: Place, serving: Serving, say: Say) -> None:
    stop = stop_on_signals()
    listener = Listener(serving.host, serving.port)
    settings = Settings(lease=serving.lease)
    try:
        async with open_node(
            place.data, store=place.url, works=serving.works, address=listener.url, settings=settings
        ) as node:
            async with _let_in(node, place, serving.host) as auth:
                app = build_app(node.service, auth=auth)
                told = {"url": listener.url, "store": place.shown, "data": str(place.data), "works": serving.works}
                text = f"Perdure is ready at {listener.url}\n  store    {place.shown}\n  data     {place.data}"
                await listener.serve(app, stop, on_started=lambda: say("ready", text, **told), linger=serving.linger)
            say("stopping", "Stopping: letting running turns finish" if serving.works else "Stopping")
    finally:
        listener.close()


@asynccontextmanager
async def _let_in(node: Node, place: Place, host: str) -> AsyncIterator[AuthPolicy]:
    """Yield who may ask: by the keys of the data folder, or by those of a shared store as they are at any time."""
    auth = load_policy(place.data) if place.embedded else AuthPolicy()
    keyring = None if place.embedded else Keyring(node.store, auth)
    if keyring is not None:
        await keyring.read()
    auth.check_bind(host)
    following = None if keyring is None else asyncio.create_task(keyring.follow())
    try:
        yield auth
    finally:
        await end_task(following)


async def _work(place: Place, working: Working, say: Say) -> None:
    stop = stop_on_signals()
    archive = None if working.project is None else await asyncio.to_thread(pack, working.project)
    health = None if working.health is None else _Health(*working.health)
    url = None if health is None else health.url
    try:
        async with open_node(place.data, store=place.url, address=url, settings=Settings(lease=working.lease)) as node:
            if health is not None:
                await health.begin(node)
            if archive is not None:
                say_deployed(say, await deploy_changed(node, _scope(working), archive))
            told = {"store": place.shown, "data": str(place.data), "worker": node.engine.worker_id, "health": url}
            say("ready", f"Perdure works\n  store    {place.shown}\n  data     {place.data}", **told)
            await stop.wait()
            say("stopping", "Stopping: letting running turns finish, and handing sessions over")
    finally:
        if health is not None:
            await health.end()


class _Health:
    """Where a worker says how it is, until its last session is handed over. Beyond this machine, metrics need a key."""

    def __init__(self, host: str, port: int) -> None:
        self._listener = Listener(host, port)
        self._task: asyncio.Task[None] | None = None
        self._keys: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return self._listener.url

    async def begin(self, node: Node) -> None:
        auth = AuthPolicy(closed=not is_loopback(self._listener.host))
        if not is_loopback(self._listener.host):
            keyring = Keyring(node.store, auth)
            await keyring.read()
            self._keys = asyncio.create_task(keyring.follow())
        serving = self._listener.serve(build_health_app(node.service, auth), asyncio.Event(), drain_seconds=1)
        self._task = asyncio.create_task(serving)

    async def end(self) -> None:
        await end_task(self._keys)
        await end_task(self._task)
        self._listener.close()


def _scope(working: Working) -> Scope:
    assert working.project is not None
    project, environment = working.scope or (project_name(working.project), ENVIRONMENT)
    return Scope(project, environment, Issuer("user", "local"))
