"""Content: what people and handlers say to each other, as a list of text and JSON parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import msgspec

from perdure.errors import ContentTooLarge, InvalidContent
from perdure.records import canonical

CONTENT_BYTES: Final = 256 * 1024
CONTENT_PARTS: Final = 64
TURN_OUTPUT_BYTES: Final = 8 * 1024 * 1024


class TextPart(msgspec.Struct, frozen=True, tag="text"):
    """Text for a person or a model. Adjacent text parts are read as if joined, without a separator."""

    text: str


class JsonPart(msgspec.Struct, frozen=True, tag="json"):
    """Any JSON value for a program."""

    value: Any


Part: TypeAlias = TextPart | JsonPart
ContentLike: TypeAlias = "str | Part | Mapping[str, Any] | Sequence[str | Part | Mapping[str, Any]]"

_PARTS: Final = msgspec.json.Decoder(list[TextPart | JsonPart])


def encode_content(content: ContentLike, what: str = "content") -> bytes:
    """Return content as canonical JSON bytes.

    A plain text stands for one text part. Raises `InvalidContent` for what is not content, `NotJson` for a JSON part
    that cannot be stored and `ContentTooLarge` beyond 64 parts or 256 KiB.
    """
    if type(content) is str:
        return _bounded(canonical.encode_text_part(content), what)
    parts = [_plain_part(part, what) for part in _as_list(content, what)]
    if not parts:
        raise InvalidContent(what, "it has no parts; an empty text is a part, too")
    if len(parts) > CONTENT_PARTS:
        raise ContentTooLarge(what, f"{len(parts)} parts", f"{CONTENT_PARTS} parts")
    return _bounded(canonical.encode(parts, what), what)


def _bounded(data: bytes, what: str) -> bytes:
    if len(data) > CONTENT_BYTES:
        raise ContentTooLarge(what, f"{len(data)} bytes", f"{CONTENT_BYTES} bytes")
    return data


def _as_list(content: ContentLike, what: str) -> Sequence[object]:
    if isinstance(content, str | TextPart | JsonPart | Mapping):
        return [content]
    if isinstance(content, list | tuple):
        return content
    raise InvalidContent(what, f"it is a {type(content).__name__}; give text or a list of parts")


def _plain_part(part: object, what: str) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if isinstance(part, JsonPart):
        return {"type": "json", "value": part.value}
    if isinstance(part, Mapping):
        return _checked_mapping(cast("Mapping[str, Any]", part), what)
    raise InvalidContent(what, f"a part is a {type(part).__name__}")


def _checked_mapping(part: Mapping[str, Any], what: str) -> dict[str, Any]:
    kind = part.get("type")
    wanted = {"text": {"type", "text"}, "json": {"type", "value"}}.get(kind) if isinstance(kind, str) else None
    if wanted is None or set(part) != wanted:
        raise InvalidContent(what, 'a part must be {"type":"text","text":…} or {"type":"json","value":…}')
    if kind == "text" and not isinstance(part["text"], str):
        raise InvalidContent(what, "the text of a text part is not text")
    return dict(part)


def decode_content(data: bytes) -> list[Part]:
    """Return the parts of stored content."""
    return _PARTS.decode(data)


def text_of(parts: Sequence[Part]) -> str:
    """Return the joined text of the text parts."""
    return "".join(part.text for part in parts if isinstance(part, TextPart))
