"""What an operation of the API is. The table of them makes both the routes and the OpenAPI document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from perdure.api.base import RequestBody, Wire
from perdure.errors import (
    AuthenticationRequired,
    BadRequest,
    ContentTooLarge,
    HostNotAllowed,
    IdempotencyConflict,
    InvalidContent,
    InvalidId,
    InvalidJson,
    InvalidKey,
    NotJson,
    PerdureError,
    SessionNotFound,
    StoreError,
    Unavailable,
    UnsupportedMediaType,
)
from perdure.server.queries import Query, ScopeQuery
from perdure.server.replies import Reply
from perdure.server.request import Call
from perdure.server.sse import EventStream

Handler: TypeAlias = "Callable[[Call], Awaitable[Reply | EventStream[Any]]]"
Errors: TypeAlias = tuple[type[PerdureError], ...]

ALWAYS: Final[Errors] = (BadRequest, HostNotAllowed, PerdureError)
SCOPED: Final[Errors] = (AuthenticationRequired, StoreError, Unavailable)
BODY: Final[Errors] = (InvalidJson, ContentTooLarge, UnsupportedMediaType)
INPUT: Final[Errors] = (InvalidContent, NotJson)
KEYED: Final[Errors] = (InvalidKey, IdempotencyConflict)
IN_SESSION: Final[Errors] = (InvalidId, SessionNotFound)


class Archive(msgspec.Struct, frozen=True):
    """A request body that is a file."""

    media_type: str
    limit: int
    description: str


class Stream(msgspec.Struct, frozen=True):
    """A response that is a stream of server-sent events: the data of each event name; "" stands for all others.

    `id_pattern` is that of the ids which clients continue from.
    """

    data: dict[str, type[Wire]]
    description: str
    id_pattern: str = "^[0-9]{1,18}$"


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path: who answers, what comes in, what goes out, what can go wrong."""

    id: str
    method: str
    path: str
    tag: str
    summary: str
    handler: Handler
    answers: Mapping[int, type[Wire] | Stream]
    query: type[Query] = ScopeQuery
    body: type[RequestBody] | Archive | None = None
    errors: Errors = ()

    @property
    def all_errors(self) -> Errors:
        """All errors that the operation answers with."""
        scoped = SCOPED if issubclass(self.query, ScopeQuery) else ()
        return (*ALWAYS, *scoped, *(BODY if self.body else ()), *self.errors)
