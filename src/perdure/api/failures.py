"""The one envelope of all errors."""

from __future__ import annotations

from typing import Any

from perdure.api.base import Omitted, Wire


class ErrorBody(Wire):
    """`code` is for programs, `message` for people: what happened, what is safe, what to do."""

    code: str
    message: str
    details: Omitted[dict[str, Any]] = None


class ErrorEnvelope(Wire):
    """What every response with a status of 400 or more carries."""

    error: ErrorBody
