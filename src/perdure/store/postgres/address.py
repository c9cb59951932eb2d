"""Where a PostgreSQL store is: a libpq address, and in its query what is ours.

`postgresql://user@host1,host2/name?target_session_attrs=read-write&perdure_connections=8`

Ours: `perdure_connections`, at most how many connections a process keeps (6); `perdure_patience`, for how long work is
tried again while the server is away (10s). The rest is found out where it is not said:

`perdure_prepare`: whether statements are prepared by name, which is faster. Not behind a pooler, unless `on` says that
it knows them (PgBouncer from 1.21 on) or keeps sessions apart.

`perdure_hints`: whether processes tell each other of what they have changed, rather than look. Behind a pooler nobody
can listen, unless `on` says that it keeps sessions apart, or `perdure_listen` gives an address that leads to the server
itself: `perdure_listen=postgresql://user@db1,db2/name`, percent-encoded if it has options of its own.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import msgspec

from perdure.errors import BadRequest
from perdure.records.durations import parse_duration

SCHEMES: Final = ("postgresql", "postgres")


class Address(msgspec.Struct, frozen=True):
    """A parsed address: what libpq is told, and what is ours. `patience` in seconds; None is for what is found out."""

    conninfo: str
    settings: dict[str, Any]
    connections: int = 6
    patience: float = 10.0
    prepare: bool | None = None
    hints: bool | None = None
    listen: str | None = None


def parse(url: str) -> Address:
    """Return an address from its URL; raises `BadRequest` for options of ours that do not exist."""
    head, _, query = url.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    theirs = [(name, value) for name, value in pairs if not name.startswith("perdure_")]
    ours = {name.removeprefix("perdure_"): value for name, value in pairs if name.startswith("perdure_")}
    known = {name for name, _ in theirs}
    conninfo = f"{head}?{urlencode(theirs, quote_via=quote)}" if theirs else head
    prepare, hints, listen = _switch(ours, "prepare"), _switch(ours, "hints"), _listen(ours)
    # We prepare statements ourselves, if at all.
    settings: dict[str, Any] = {"prepare_threshold": None}
    # A server that has vanished without a word is noticed within seconds, not within the two hours of TCP's own.
    settings |= {name: value for name, value in _KEEPALIVES.items() if name not in known}
    connections = _count(ours.pop("connections", "6"))
    patience = parse_duration(ours.pop("patience", "10s")) / 1e6
    if ours:
        raise BadRequest(f"A store's address has no option perdure_{min(ours)}; see the documentation of stores.")
    return Address(conninfo, settings, max(connections, 3), patience, prepare, hints, listen)


_KEEPALIVES: Final = {
    "application_name": "perdure",
    "client_encoding": "UTF8",
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}


def _switch(ours: dict[str, str], name: str) -> bool | None:
    value = ours.pop(name, None)
    if value not in (None, "on", "off"):
        raise BadRequest(f"perdure_{name} is on or off, not {value!r}.")
    return None if value is None else value == "on"


def _count(value: str) -> int:
    if not value.isdecimal():
        raise BadRequest(f"perdure_connections is a number, not {value!r}.")
    return int(value)


def _listen(ours: dict[str, str]) -> str | None:
    value = ours.pop("listen", None)
    if value is not None and not value.startswith(tuple(f"{scheme}://" for scheme in SCHEMES)):
        raise BadRequest("perdure_listen is an address of PostgreSQL itself: postgresql://user@host/name.")
    if value is not None and "perdure_" in value.partition("?")[2]:
        raise BadRequest("perdure_listen is for libpq alone: options of ours go into the store's address.")
    return value


def safe(url: str) -> str:
    """Return an address without its password and options, to show to people."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
