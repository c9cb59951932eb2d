"""Responses: JSON documents, and how errors become them."""

from __future__ import annotations

import logging
from typing import Any, Final

import msgspec
from starlette.types import Send

from perdure.errors import PerdureError, Unavailable, envelope
from perdure.records import canonical

_LOG: Final = logging.getLogger("perdure.server")
_ENCODER: Final = msgspec.json.Encoder()
_JSON: Final = (b"content-type", b"application/json")
REQUEST_ID: Final = b"x-request-id"
RETRY_AFTER_SECONDS: Final = 2
"""When a request that met a passing trouble may be sent again, unless the error knows better."""


class Reply:
    """A complete response with a JSON body."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, body: bytes, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        self.body = body
        self.status = status
        self.headers = headers

    async def send_to(self, send: Send) -> None:
        """Send the response."""
        length = (b"content-length", b"%d" % len(self.body))
        await send({"type": "http.response.start", "status": self.status, "headers": [_JSON, length, *self.headers]})
        await send({"type": "http.response.body", "body": self.body})


def document(value: Any, status: int = 200) -> Reply:
    """Return a response of plain data; `msgspec.Raw` members are JSON already."""
    return Reply(_ENCODER.encode(value), status)


def refusal(error: Exception, request_id: str) -> Reply:
    """Return the response that tells a client of an error, and log what is ours to repair."""
    if isinstance(error, PerdureError) and type(error) is not PerdureError:
        if error.status >= 500:
            # A server that stops says so to everybody; that is no trouble of ours.
            level = logging.INFO if isinstance(error, Unavailable) else logging.ERROR
            _LOG.log(level, "request %s: %s: %s", request_id, error.code, error.message)
        return _envelope(error)
    _LOG.error("request %s failed unexpectedly", request_id, exc_info=error)
    hidden = PerdureError(
        f"The server failed unexpectedly. What was committed is kept; send the request again with the same idempotency "
        f"key. The server's log tells more under request {request_id}.",
        {"request_id": request_id},
    )
    return _envelope(hidden)


def _envelope(error: PerdureError) -> Reply:
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if error.status == 401:
        headers = ((b"www-authenticate", b"Bearer"),)
    elif error.status == 405:
        headers = ((b"allow", ", ".join(error.details["allowed"]).encode()),)
    elif error.status == 503:
        seconds = error.details.get("retry_after_seconds", RETRY_AFTER_SECONDS)
        headers = ((b"retry-after", b"%d" % seconds),)
    # Canonical, because what is quoted from a request may hold half of an emoji.
    return Reply(canonical.encode(envelope(error), "error"), error.status, headers)
