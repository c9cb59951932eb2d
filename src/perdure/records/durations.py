"""Durations as users write them (`"90s"`, `"1d"`) and as the engine counts them (microseconds)."""

from __future__ import annotations

import re
from typing import Final

from perdure.errors import InvalidDuration

_FORM: Final = re.compile(r"([1-9][0-9]*)(ms|s|m|h|d)")
_UNITS: Final = {"ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_LONGEST: Final = 3650 * _UNITS["d"]


def parse_duration(text: str) -> int:
    """Return the microseconds of a duration such as `250ms`, `90s`, `5m`, `1h` or `30d`.

    Raises `InvalidDuration` for anything else: zero, fractions, compounds and more than ten years included.
    """
    match = _FORM.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidDuration(text)
    value = int(match[1]) * _UNITS[match[2]]
    if value > _LONGEST:
        raise InvalidDuration(text)
    return value


def format_duration(microseconds: int) -> str:
    """Return the shortest duration text for a whole number of milliseconds."""
    for unit in ("d", "h", "m", "s"):
        if microseconds % _UNITS[unit] == 0:
            return f"{microseconds // _UNITS[unit]}{unit}"
    return f"{microseconds // 1000}ms"
