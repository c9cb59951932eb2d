"""Query parameters: one model an operation, parsed strictly. Unknown and repeated parameters are refused."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import parse_qsl

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema

from perdure.api.base import Given, SessionKey
from perdure.errors import BadRequest
from perdure.records.ids import is_slug
from perdure.records.sessions import AskStatus, Status
from perdure.server.refusals import explain

_DIGITS: Final = re.compile("[0-9]{1,18}")
_CACHED_BYTES: Final = 256
_SLUG_PATTERN: Final = "^[a-z0-9][a-z0-9-]{0,62}$"
_TIMEOUT_PATTERN: Final = "^(([1-9][0-9]{0,3}|[1-5][0-9]{4}|60000)ms|([1-9]|[1-5][0-9]|60)s|1m)$"
Q = TypeVar("Q", bound="Query")


def _slug(text: str) -> str:
    if not is_slug(text):
        raise ValueError("a name has 1 to 63 of a-z, 0-9 and -, and does not start with -")
    return text


def _number(text: Any) -> Any:
    if isinstance(text, str) and not _DIGITS.fullmatch(text):
        raise ValueError("a whole number is written in digits only")
    return text


Slug = Annotated[str, AfterValidator(_slug), WithJsonSchema({"type": "string", "pattern": _SLUG_PATTERN})]
Number = Annotated[int, Field(ge=0, lt=10**18), BeforeValidator(_number)]
Position = Annotated[Number, Field(description="Return what comes after this sequence number")]
PageLimit = Annotated[int, Field(ge=1, le=100), BeforeValidator(_number)]
EventLimit = Annotated[int, Field(ge=1, le=1000), BeforeValidator(_number)]
LogLimit = Annotated[int, Field(ge=16, le=1024 * 1024), BeforeValidator(_number)]
Timeout = Annotated[str, WithJsonSchema({"type": "string", "pattern": _TIMEOUT_PATTERN, "examples": ["30s"]})]
Cursor = Annotated[str, Field(description="`next_cursor` of the page before, with the same filters")]


class Query(BaseModel):
    """Base of the query parameters of all operations."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class NoQuery(Query):
    """An operation that takes no parameters."""


class ScopeQuery(Query):
    """The environment that a request acts in."""

    project: Slug = "demo"
    environment: Slug = "development"


class SessionsQuery(ScopeQuery):
    agent: Given[str] = None
    key: Given[SessionKey] = None
    status: list[Status] = Field(default=[], description="May be repeated; none means all")
    cursor: Given[Cursor] = None
    limit: PageLimit = 50


class NumberedQuery(ScopeQuery):
    """A page of rows that are numbered in their session."""

    after: Position = 0
    limit: PageLimit = 50


class WaitQuery(ScopeQuery):
    timeout: Timeout = Field(default="30s", description="How long to wait, 60s at most; ask again to wait longer")


class AsksQuery(ScopeQuery):
    status: Given[AskStatus] = None
    cursor: Given[Cursor] = None
    limit: PageLimit = 50


class EventsQuery(ScopeQuery):
    after: Position = 0
    limit: EventLimit = 100


class FollowQuery(ScopeQuery):
    after: str = Field(
        default="",
        max_length=512,
        description="`cursor` to go on from; `now` for what comes from now on; without it from the oldest on",
    )


class FeedQuery(FollowQuery):
    limit: EventLimit = 100


class WatchQuery(ScopeQuery):
    after: Given[Position] = Field(
        default=None, description="Replay from here; without it (and without Last-Event-ID) a snapshot comes first"
    )


class LogsQuery(ScopeQuery):
    offset: Number = 0
    limit: LogLimit = 64 * 1024


class DeploymentsQuery(ScopeQuery):
    cursor: Given[Cursor] = None
    limit: PageLimit = 50


class DeployQuery(ScopeQuery):
    promote: Literal["true", "false"] = Field(
        default="true", description="Whether new processes use the deployment from now on"
    )


def parse_query(model: type[Q], raw: bytes) -> Q:
    """Return the parameters of a query string; raises `BadRequest` for what `model` does not take."""
    return _parse_cached(model, raw) if len(raw) <= _CACHED_BYTES else _parse(model, raw)


def _parse(model: type[Q], raw: bytes) -> Q:
    given: dict[str, Any] = {}
    for name, value in parse_qsl(raw.decode("latin-1"), keep_blank_values=True):
        if name not in model.model_fields:
            raise BadRequest(f"There is no query parameter {name[:80]!r} here. {_known(model)} Nothing was changed.")
        if model is SessionsQuery and name == "status":
            given.setdefault(name, []).append(value)
        elif name in given:
            raise BadRequest(f"The query parameter {name!r} is given twice. Nothing was changed.")
        else:
            given[name] = value
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise explain(error, "query") from None


_parse_cached = lru_cache(maxsize=1024)(_parse)  # models are frozen, and most requests name the same scope


def _known(model: type[Query]) -> str:
    names = ", ".join(model.model_fields)
    return f"Known are: {names}." if names else "None is taken."
