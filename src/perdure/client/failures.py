"""From what went wrong with a request to the error that its caller gets: the same classes that the server raised."""

from __future__ import annotations

import re
from typing import Any, Final

import httpx2
from pydantic import ValidationError

from perdure.api.failures import ErrorBody, ErrorEnvelope
from perdure.errors import AuthenticationRequired, PerdureError, Unavailable, by_code

_PASSING: Final = frozenset({502, 503, 504})
_NEVER_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_OURS: Final = (httpx2.UnsupportedProtocol, httpx2.LocalProtocolError)
_SECONDS: Final = re.compile("[0-9]{1,6}")
_START: Final = "start one with `perdure dev`, or name another with --api-url or PERDURE_API_URL"


class NotUnderstood(PerdureError):
    """Raised when an answer is not what a Perdure server of this version sends."""

    code = "answer_not_understood"
    status = 502


def from_reply(reply: httpx2.Response) -> PerdureError:
    """Return the error that a reply of status 400 or more reports.

    `details` gets the `request_id`, and as `retry_after_seconds` what a Retry-After says.
    """
    try:
        body = ErrorEnvelope.model_validate_json(reply.content).error
    except ValidationError:
        body = _stranger(reply)
    details = dict(body.details or {})
    if request_id := reply.headers.get("x-request-id"):
        details["request_id"] = request_id
    told = reply.headers.get("retry-after", "")
    if _SECONDS.fullmatch(told):
        details.setdefault("retry_after_seconds", int(told))
    return _error(body.code, reply.status_code, body.message, details)


def _stranger(reply: httpx2.Response) -> ErrorBody:
    """Describe an answer that something between us and the server gave, such as a proxy."""
    code = {401: AuthenticationRequired.code, 502: Unavailable.code, 503: Unavailable.code, 504: Unavailable.code}
    message = f"{origin(reply.request)} answers HTTP {reply.status_code}, and not in the way of a Perdure server."
    return ErrorBody(code=code.get(reply.status_code, NotUnderstood.code), message=message)


def _error(code: str, status: int, message: str, details: dict[str, Any]) -> PerdureError:
    """Make the error of a code without its own `__init__`, which words a message that we have already."""
    kind = by_code().get(code, PerdureError)
    error = kind.__new__(kind)
    PerdureError.__init__(error, message, details)
    if kind.code != code or kind.status != status:
        error.__dict__.update(code=code, status=status)
    return error


def from_transport(error: httpx2.RequestError, key: str | None) -> PerdureError:
    """Return the error for a request that got no answer. `key` is the idempotency key that it carried, if any."""
    where, why = origin(error.request), _why(error)
    if isinstance(error, _OURS):
        return NotUnderstood(f"The request to {where} cannot be sent: {why}. Nothing was changed.")
    if isinstance(error, _NEVER_SENT):
        return Unavailable(f"No Perdure server answers at {where} ({why}); {_START}. Nothing was changed.")
    message = f"The connection to {where} was lost before the answer came ({why})."
    if key is None:
        return Unavailable(f"{message} Nothing was changed by asking.")
    again = f"It may have been carried out; ask again with the idempotency key {key} to get its receipt."
    return Unavailable(f"{message} {again}", {"idempotency_key": key})


def _why(error: httpx2.RequestError) -> str:
    if isinstance(error, httpx2.TimeoutException):
        return "it timed out"
    return str(error).strip().rstrip(".") or type(error).__name__


def origin(request: httpx2.Request) -> str:
    """Return the scheme, host and port that a request went to."""
    return str(request.url.copy_with(path="/", query=None, fragment=None)).rstrip("/")


def may_pass(error: PerdureError) -> bool:
    """Tell whether the same request, sent again a little later, may well succeed."""
    return error.status in _PASSING and not isinstance(error, NotUnderstood)
