"""Canonical JSON: the one form in which values are stored, compared and hashed.

Sorted keys, UTF-8, no white space. NaN and infinities are refused with their path; lone surrogates (half of a cut
emoji, an undecodable byte) become U+FFFD, so that no text can get in that no reader can get out; NUL is kept.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any, Final

import msgspec

from perdure.errors import InvalidJson, NotJson

_ENCODER: Final = msgspec.json.Encoder(order="sorted")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_DEEPEST: Final = 200
_SCALARS: Final = (str, bool, int, float, type(None))
_WIDEST_INT: Final = 2**63


def encode(value: Any, what: str = "value") -> bytes:
    """Return the canonical JSON bytes of plain JSON data; raises `NotJson` with the path of what is not.

    Plain data are dicts with text keys, lists, tuples, text, bool, int in 64 bits, finite float and None.
    """
    return _ENCODER.encode(_plain(value, "$", what, 0))


def _plain(value: Any, path: str, what: str, depth: int) -> Any:
    kind = type(value)
    if kind is str:
        return clean_text(value)
    if value is None or kind is bool:
        return value
    if depth > _DEEPEST:
        raise NotJson(what, path, f"it is nested deeper than {_DEEPEST} levels")
    if kind is dict:
        return {_key(k, path, what): _plain(v, f"{path}.{k}", what, depth + 1) for k, v in value.items()}
    if kind is list or kind is tuple:
        return [_plain(item, f"{path}[{index}]", what, depth + 1) for index, item in enumerate(value)]
    return _number(value, path, what)


def _key(key: Any, path: str, what: str) -> str:
    if not isinstance(key, str):
        raise NotJson(what, path, f"a key is {type(key).__name__}, not text")
    return clean_text(key)


def _number(value: Any, path: str, what: str) -> Any:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NotJson(what, path, f"it is {value}, which JSON does not have")
        return float(value)
    if isinstance(value, int):
        if not -_WIDEST_INT <= value < 2 * _WIDEST_INT:
            raise NotJson(what, path, "the integer does not fit 64 bits; send it as text")
        return int(value)
    if isinstance(value, str):
        return clean_text(str(value))
    raise NotJson(what, path, f"it is a {type(value).__module__}.{type(value).__qualname__}")


def encode_text_part(text: str) -> bytes:
    """Return content of one text part: the most frequent value of all, without the general walk."""
    return b'[{"text":' + msgspec.json.encode(clean_text(text)) + b',"type":"text"}]'


def clean_text(text: str) -> str:
    """Return `text` with surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    if text.isascii() or not _SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def decode(data: bytes) -> Any:
    """Return the value of stored canonical JSON."""
    return msgspec.json.decode(data)


def parse(data: bytes, what: str = "request body") -> Any:
    """Return the value of JSON that came from outside; raises `InvalidJson` for what is not JSON.

    Lone surrogates written as escapes are let through here, since `encode` replaces them.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return _parse_slowly(data, what)


def _parse_slowly(data: bytes, what: str) -> Any:
    """Accept the escapes that the fast decoder refuses, and name the constants that JSON does not have."""

    def refuse(name: str) -> Any:
        raise InvalidJson(what, f"it contains {name}, which JSON does not have")

    try:
        return json.loads(data.decode("utf-8", "replace"), parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidJson(what, str(error)) from None


def digest(*parts: bytes) -> bytes:
    """Return 16 bytes that identify the parts and their boundaries."""
    hasher = hashlib.blake2b(digest_size=16)
    for part in parts:
        hasher.update(len(part).to_bytes(8, "big"))
        hasher.update(part)
    return hasher.digest()
