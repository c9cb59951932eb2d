"""The ASGI application: routes of the table, and around them what holds for every request."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from time import perf_counter
from typing import Final, NoReturn

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as HttpScope

from perdure.crashpoints import areach
from perdure.engine.service import Service
from perdure.errors import MethodNotAllowed, NotFound
from perdure.records.ids import new_id
from perdure.server.auth import OPEN_PATHS, AuthPolicy
from perdure.server.context import HEARTBEAT_SECONDS, Context, Identity
from perdure.server.health import HEALTH
from perdure.server.observing import PATH, Metrics, note_end, note_operation, note_reply
from perdure.server.openapi import openapi_document
from perdure.server.operations import Operation
from perdure.server.queries import parse_query
from perdure.server.replies import REQUEST_ID, refusal
from perdure.server.request import ISSUER, Call, ClientGone, stopped
from perdure.server.stopping import Stopping
from perdure.server.table import OPERATIONS

_BUSY: Final = frozenset({"enqueue", "wait_turn", "list_events"})
"""What is asked most often comes first, because routes are tried in order."""
_CLOSE: Final = (b"connection", b"close")


def build_app(
    service: Service,
    *,
    auth: AuthPolicy,
    mode: str = "server",
    heartbeat: float = HEARTBEAT_SECONDS,
    operations: Sequence[Operation] = OPERATIONS,
) -> Starlette:
    """Return the application that serves `service`.

    `heartbeat` is the number of seconds between the comments of a watch. `app.state.stopping.begin()` ends watches and
    waits, so that a server can stop; see `perdure.server.serve`.
    """
    identity = Identity(version("perdure"), mode)

    @cache
    def description() -> bytes:
        # Made when it is first asked for: it takes longer than all the rest of a server's start.
        return msgspec.json.encode(openapi_document(operations, identity.version))

    context = Context(service, identity, description, Stopping(), heartbeat)
    app = Starlette(
        routes=_routes(context, operations), middleware=[Middleware(Edge, auth=auth, stopping=context.stopping)]
    )
    app.router.redirect_slashes = False
    app.router.default = _no_route
    app.state.stopping = context.stopping
    app.state.identity = identity
    return app


def build_health_app(service: Service, auth: AuthPolicy) -> Starlette:
    """Return the application of a worker: it says how it is, and shows its metrics to those whom `auth` lets in."""
    return build_app(service, auth=auth, mode="worker", operations=HEALTH)


def _routes(context: Context, operations: Sequence[Operation]) -> list[Route]:
    paths: dict[str, dict[str, Operation]] = {}
    for operation in sorted(operations, key=lambda each: each.id not in _BUSY):
        paths.setdefault(operation.path, {})[operation.method] = operation
    made = [Route(path, Endpoint(context, operations)) for path, operations in paths.items()]
    return [*made, Route(PATH, Metrics())]


class _PathNotFound(NotFound):
    noun = "path"


async def _no_route(http: HttpScope, _receive: Receive, _send: Send) -> NoReturn:
    raise _PathNotFound(http["path"][:200], "See /openapi.json for what there is.")


class Endpoint:
    """All operations of one path."""

    def __init__(self, context: Context, operations: dict[str, Operation]) -> None:
        self._context = context
        self._operations = operations

    async def __call__(self, http: HttpScope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        operation = self._operations.get(http["method"])
        if operation is None:
            allowed = sorted(self._operations)
            raise MethodNotAllowed(
                f"{http['method']} is not possible here; {' and '.join(allowed)} is. Nothing was done.",
                {"allowed": allowed},
            )
        note_operation(http, operation)
        query = parse_query(operation.query, http["query_string"])
        await areach("server.request.before", operation.id)
        reply = await operation.handler(Call(self._context, http, receive, query))
        note_reply(http, operation, reply)
        await areach("server.reply.before", operation.id)
        await reply.send_to(send)
        await areach("server.reply.after", operation.id)


class Edge:
    """Around every request: its id, who makes it, whether it comes too late, and how errors leave."""

    def __init__(self, app: ASGIApp, auth: AuthPolicy, stopping: Stopping) -> None:
        self._app = app
        self._auth = auth
        self._stopping = stopping

    async def __call__(self, http: HttpScope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if http["type"] != "http":
            await self._app(http, receive, send)
            return
        request_id = new_id()
        began = perf_counter()
        status: int | None = None

        async def tagged(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                # Whoever is answered while the server stops is to find another one by his next request.
                leave = [_CLOSE] if self._stopping.begun else []
                message["headers"] = [*message["headers"], (REQUEST_ID, request_id.encode()), *leave]
            await send(message)

        try:
            http[ISSUER] = self._auth.admit(http["path"], http["headers"])
            if self._stopping.begun and http["path"] not in OPEN_PATHS:
                raise stopped()
            await self._app(http, receive, tagged)
        except ClientGone:
            return
        except Exception as error:
            if status is not None:
                raise
            await refusal(error, request_id).send_to(tagged)
        finally:
            note_end(http, status, began)
