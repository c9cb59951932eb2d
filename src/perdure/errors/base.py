"""The root of all errors, and how one is reported."""

from __future__ import annotations

from typing import Any, ClassVar


class PerdureError(Exception):
    """Base of all errors of Perdure."""

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500

    def __init__(self, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message: str = message
        self.details: dict[str, Any] = details or {}


def _plain(message: str, details: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"message": message, **({"details": details} if details else {})}


def envelope(error: PerdureError) -> dict[str, Any]:
    """Return the body of the response that reports `error`."""
    return {"error": {"code": error.code, **_plain(error.message, error.details)}}
