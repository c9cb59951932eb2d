"""Operations that say how the server is."""

from __future__ import annotations

import asyncio
from typing import Final

from perdure.api import deployments
from perdure.errors import AuthenticationRequired, StoreError, Unavailable
from perdure.server.operations import Operation
from perdure.server.queries import NoQuery
from perdure.server.replies import Reply, document
from perdure.server.request import Call, stopped

# Who asks how a server is waits no longer than that himself.
_PATIENCE_SECONDS: Final = 2.0


async def alive(_: Call) -> Reply:
    """Say that the process answers."""
    return document({"status": "ok"})


async def ready(call: Call) -> Reply:
    """Say whether work is accepted."""
    if call.context.stopping.begun:
        raise stopped()
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await call.service.check_ready()
    except TimeoutError:
        raise Unavailable(
            f"The store has not answered for {_PATIENCE_SECONDS:g} seconds. Nothing is lost; work goes on when it does."
        ) from None
    return document({"status": "ready"})


async def server(call: Call) -> Reply:
    """Say which server answers."""
    return document(call.context.identity)


async def description(call: Call) -> Reply:
    """Return the OpenAPI document."""
    return Reply(call.context.description())


HEALTH: Final = (
    Operation(
        id="healthz",
        method="GET",
        path="/healthz",
        tag="server",
        summary="Whether the server is there",
        handler=alive,
        query=NoQuery,
        answers={200: deployments.Health},
    ),
    Operation(
        id="readyz",
        method="GET",
        path="/readyz",
        tag="server",
        summary="Whether the server accepts work",
        handler=ready,
        query=NoQuery,
        answers={200: deployments.Health},
        errors=(StoreError, Unavailable),
    ),
)
OPERATIONS: Final = (
    *HEALTH,
    Operation(
        id="get_server",
        method="GET",
        path="/v1/server",
        tag="server",
        summary="Which server answers",
        handler=server,
        query=NoQuery,
        answers={200: deployments.ServerInfo},
        errors=(AuthenticationRequired,),
    ),
    Operation(
        id="get_openapi",
        method="GET",
        path="/openapi.json",
        tag="server",
        summary="This document",
        handler=description,
        query=NoQuery,
        answers={200: deployments.ApiDescription},
    ),
)
