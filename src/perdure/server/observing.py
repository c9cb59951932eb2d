"""What a request leaves behind for those who watch a server: a count, a duration, a span; and where they read it."""

from __future__ import annotations

import re
from time import perf_counter
from typing import Final

from starlette.types import Receive, Send
from starlette.types import Scope as HttpScope

from perdure.errors import MethodNotAllowed
from perdure.records import instants
from perdure.server.operations import Operation
from perdure.server.replies import Reply
from perdure.telemetry import exposition, metrics, traces
from perdure.telemetry.instruments import is_recording
from perdure.telemetry.traces import Span

PATH: Final = "/metrics"
_OPERATION: Final = "perdure.operation"
_IS_QUICK: Final = "perdure.is_quick"
_TURN: Final = "perdure.turn"
_ADMITTING: Final = frozenset({"create_session", "get_or_create_session", "enqueue", "send"})
_LONG: Final = frozenset({"wait_turn"})
_UNTOLD: Final = frozenset({"healthz", "readyz", "metrics"})
_TURN_ID: Final = re.compile(rb'"turn_id":"([0-9a-f-]{36})"')


class Metrics:
    """All metrics of this process. Not in the table of operations, because they are no part of the API and no JSON."""

    async def __call__(self, http: HttpScope, _receive: Receive, send: Send) -> None:
        """Answer one request."""
        http[_OPERATION] = "metrics"
        if http["method"] not in ("GET", "HEAD"):
            allowed = {"allowed": ["GET"]}
            raise MethodNotAllowed(f"{http['method']} is not possible here; GET is. Nothing was done.", allowed)
        text = exposition.render()
        headers = [(b"content-type", exposition.CONTENT_TYPE.encode()), (b"content-length", b"%d" % len(text))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text if http["method"] == "GET" else b""})


def note_operation(http: HttpScope, operation: Operation) -> None:
    """Note what a request asks for."""
    http[_OPERATION] = operation.id


def note_reply(http: HttpScope, operation: Operation, reply: object) -> None:
    """Note what a request is answered with."""
    http[_IS_QUICK] = isinstance(reply, Reply) and operation.id not in _LONG
    if traces.tracer() is not None and operation.id in _ADMITTING and isinstance(reply, Reply):
        found = _TURN_ID.search(reply.body)
        http[_TURN] = None if found is None else found[1].decode()


def note_end(http: HttpScope, status: int | None, began: float) -> None:
    """Note that a request is over; `status` is None when the client was gone before it had an answer."""
    took = perf_counter() - began
    operation = http.get(_OPERATION, "none")
    if is_recording():
        metrics.REQUESTS.add(operation, "gone" if status is None else str(status))
        if http.get(_IS_QUICK):
            metrics.REQUEST_SECONDS.observe(took, operation)
    made = traces.tracer()
    if made is not None and operation not in _UNTOLD:
        now = instants.now()
        caller = traces.parse(next((value for name, value in http["headers"] if name == b"traceparent"), None))
        attributes = {"http.request.method": http["method"], "http.route": operation}
        if status is not None:
            attributes["http.response.status_code"] = status
        error = str(status) if status is not None and status >= 500 else None
        span = Span(operation, now - int(took * 1e6), now, attributes, parent=caller, error=error, kind="SERVER")
        made.request(span, http.get(_TURN))
