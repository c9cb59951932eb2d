"""Inputs from the command line, as content."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from perdure.cli.options import InputOptions
from perdure.errors import BadRequest
from perdure.records.canonical import parse

_PARTS = {"text": {"type", "text"}, "json": {"type", "value"}}


def read_input(given: InputOptions) -> Any:
    """Return the input as the client takes it, None for none; raises `BadRequest` when more than one was given."""
    named = {"--text": given.text, "--input-json": given.json, "--input-file": given.file}
    used = [name for name, value in named.items() if value is not None]
    if len(used) > 1:
        raise BadRequest(f"{' and '.join(used)} exclude each other; give one. Nothing was sent.")
    if given.json is not None:
        return _content(read_json(given.json, "--input-json"))
    return given.text if given.file is None else _file(given.file)


def read_needed_input(given: InputOptions) -> Any:
    """Return the input as the client takes it; raises `BadRequest` unless exactly one was given."""
    content = read_input(given)
    if content is None:
        raise BadRequest("There is no input; give --text, --input-json or --input-file. Nothing was sent.")
    return content


def read_json(text: str, what: str) -> Any:
    """Return the value of JSON text, `-` being standard input; raises `InvalidJson`."""
    return parse(_bytes("-") if text == "-" else text.encode("utf-8", "surrogatepass"), what)


def _file(name: str) -> Any:
    data = _bytes(name)
    if name.endswith(".json"):
        return _content(parse(data, name))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadRequest(f"{name} is not UTF-8 text: {error}. Nothing was sent.") from None


def _bytes(name: str) -> bytes:
    return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()


def _content(value: Any) -> Any:
    """Tell content from other values: whatever is not a part or a list of parts becomes one JSON part."""
    if isinstance(value, list) and value and all(_is_part(item) for item in value):
        return value
    return value if _is_part(value) else {"type": "json", "value": value}


def _is_part(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == _PARTS.get(str(value.get("type")))
