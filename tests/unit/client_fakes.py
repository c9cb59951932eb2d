"""A server that follows a script, documents as the API sends them, and one face for both clients."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx2

from perdure.client.aio import AsyncClient
from perdure.client.retry import Retry
from perdure.client.sync import Client

SESSION = "01890a5d-ac96-774b-bcce-b302099a8057"
TURN = "01890a5d-ac96-774b-bcce-b302099a8058"
HOLD = "01890a5d-ac96-774b-bcce-b302099a8059"
RUN = "01890a5d-ac96-774b-bcce-b302099a805a"
ASK = "01890a5d-ac96-774b-bcce-b302099a805b"
DEPLOYMENT = "01890a5d-ac96-774b-bcce-b302099a805c"
AT = "2026-12-01T00:17:03.123456Z"
URL = "http://127.0.0.1:7373"

Answer = httpx2.Response | Exception | Callable[[httpx2.Request], httpx2.Response]


class Pieces(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """A body that comes in pieces; a piece that is an exception is raised."""

    def __init__(self, *pieces: bytes | Exception) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece


class Script:
    """Answers requests with what was scripted, in order, and keeps the requests."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.requests: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer(request) if callable(answer) else answer

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(request.content) for request in self.requests]

    def done(self) -> bool:
        return not self._answers


class Blocking:
    """The asyncio client with the face of the blocking one, so that one test speaks to both."""

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._target = target
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return self._faced(getattr(self._target, name))

    def __getitem__(self, name: str) -> Any:
        return self._faced(self._target[name])

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._faced(self._target(*args, **named))

    def _faced(self, value: Any) -> Any:
        if inspect.iscoroutine(value):
            return self._faced(self._loop.run_until_complete(value))
        if inspect.isasyncgen(value):
            return self._drawn(value)
        ours = type(value).__module__.startswith("perdure.client")
        return Blocking(value, self._loop) if callable(value) or ours else value

    def _drawn(self, items: Any) -> Iterator[Any]:
        try:
            while True:
                yield self._loop.run_until_complete(anext(items))
        except StopAsyncIteration:
            return
        finally:
            self._loop.run_until_complete(items.aclose())


def sync_client(script: Callable[[httpx2.Request], httpx2.Response], **settings: Any) -> Client:
    settings = {"url": URL, "retry": Retry(first=0.0), **settings}
    return Client(transport=httpx2.MockTransport(script), **settings)


def async_client(script: Callable[[httpx2.Request], httpx2.Response], **settings: Any) -> AsyncClient:
    settings = {"url": URL, "retry": Retry(first=0.0), **settings}
    return AsyncClient(transport=httpx2.MockTransport(script), **settings)


def answer(document: Any, status: int = 200) -> httpx2.Response:
    return httpx2.Response(status, json=document, headers={"X-Request-ID": RUN})


def failure(code: str, status: int, details: dict[str, Any] | None = None) -> httpx2.Response:
    return answer({"error": {"code": code, "message": "What happened.", "details": details or {}}}, status)


def stream(*pieces: bytes | Exception) -> httpx2.Response:
    return httpx2.Response(200, headers={"Content-Type": "text/event-stream"}, stream=Pieces(*pieces))


def sse(kind: str, data: Any, id: int | None = None) -> bytes:
    head = "" if id is None else f"id: {id}\n"
    return f"{head}event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


def session(**changes: Any) -> dict[str, Any]:
    return {
        "id": SESSION,
        "agent": "assistant",
        "key": "user:ada",
        "status": "open",
        "deployment_id": DEPLOYMENT,
        "host": "inline",
        "computer": None,
        "active_turn_id": None,
        "queued": 0,
        "holds": [],
        "run": None,
        "losses": 0,
        "last_event_seq": 3,
        "created_at": AT,
        **changes,
    }


def turn(**changes: Any) -> dict[str, Any]:
    text = [{"type": "text", "text": "first"}]
    return {
        "id": TURN,
        "session_id": SESSION,
        "sequence": 1,
        "status": "queued",
        "input": text,
        "created_at": AT,
        **changes,
    }


def completed_turn(**changes: Any) -> dict[str, Any]:
    said = [{"type": "text", "text": "Turn 1 in this process. Log entries: 1."}]
    ended = {"status": "completed", "result": {"turns": 1}, "response": said, "run_id": RUN}
    return turn(**{**ended, "started_at": AT, "ended_at": AT, **changes})


def event(seq: int, kind: str = "turn.output", **changes: Any) -> dict[str, Any]:
    data = {"content": [{"type": "text", "text": f"output {seq}"}]}
    whole = {"session_id": SESSION, "seq": seq, "type": kind, "data": data, "turn_id": TURN, "run_id": RUN, "at": AT}
    return {**whole, **changes}


def durable(seq: int, kind: str = "turn.output", **changes: Any) -> bytes:
    return sse(kind, event(seq, kind, **changes), seq)


def feed_page(cursor: str, *events: dict[str, Any], has_more: bool = False) -> dict[str, Any]:
    return {"events": list(events), "cursor": cursor, "has_more": has_more}


def sse_page(cursor: str, *events: dict[str, Any]) -> bytes:
    return f"id: {cursor}\n".encode() + sse("page", feed_page(cursor, *events))


def snapshot(cursor: int, **changes: Any) -> bytes:
    data = {"cursor": cursor, "session": session(), "turns": [turn()], "live": {}, "has_earlier": False, **changes}
    return sse("snapshot", data)


def receipt(**changes: Any) -> dict[str, Any]:
    return {"session_id": SESSION, "turn_id": TURN, "sequence": 1, "created": True, **changes}


def control(**changes: Any) -> dict[str, Any]:
    return {"id": RUN, "session_id": SESSION, "hold_id": HOLD, "status": "accepted", **changes}


def ask(**changes: Any) -> dict[str, Any]:
    prompt = [{"type": "text", "text": "Go on?"}]
    control = {"type": "text"}
    whole = {"id": ASK, "session_id": SESSION, "turn_id": TURN, "status": "pending", "prompt": prompt}
    return {**whole, "answer_control": control, "created_at": AT, **changes}


def deployment(**changes: Any) -> dict[str, Any]:
    whole = {"id": DEPLOYMENT, "project": "demo", "environment": "development", "digest": "ab" * 32, "live": False}
    return {**whole, "agents": ["assistant"], "created_at": AT, **changes}


def agent(**changes: Any) -> dict[str, Any]:
    place = {"module": "agents.assistant", "file": "agents/assistant.py", "line": 5}
    return {"id": "assistant", "host": "inline", **place, "has_init": True, "template": None, **changes}
