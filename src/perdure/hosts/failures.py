"""How what user code raised is kept."""

from __future__ import annotations

from typing import Final

from perdure.errors import PerdureError
from perdure.records import canonical

ERROR_TEXT: Final = 1024


def error_json(error: BaseException, code: str = "handler_failed") -> bytes:
    """Return how a raised exception is kept: a code, its class and the start of its text."""
    known = error.code if isinstance(error, PerdureError) else code
    return canonical.encode({"code": known, "message": _words(error), "type": type(error).__name__}, "error")


def _words(error: BaseException) -> str:
    try:
        return str(error)[:ERROR_TEXT] or type(error).__name__
    except Exception:
        # Even its text is user code.
        return type(error).__name__
