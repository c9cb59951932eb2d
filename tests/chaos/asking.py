"""How clients of a chaos run ask: again under the same key until they are told, of one server and then of the other."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final

import httpx2
from tests.chaos.evidence import Asked, Evidence, Unexpected

from perdure.client.aio import AsyncClient
from perdure.client.retry import Retry
from perdure.errors import PerdureError

PASSING: Final = frozenset({502, 503, 504})
ANSWER_SECONDS: Final = 8.0
_RETRY: Final = Retry(attempts=2, first=0.05, longest=0.2)
_PAUSE: Final = 0.2
# Made once: to make one takes longer than many a request.
NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_asking: ContextVar[Asked | None] = ContextVar("asking", default=None)

Ask = Callable[[AsyncClient], Awaitable[Any]]


class Recorder(httpx2.AsyncBaseTransport):
    """Keeps the body of each successful answer with what was asked."""

    def __init__(self) -> None:
        self._inner = httpx2.AsyncHTTPTransport(verify=NO_TLS)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        asked = _asking.get()
        if asked is not None and request.method == "POST" and response.is_success:
            asked.answers.append(await response.aread())
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class Caller:
    """Asks for all clients of a run, and notes what they asked and were told."""

    def __init__(self, urls: Sequence[str], evidence: Evidence, seed: int) -> None:
        self.urls = list(urls)
        self.evidence = evidence
        self.random = random.Random(f"{seed}/caller")
        self.retries = 0
        self._clients = [AsyncClient(url, retry=_RETRY, transport=Recorder()) for url in urls]
        self._keys = 0

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients:
            await client.close()

    def key(self) -> str:
        """Return a new idempotency key."""
        self._keys += 1
        return f"k{self._keys}"

    def pick(self) -> int:
        """Return a server by chance."""
        return self.random.randrange(len(self._clients))

    async def ask(self, asked: Asked, ask: Ask, until: Callable[[], float]) -> Any:
        """Ask until there is an answer or the time, which `until` tells, is up; returns what was answered,
        None for a refusal or nothing.

        Now and then it is asked again, of any server: the answer must be the same.
        """
        asked.began = time.monotonic()
        self.evidence.asked.append(asked)
        answer = await self._surely(asked, ask, until)
        if answer is not None and self.random.random() < 0.2:
            with suppress(PerdureError, TimeoutError):
                await self._once(asked, ask, self._clients[self.pick()])
        return answer

    async def _surely(self, asked: Asked, ask: Ask, until: Callable[[], float]) -> Any:
        turn = self.pick()
        while time.monotonic() < until():
            client = self._clients[turn % len(self._clients)]
            turn += 1
            try:
                answer = await self._once(asked, ask, client)
            except (PerdureError, TimeoutError) as error:
                if not self._passes(asked, error):
                    asked.refused, asked.ended = getattr(error, "code", "?"), time.monotonic()
                    return None
            else:
                asked.ended = time.monotonic()
                return answer
            self.retries += 1
            await asyncio.sleep(_PAUSE * (0.5 + self.random.random()))
        return None

    @staticmethod
    async def _once(asked: Asked, ask: Ask, client: AsyncClient) -> Any:
        token = _asking.set(asked)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await ask(client)
        finally:
            _asking.reset(token)

    def _passes(self, asked: Asked, error: PerdureError | TimeoutError) -> bool:
        if isinstance(error, TimeoutError) or error.status in PASSING:
            return True
        if error.status >= 500:
            self.evidence.unexpected.append(Unexpected(asked.session, f"{asked.what} {asked.key}", repr(error)))
            return True
        return False

    async def read(self, ask: Ask, until: Callable[[], float]) -> Any:
        """Ask for something that changes nothing, until there is an answer; None when the time is up."""
        return await self._surely(Asked("read", "-"), ask, until)
