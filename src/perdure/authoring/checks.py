"""The checks that definitions share. Each raises `DefinitionError` naming the thing, the field and the way out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from perdure.errors import DefinitionError, InvalidDuration
from perdure.records.durations import parse_duration
from perdure.records.ids import is_name

ENV_VARIABLES: Final = 128
ENV_BYTES: Final = 256 * 1024
_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIZE: Final = re.compile(r"([1-9][0-9]*)(MiB|GiB)")
_UNITS: Final = {"MiB": 1024**2, "GiB": 1024**3}
_LARGEST_SIZE: Final = 1024**5


def check_name(noun: str, text: object) -> str:
    """Return `text` if it may name an agent, template or image."""
    if isinstance(text, str) and is_name(text):
        return text
    raise DefinitionError(
        f"{noun} id {text!r} is refused: use 1 to 128 letters, digits, '.', '_' and '-', beginning with a letter or "
        "digit."
    )


def check_duration(owner: str, field: str, text: str | None) -> int | None:
    """Return the microseconds of an optional duration."""
    if text is None:
        return None
    try:
        return parse_duration(text)
    except InvalidDuration as error:
        raise DefinitionError(f"{owner}: {field} is refused: {error.message}") from None


def check_size(owner: str, field: str, text: object) -> int:
    """Return the bytes of a size such as `512MiB` or `2GiB`."""
    match = _SIZE.fullmatch(text) if isinstance(text, str) else None
    size = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < size <= _LARGEST_SIZE:
        raise DefinitionError(
            f"{owner}: {field}={text!r} is not a size; write a whole number and MiB or GiB, such as '512MiB' or '2GiB'."
        )
    return size


def check_cpu(owner: str, value: object) -> float:
    """Return a number of CPUs, which may be a fraction."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1024:
        raise DefinitionError(f"{owner}: cpu={value!r} is not a number of CPUs; write one above 0, such as 0.5 or 2.")
    return float(value)


def check_env(owner: str, variables: Mapping[str, str], limit: int = ENV_BYTES) -> dict[str, str]:
    """Return environment variables as a plain dict."""
    checked = {check_env_name(owner, name): _env_value(owner, name, value) for name, value in variables.items()}
    if len(checked) > ENV_VARIABLES:
        raise DefinitionError(f"{owner}: env has {len(checked)} variables; the limit is {ENV_VARIABLES}.")
    size = sum(len(name) + len(value.encode()) for name, value in checked.items())
    if size > limit:
        raise DefinitionError(f"{owner}: env has {size} bytes; the limit is {limit}.")
    return checked


def check_env_name(owner: str, name: object) -> str:
    """Return the name of an environment variable that a definition may set or pass on."""
    if not isinstance(name, str) or not _ENV_NAME.fullmatch(name):
        raise DefinitionError(f"{owner}: {name!r} cannot name an environment variable.")
    if name.startswith("PERDURE_"):
        raise DefinitionError(f"{owner}: the environment variable {name} is reserved; names from PERDURE_ on are ours.")
    return name


def check_env_names(owner: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of variables to pass on, without repetition."""
    if isinstance(names, str):
        raise DefinitionError(f"{owner}: pass_env is a list of names, such as [{names!r}].")
    return tuple(dict.fromkeys(check_env_name(owner, name) for name in names))


def _env_value(owner: str, name: str, value: object) -> str:
    if not isinstance(value, str):
        raise DefinitionError(f"{owner}: the environment variable {name} is a {type(value).__name__}; write text.")
    return check_text(owner, f"the environment variable {name}", value)


def check_text(owner: str, what: str, text: str) -> str:
    """Return text that can be handed to a program: no NUL, no lone surrogates."""
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise DefinitionError(f"{owner}: {what} contains NUL or a lone surrogate, which no program can be given.")
    return text
