"""Columns of many rows as PostgreSQL's binary arrays, so that a commit takes one statement a table, whatever its size.

They are written here rather than by psycopg, which looks at each element anew; and a value that its column cannot hold
is found out before anything is sent.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias

from psycopg.abc import AdaptContext
from psycopg.adapt import Dumper, Loader
from psycopg.pq import Format

from perdure.store.codec import is_canonical

Kind: TypeAlias = Literal["uuid", "int4", "int8", "bool", "text", "bytea"]

_HEADER: Final = struct.Struct("!iiIii")
_EMPTY: Final = struct.Struct("!iiI")
_LENGTH: Final = struct.Struct("!i")
_INT4: Final = struct.Struct("!ii")
_INT8: Final = struct.Struct("!iq")
_NULL: Final = _LENGTH.pack(-1)


class Array:
    """An array parameter, encoded."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class _Uuids(Array): ...


class _Int4s(Array): ...


class _Int8s(Array): ...


class _Bools(Array): ...


class _Texts(Array): ...


class _Byteas(Array): ...


def uuid_bytes(value: str) -> bytes:
    """Return the 16 bytes of an id. Raises ValueError for what is not a canonical UUID."""
    if not is_canonical(value):
        raise ValueError(f"{value!r} is not an id")
    return bytes.fromhex(value.replace("-", ""))


def _uuid(value: str) -> bytes:
    return b"\0\0\0\x10" + uuid_bytes(value)


def _text(value: str) -> bytes:
    raw = value.encode()
    return _LENGTH.pack(len(raw)) + raw


def _bytea(value: bytes) -> bytes:
    return _LENGTH.pack(len(value)) + value


def _bool(value: bool) -> bytes:
    return b"\0\0\0\x01\x01" if value else b"\0\0\0\x01\0"


_KINDS: Final[dict[Kind, tuple[type[Array], int, Callable[[Any], bytes]]]] = {
    "uuid": (_Uuids, 2950, _uuid),
    "int4": (_Int4s, 23, lambda value: _INT4.pack(4, value)),
    "int8": (_Int8s, 20, lambda value: _INT8.pack(8, value)),
    "bool": (_Bools, 16, _bool),
    "text": (_Texts, 25, _text),
    "bytea": (_Byteas, 17, _bytea),
}
_ARRAY_OIDS: Final[dict[type[Array], int]] = {
    _Uuids: 2951,
    _Int4s: 1007,
    _Int8s: 1016,
    _Bools: 1000,
    _Texts: 1009,
    _Byteas: 1001,
}


def array(kind: Kind, values: Sequence[Any]) -> Array:
    """Return a parameter for values of one kind, with None for NULL.

    Raises ValueError, TypeError or struct.error for a value that is not of the kind.
    """
    wrapper, oid, encode = _KINDS[kind]
    if not values:
        return wrapper(_EMPTY.pack(0, 0, oid))
    items = [_NULL if value is None else encode(value) for value in values]
    return wrapper(b"".join((_HEADER.pack(1, int(_NULL in items), oid, len(items), 1), *items)))


def arrays(kinds: Iterable[Kind], rows: Iterable[Sequence[Any]]) -> list[Array]:
    """Return a parameter for each column of some rows."""
    return [array(kind, column) for kind, column in zip(kinds, zip(*rows, strict=True), strict=True)]


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Array) -> bytes:
        return obj.data


class _UuidLoader(Loader):
    format = Format.BINARY

    def load(self, data: Any) -> str:
        digits = bytes(data).hex()
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def register(context: AdaptContext) -> None:
    """Teach a connection our arrays, and to return ids as text."""
    for wrapper, oid in _ARRAY_OIDS.items():
        context.adapters.register_dumper(wrapper, type(f"{wrapper.__name__}Dumper", (_ArrayDumper,), {"oid": oid}))
    context.adapters.register_loader("uuid", _UuidLoader)
