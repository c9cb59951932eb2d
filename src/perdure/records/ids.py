"""Identifiers: canonical lowercase UUIDv7 text, and the rules for names and keys that users choose."""

from __future__ import annotations

import re
from typing import Final

from uuid_utils import uuid7

from perdure.errors import InvalidId, InvalidKey

_CANONICAL: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SLUG: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
KEY_LIMIT: Final = 512


def new_id() -> str:
    """Return a new UUIDv7 in its canonical lowercase form; later ids of one process sort after earlier ones."""
    return str(uuid7())


def instant_of(made: str) -> int:
    """Return the instant at which an id was made, by its maker's clock, to the millisecond."""
    return int(made[:8] + made[9:13], 16) * 1_000


def check_id(text: str, what: str) -> str:
    """Return `text` if it is a canonical UUIDv7, else raise `InvalidId` naming `what`."""
    if not _CANONICAL.fullmatch(text):
        raise InvalidId(what, text)
    return text


def is_name(text: str) -> bool:
    """Tell whether `text` may name an agent, template or image."""
    return _NAME.fullmatch(text) is not None


def is_slug(text: str) -> bool:
    """Tell whether `text` may name a project or an environment."""
    return _SLUG.fullmatch(text) is not None and not _CANONICAL.fullmatch(text)


def check_key(text: str, what: str) -> str:
    """Return a session or idempotency key unchanged, or raise `InvalidKey`.

    Keys are 1 to 512 bytes of UTF-8 without NUL and without white space at either end; a padded key is refused
    rather than trimmed, because two callers that trim differently would otherwise name two things.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidKey(what, "it contains a lone surrogate") from None
    if not text:
        raise InvalidKey(what, "it is empty")
    if size > KEY_LIMIT:
        raise InvalidKey(what, f"it has {size} bytes; the limit is {KEY_LIMIT}")
    if "\0" in text:
        raise InvalidKey(what, "it contains NUL")
    if text != text.strip():
        raise InvalidKey(what, "it starts or ends with white space")
    return text
