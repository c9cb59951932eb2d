"""Paging cursors: opaque text that belongs to one query and is refused by any other."""

from __future__ import annotations

import base64
import binascii
from typing import Final

import msgspec

from perdure.errors import InvalidCursor, InvalidId
from perdure.records import canonical
from perdure.records.ids import check_id

_LONGEST: Final = 512


class _Cursor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    position: str
    query: str


def make_cursor(position: str, **query: str | list[str] | None) -> str:
    """Return the cursor that goes on after the row with id `position` in the list that `query` describes."""
    data = msgspec.json.encode(_Cursor(position, _digest(query)))
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def read_cursor(cursor: str | None, **query: str | list[str] | None) -> str | None:
    """Return the position of a cursor, None for none; raises `InvalidCursor` for one that is not of this query."""
    if cursor is None:
        return None
    found = _decode(cursor)
    if found is None:
        raise InvalidCursor("The cursor is not one of ours. Take `next_cursor` from a page as it is, or start without.")
    if found.query != _digest(query):
        raise InvalidCursor("The cursor belongs to a query with other filters. Keep them, or start without a cursor.")
    return found.position


def _decode(cursor: str) -> _Cursor | None:
    if len(cursor) > _LONGEST:
        return None
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        found = msgspec.json.decode(base64.b64decode(padded, b"-_", validate=True), type=_Cursor)
        check_id(found.position, "cursor")
    except (ValueError, binascii.Error, msgspec.MsgspecError, InvalidId):
        return None
    return found


def _digest(query: dict[str, str | list[str] | None]) -> str:
    return canonical.digest(canonical.encode(query, "query")).hex()
