"""A service that does what a test says, the application over it, and rows as the store returns them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx2
import msgspec
from starlette.applications import Starlette

from perdure.engine.service import ComputerView, Service, SessionView, SnapshotItem
from perdure.records.sessions import (
    ActiveTurn,
    Ask,
    ComputerState,
    Hold,
    Issuer,
    LoggedEvent,
    Run,
    RunState,
    SessionHead,
    Turn,
)
from perdure.server.app import build_app
from perdure.server.auth import AuthPolicy
from perdure.server.serve import Listener
from perdure.store.port import LiveSlot, Snapshot

SESSION = "01890a5d-ac96-774b-bcce-b302099a8057"
TURN = "01890a5d-ac96-774b-bcce-b302099a8058"
HOLD = "01890a5d-ac96-774b-bcce-b302099a8059"
RUN = "01890a5d-ac96-774b-bcce-b302099a805a"
ASK = "01890a5d-ac96-774b-bcce-b302099a805b"
DEPLOYMENT = "01890a5d-ac96-774b-bcce-b302099a805c"
COMPUTER = "01890a5d-ac96-774b-bcce-b302099a805d"
NOW = 1_796_084_223_123_456
CONTENT = b'[{"text":"hello","type":"text"}]'
RECEIPT = b'{"created":false,"sequence":1,"session_id":"%b","turn_id":"%b"}' % (SESSION.encode(), TURN.encode())
LOCAL = "http://127.0.0.1"


class FakeService:
    """Answers each operation with what it was given: a value, an error to raise, or a function to call."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        def operation(*args: Any, **named: Any) -> Any:
            self.calls.append((name, args, named))
            answer = self.answers[name]
            return answer(*args, **named) if callable(answer) else _given(answer)

        return operation


async def _given(answer: Any) -> Any:
    if isinstance(answer, BaseException):
        raise answer
    return answer


def app_of(service: FakeService, keys: Iterable[str] = (), **settings: Any) -> Starlette:
    """Return the application over a fake."""
    return build_app(cast("Service", service), auth=AuthPolicy(keys), **settings)


def client_of(app: Starlette, base_url: str = LOCAL) -> httpx2.AsyncClient:
    """Return a client that calls the application without a socket."""
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url=base_url)


class Running:
    """An application on a socket. `stop()` begins a graceful stop; `ended` is done when it is over."""

    def __init__(self, app: Starlette, drain_seconds: int = 5, linger: float = 0.0) -> None:
        self._stop = asyncio.Event()
        self._listener = Listener("127.0.0.1", 0)
        self.url = self._listener.url
        self.port = self._listener.port
        serving = self._listener.serve(app, self._stop, drain_seconds=drain_seconds, linger=linger)
        self.ended = asyncio.ensure_future(serving)

    def stop(self) -> None:
        self._stop.set()


@asynccontextmanager
async def running(app: Starlette, drain_seconds: int = 5, linger: float = 0.0) -> AsyncIterator[Running]:
    """Serve an application on a free port of 127.0.0.1."""
    server = Running(app, drain_seconds, linger)
    try:
        yield server
    finally:
        server.stop()
        if not server.ended.cancelled():
            await server.ended


def event(seq: int, kind: str = "turn.output", data: bytes = b'{"content":[]}') -> LoggedEvent:
    """Return an event."""
    return LoggedEvent(SESSION, seq, kind, msgspec.Raw(data), TURN, RUN, NOW)


def head(**fields: Any) -> SessionHead:
    """Return a head in which everything is set that can be."""
    full: dict[str, Any] = {
        "id": SESSION,
        "environment": "demo/development",
        "agent": "assistant",
        "deployment": DEPLOYMENT,
        "host": "process",
        "created_at": NOW,
        "key": "user:ada",
        "last_seq": 12,
        "last_turn": 3,
        "queued": 1,
        "active": ActiveTurn(2, TURN, NOW, 7),
        "run": RunState(1, RUN, "ready", "initial", NOW),
        "losses": 1,
        "holds": (Hold(HOLD, "interrupt", Issuer("user", "local"), NOW, "stop"),),
        "computer": ComputerState(COMPUTER, "assistant", "running"),
        "idle_since": NOW,
        "ended_at": NOW,
    }
    return SessionHead(**{**full, **fields})


def view(**fields: Any) -> SessionView:
    """Return a session in which everything is set that can be."""
    return SessionView(head(**fields), ComputerView(COMPUTER, "assistant", "local", "running", "none", "disk"))


def bare_view() -> SessionView:
    """Return a session in which nothing is set that need not be."""
    return SessionView(SessionHead(SESSION, "demo/development", "inline", DEPLOYMENT, "inline", NOW), None)


def turn(number: int = 1, **fields: Any) -> Turn:
    """Return a turn that is queued, unless the fields say more."""
    return Turn(**{"id": TURN, "session_id": SESSION, "number": number, "status": "queued", **_turn_rest(), **fields})


def _turn_rest() -> dict[str, Any]:
    return {"input_json": CONTENT, "created_at": NOW}


def ended_turn() -> Turn:
    """Return a turn in which everything is set that can be."""
    error = b'{"code":"handler_failed","message":"it did not work"}'
    return turn(
        status="failed",
        result_json=b"null",
        response_json=CONTENT,
        error_json=error,
        reason="deadline",
        run_id=RUN,
        started_at=NOW,
        ended_at=NOW,
    )


def ask(**fields: Any) -> Ask:
    """Return a pending question."""
    control = b'{"options":[{"id":"y","label":"Yes","value":true}],"type":"choice"}'
    return Ask(**{**{"id": ASK, "turn": 1, "turn_id": TURN, "status": "pending"}, **_ask_rest(control), **fields})


def _ask_rest(control: bytes) -> dict[str, Any]:
    return {"prompt_json": CONTENT, "control_json": control, "created_at": NOW}


def run(number: int = 1, **fields: Any) -> Run:
    """Return a run that goes on, unless the fields say more."""
    return Run(number, RUN, SESSION, "initial", DEPLOYMENT, NOW, **fields)


def snapshot_item() -> SnapshotItem:
    """Return a snapshot with a live slot."""
    return SnapshotItem(view(), Snapshot(head(), [turn(), ended_turn()], {"draft": LiveSlot(TURN, CONTENT, NOW)}, True))
