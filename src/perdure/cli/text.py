"""Text of sessions made safe to print: what agents and users wrote must not command the terminal."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_NAMED: Final = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_CONTROL_BUT_BREAKS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    return _NAMED.get(char) or (f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}")


def one_line(text: str) -> str:
    """Return text as one line: line breaks become spaces, other control characters become escapes."""
    return _CONTROL.sub(_escape, " ".join(text.split("\n")).strip())


def cell(text: str) -> str:
    """Return text as one field of a row: tabs, line breaks and control characters become escapes."""
    return _CONTROL.sub(_escape, text)


def block(text: str) -> str:
    """Return text whose line breaks and tabs stay, while other control characters become escapes."""
    return _CONTROL_BUT_BREAKS.sub(_escape, text.replace("\r\n", "\n"))


def short(text: str, length: int, cut: Callable[[str], str] = cell) -> str:
    """Return text as one field of at most `length` characters."""
    made = cut(text)
    return made if len(made) <= length else made[: length - 1] + "…"
