"""A whole server in the test's own loop: store, engine, service and HTTP, with a project deployed as users do it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from starlette.applications import Starlette

from perdure.deploy.archive import pack
from perdure.engine.engine import Settings
from perdure.server.app import build_app
from perdure.server.auth import AuthPolicy
from perdure.server.node import open_node
from perdure.server.serve import serve

PATIENCE = 30


class Served:
    """A server at work; `client` is one of no kind of ours, so that what is tested is what is on the wire."""

    def __init__(self, url: str, app: Starlette, client: httpx2.AsyncClient) -> None:
        self.url = url
        self.app = app
        self.client = client

    async def get(self, path: str, **query: Any) -> Any:
        return self._document(await self.client.get(path, params=query))

    async def post(self, path: str, body: Any = None) -> Any:
        return self._document(await self.client.post(path, json={} if body is None else body))

    def _document(self, reply: httpx2.Response) -> Any:
        assert reply.is_success, reply.text
        return json.loads(reply.content)

    async def deploy(self, source: Path) -> Any:
        reply = await self.client.post(
            "/v1/deployments", content=pack(source).data, headers={"content-type": "application/gzip"}
        )
        return self._document(reply)

    async def settled(self, session_id: str, turn_id: str) -> Any:
        found = await self.get(f"/v1/sessions/{session_id}/turns/{turn_id}/wait", timeout=f"{PATIENCE}s")
        assert found["status"] == "settled", found
        return found["turn"]


@asynccontextmanager
async def served(folder: Path, heartbeat: float = 15.0) -> AsyncIterator[Served]:
    """Serve a data folder on a free port of 127.0.0.1, and what drives it."""
    async with open_node(folder / "data", settings=Settings(drain=0.1)) as node:
        app = build_app(node.service, auth=AuthPolicy(), heartbeat=heartbeat)
        stop, started = asyncio.Event(), asyncio.get_running_loop().create_future()
        serving = asyncio.ensure_future(serve(app, "127.0.0.1", 0, started.set_result, stop=stop, drain_seconds=5))
        try:
            url = await started
            async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE + 10) as client:
                yield Served(url, app, client)
        finally:
            stop.set()
            await serving
