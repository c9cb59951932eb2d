"""Where a PostgreSQL store is: a libpq address, and in its query what is ours.

`postgresql://user@host1,host2/name?target_session_attrs=read-write&perdure_connections=8`

Ours: `perdure_connections`, at most how many connections a process keeps (6); `perdure_patience`, for how long work is
tried again while the server is away (10s); `perdure_prepare`, `on` to prepare statements by name, which is faster, and
safe without a pooler, with PgBouncer 1.21 or newer, or with a pooler in session mode (off); `perdure_hints`, `off`
where LISTEN has no use, behind a pooler in transaction mode (on).
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import msgspec

from perdure.errors import BadRequest
from perdure.records.durations import parse_duration

SCHEMES: Final = ("postgresql", "postgres")


class Address(msgspec.Struct, frozen=True):
    """A parsed address: what libpq is told, and what is ours; `patience` in seconds."""

    conninfo: str
    settings: dict[str, Any]
    connections: int = 6
    patience: float = 10.0
    prepare: bool = False
    hints: bool = True


def parse(url: str) -> Address:
    """Return an address from its URL; raises `BadRequest` for options of ours that do not exist."""
    head, _, query = url.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    theirs = [(name, value) for name, value in pairs if not name.startswith("perdure_")]
    ours = {name.removeprefix("perdure_"): value for name, value in pairs if name.startswith("perdure_")}
    known = {name for name, _ in theirs}
    conninfo = f"{head}?{urlencode(theirs, quote_via=quote)}" if theirs else head
    prepare, hints = _switch(ours, "prepare", "off"), _switch(ours, "hints", "on")
    # We prepare statements ourselves, if at all.
    settings: dict[str, Any] = {"prepare_threshold": None}
    # A server that has vanished without a word is noticed within seconds, not within the two hours of TCP's own.
    settings |= {name: value for name, value in _KEEPALIVES.items() if name not in known}
    connections = int(ours.pop("connections", "6"))
    patience = parse_duration(ours.pop("patience", "10s")) / 1e6
    if ours:
        raise BadRequest(f"A store's address has no option perdure_{min(ours)}; see the documentation of stores.")
    return Address(conninfo, settings, max(connections, 3), patience, prepare, hints)


_KEEPALIVES: Final = {
    "application_name": "perdure",
    "client_encoding": "UTF8",
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}


def _switch(ours: dict[str, str], name: str, otherwise: str) -> bool:
    value = ours.pop(name, otherwise)
    if value not in ("on", "off"):
        raise BadRequest(f"perdure_{name} is on or off, not {value!r}.")
    return value == "on"


def safe(url: str) -> str:
    """Return an address without its password and options, to show to people."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
