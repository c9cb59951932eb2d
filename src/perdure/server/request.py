"""One request, as handlers see it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from starlette.types import Receive
from starlette.types import Scope as HttpScope

from perdure.api.base import RequestBody
from perdure.api.requests import REQUEST_BYTES
from perdure.engine.service import Scope
from perdure.errors import ContentTooLarge, Unavailable, UnsupportedMediaType
from perdure.records import canonical
from perdure.records.ids import check_id
from perdure.records.sessions import Issuer
from perdure.server.context import Context
from perdure.server.queries import Query, ScopeQuery
from perdure.server.refusals import explain

T = TypeVar("T")
B = TypeVar("B", bound=RequestBody)
ISSUER: Final = "perdure.issuer"
_STOPPED: Final = "The server is stopping. Nothing was changed by this request; ask again in a moment."


class ClientGone(Exception):
    """Raised when the client hung up before it had its answer; nobody is there to be told."""


class Call:
    """A request and the service that answers it."""

    __slots__ = ("_receive", "context", "http", "params", "query", "service")

    def __init__(self, context: Context, http: HttpScope, receive: Receive, query: Query) -> None:
        self.context = context
        self.service = context.service
        self.http = http
        self.params: dict[str, str] = http["path_params"]
        self.query: Any = query
        self._receive = receive

    @property
    def scope(self) -> Scope:
        """Where the request acts and who makes it."""
        query: ScopeQuery = self.query
        issuer: Issuer = self.http[ISSUER]
        return Scope(query.project, query.environment, issuer)

    def id(self, name: str) -> str:
        """Return an id of the path; raises `InvalidId`."""
        return check_id(self.params[name], name)

    def header(self, name: bytes) -> bytes | None:
        """Return a header by its lowercase name."""
        return next((value for key, value in self.http["headers"] if key == name), None)

    async def json(self, model: type[B]) -> tuple[B, dict[str, Any]]:
        """Return the body, checked and as it came; no body at all stands for `{}`.

        Raises `UnsupportedMediaType`, `ContentTooLarge`, `InvalidJson` and `BadRequest`.
        """
        data = await self.body(REQUEST_BYTES, "application/json")
        plain = canonical.parse(data) if data else {}
        try:
            return model.model_validate(plain), plain
        except ValidationError as error:
            raise explain(error, "request body") from None

    async def body(self, limit: int, *media_types: str) -> bytes:
        """Return the body's bytes; raises `UnsupportedMediaType`, and `ContentTooLarge` before reading too much."""
        told = self.header(b"content-length")
        if told is not None and int(told) > limit:
            raise _too_large(f"{int(told)} bytes", limit)
        chunks: list[bytes] = []
        size = 0
        async for chunk in self._chunks():
            size += len(chunk)
            if size > limit:
                raise _too_large(f"more than {limit} bytes", limit)
            chunks.append(chunk)
        if size:
            self._check_media_type(media_types)
        return b"".join(chunks)

    async def _chunks(self) -> Any:
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            more = message.get("more_body", False)
            yield message.get("body", b"")

    def _check_media_type(self, wanted: tuple[str, ...]) -> None:
        given = (self.header(b"content-type") or b"").decode("latin-1")
        if given.partition(";")[0].strip().lower() not in wanted:
            raise UnsupportedMediaType(
                f"The body's Content-Type is {given[:100]!r}; this operation takes {' or '.join(wanted)}. "
                "Nothing was changed."
            )

    async def gone(self) -> None:
        """Return once the client has hung up."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def unless_gone(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns; when the client hangs up or the server stops before, the work is cancelled.

        Raises `ClientGone` and `Unavailable` for these two.
        """
        stopping = self.context.stopping
        task, gone = asyncio.ensure_future(work), asyncio.ensure_future(self.gone())
        try:
            await asyncio.wait((task, gone, stopping.future()), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        finally:
            await end_tasks(task, gone)
        raise ClientGone if not stopping.begun else stopped()


def stopped() -> Unavailable:
    """Return the error for requests that come when the server stops, or that waited for too long to be finished."""
    return Unavailable(_STOPPED, {"retry_after_seconds": 1})


def _too_large(size: str, limit: int) -> ContentTooLarge:
    return ContentTooLarge("request body", size, f"{limit} bytes")


async def end_tasks(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait until they have let go; what they raise is theirs."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
