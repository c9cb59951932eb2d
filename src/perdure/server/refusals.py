"""What pydantic refuses, said as one of our errors."""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError

from perdure.errors import BadRequest, InvalidContent

_SHOWN: Final = 5


def explain(error: ValidationError, what: str) -> BadRequest:
    """Return the error that tells which fields of the `what` (body, query) are wrong and why."""
    found = [(_path(each["loc"]), each["type"], _reason(each["msg"])) for each in error.errors(include_url=False)]
    if all(path.startswith("input") and kind != "missing" for path, kind, _ in found):
        return InvalidContent("input", "; ".join(f"{path}: {why}" for path, _, why in found[:_SHOWN]))
    told = "; ".join(f"{path}: {why}" for path, _, why in found[:_SHOWN])
    fields = [{"path": path, "problem": why} for path, _, why in found[:_SHOWN]]
    return BadRequest(f"The {what} is refused: {told}. Nothing was changed.", {"fields": fields})


def _path(place: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in place) or "$"


def _reason(message: str) -> str:
    text = message.removeprefix("Value error, ").rstrip(".")
    return text[:1].lower() + text[1:]
