"""A model's arguments: from whatever text it sent to one JSON object, or to words that it can mend it by."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from perdure.errors import InvalidJson, NotJson
from perdure.records import canonical

ARGUMENTS_BYTES: Final = 1024 * 1024


class InvalidArguments(Exception):
    """Raised when a model's arguments do not fit a tool. The message is for the model: what is wrong, what to send."""


class Arguments(NamedTuple):
    """Arguments that fit: the values that the function gets, and the canonical JSON that is kept with the call."""

    values: dict[str, Any]
    json: bytes


def plain_arguments(text: str) -> bytes:
    """Return arguments as the canonical JSON of an object; raises `InvalidArguments`."""
    if len(text) > ARGUMENTS_BYTES:
        raise InvalidArguments(
            f"The arguments have {len(text)} characters; the limit is {ARGUMENTS_BYTES}. Send less, in several calls."
        )
    try:
        value = _parse(text)
        data = canonical.encode(value, "text of the arguments")
    except (InvalidJson, NotJson) as error:
        why = error.message.removesuffix(" Nothing was changed.")
        raise InvalidArguments(f"{why} Send one JSON object that fits the tool's parameters.") from None
    if not isinstance(value, dict):
        kind = {list: "an array", str: "text", type(None): "null"}.get(type(value), type(value).__name__)
        raise InvalidArguments(f"The arguments are {kind}; send a JSON object that fits the tool's parameters.")
    return data


def _parse(text: str) -> Any:
    """Return the JSON value of a text; nothing at all is what some models send for no arguments."""
    return canonical.parse(text.encode("utf-8", "replace"), "text of the arguments") if text.strip() else {}
