"""One request of the API and how its answer is read, without I/O: the same for both clients."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import httpx2
from pydantic import ValidationError

from perdure.client.failures import NotUnderstood, from_reply, origin
from perdure.client.retry import Retry
from perdure.errors import BadRequest

T = TypeVar("T")

DEFAULT_URL: Final = "http://127.0.0.1:7373"
CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 30.0
# A watch and a wait keep a connection each, and a program may have thousands of them: the server is who says stop.
LIMITS: Final = httpx2.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=30.0)
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request. `seconds` is how long its answer may take; `key` the idempotency key that makes it safe to repeat.

    `scoped` tells whether it acts in an environment.
    """

    method: str
    path: str
    read: Callable[[bytes], T]
    query: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float = ANSWER_SECONDS
    key: str | None = None
    scoped: bool = True

    def answer(self, reply: httpx2.Response) -> T:
        """Return what a reply says, or raise what it reports."""
        if reply.status_code >= 400:
            raise from_reply(reply)
        try:
            if reply.is_success:
                return self.read(reply.content)
            why = f"HTTP {reply.status_code}"
        except ValidationError as error:
            why = f"{error.error_count()} fields of {error.title} are not as they should be"
        raise NotUnderstood(
            f"The answer of {origin(reply.request)} to {self.method} {self.path} is not understood: {why}. "
            "Is it a Perdure server, and of this version?"
        )


@dataclass(frozen=True)
class Settings:
    """Where a client asks, as whom, in which scope, and how patiently."""

    url: str
    api_key: str | None
    project: str
    environment: str
    retry: Retry

    def __post_init__(self) -> None:
        if not _is_address(self.url):
            raise BadRequest(f"{self.url!r} is not a server's address; write http://HOST:PORT.")
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise BadRequest("The API key has characters that no key has. Nothing was sent.")

    @property
    def trusts_environment(self) -> bool:
        """Whether proxies that the environment names apply: never to a server on this machine."""
        return httpx2.URL(self.url).host not in _LOOPBACK

    def request(self, call: Call[Any]) -> dict[str, Any]:
        """Return the arguments that httpx2 needs to make the request of `call`."""
        scope = {"project": self.project, "environment": self.environment} if call.scoped else {}
        return {
            "method": call.method,
            "url": self.url.rstrip("/") + call.path,
            "params": {**scope, **call.query},
            "content": call.body,
            "headers": {**self._identity(), **call.headers},
            "timeout": httpx2.Timeout(call.seconds, connect=CONNECT_SECONDS),
        }

    def _identity(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}


def _is_address(url: str) -> bool:
    try:
        parts = httpx2.URL(url)
    except httpx2.InvalidURL:
        return False
    has_port = parts.port is None or 0 < parts.port < 65536
    return (
        parts.scheme in {"http", "https"} and bool(parts.host) and has_port and not parts.query and not parts.fragment
    )


def settings_from(
    url: str | None, api_key: str | None, project: str, environment: str, retry: Retry | None
) -> Settings:
    """Return settings with what was left out taken from the environment variables, then from the defaults."""
    return Settings(
        url or os.environ.get("PERDURE_API_URL") or DEFAULT_URL,
        api_key or os.environ.get("PERDURE_API_KEY") or None,
        project,
        environment,
        retry or Retry(),
    )
