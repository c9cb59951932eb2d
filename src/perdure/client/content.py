"""Inputs as callers give them, as the list of parts that goes over the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from perdure.api import content as wire
from perdure.errors import InvalidContent
from perdure.records.content import ContentLike, JsonPart, TextPart

Input: TypeAlias = "ContentLike | wire.TextPart | wire.JsonPart | Sequence[wire.Part]"
"""Text, a part or a list of parts; parts of responses are taken as they are."""


def input_parts(input: Input) -> list[dict[str, Any]]:
    """Return the parts of an input. Sizes and the parts' own form are the server's to judge.

    Raises `InvalidContent` for what is neither text nor a part nor a list of them.
    """
    items = input if isinstance(input, list | tuple) else [input]
    return [_part(item) for item in items]


def _part(item: object) -> dict[str, Any]:
    match item:
        case str():
            return {"type": "text", "text": item}
        case TextPart() | wire.TextPart():
            return {"type": "text", "text": item.text}
        case JsonPart() | wire.JsonPart():
            return {"type": "json", "value": item.value}
        case Mapping():
            return dict(item)
    raise InvalidContent("input", f"a part is a {type(item).__name__}; give text, a part or a list of them")


def chosen_input(text: str | None, input: Input | None) -> list[dict[str, Any]] | None:
    """Return the parts of whichever was given; raises `InvalidContent` when both were."""
    if text is not None and input is not None:
        raise InvalidContent("input", "both text and input were given; give one")
    given = text if text is not None else input
    return None if given is None else input_parts(given)


def needed_input(text: str | None, input: Input | None) -> list[dict[str, Any]]:
    """Return the parts of whichever was given; raises `InvalidContent` unless exactly one was."""
    parts = chosen_input(text, input)
    if parts is None:
        raise InvalidContent("input", "none was given; give text or input")
    return parts
