"""Who may ask: everybody on this machine, or those who have an API key.

Without keys a server listens on loopback only, and a web page that a user looks at must not reach it: neither under a
name that its owner points at 127.0.0.1 (DNS rebinding: the Host tells) nor by a form or script (the Origin tells).
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable
from typing import Any, Final

from perdure.errors import AuthenticationRequired, HostNotAllowed
from perdure.records.sessions import Issuer

LOCAL_USER: Final = Issuer("user", "local")
SHOWN_DIGITS: Final = 8
_HOST: Final = re.compile(rb"(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]+)?", re.IGNORECASE)
_ORIGIN: Final = re.compile(b"https?://" + _HOST.pattern, re.IGNORECASE)
OPEN_PATHS: Final = frozenset({"/healthz", "/readyz", "/openapi.json"})
"""What needs no key, and is answered to the end."""


def hash_key(secret: str) -> str:
    """Return what is kept of an API key: its SHA-256 in hexadecimal digits."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def is_loopback(address: str) -> bool:
    """Tell whether a bind address can be reached from this machine only."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return False


class AuthPolicy:
    """Decides who makes a request. Without key hashes it is open to this machine; see this module.

    A policy that is `closed`, or has had a key, is never open: when its last key is revoked, nobody is let in.
    """

    def __init__(self, key_hashes: Iterable[str] = (), *, closed: bool = False) -> None:
        self._hashes: tuple[bytes, ...] = ()
        self._closed = closed
        self.replace_keys(key_hashes)

    def replace_keys(self, key_hashes: Iterable[str]) -> None:
        """Let in those who have one of these keys from now on, and nobody else."""
        self._hashes = tuple(bytes.fromhex(each) for each in key_hashes)
        self._closed = self._closed or bool(self._hashes)

    @property
    def has_keys(self) -> bool:
        """Whether there is an API key."""
        return bool(self._hashes)

    def check_bind(self, address: str) -> None:
        """Raise `AuthenticationRequired` when a server without keys is to listen beyond this machine."""
        if not self._hashes and not is_loopback(address):
            raise AuthenticationRequired(
                f"Listening on {address} lets other machines in and needs an API key. Nothing was started; create one "
                "with `perdure api-key create`, or listen on 127.0.0.1."
            )

    def admit(self, path: str, headers: Iterable[tuple[bytes, bytes]]) -> Issuer:
        """Return who asks, or raise `HostNotAllowed` or `AuthenticationRequired`."""
        if self._closed:
            return LOCAL_USER if path in OPEN_PATHS else self._key_holder(headers)
        _check_local(headers)
        return LOCAL_USER

    def _key_holder(self, headers: Iterable[tuple[bytes, bytes]]) -> Issuer:
        given = [value for name, value in headers if name == b"authorization"]
        scheme, _, secret = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        digest = hashlib.sha256(secret.strip()).digest()
        known = [hmac.compare_digest(digest, each) for each in self._hashes]
        if scheme.lower() != b"bearer" or not any(known):
            raise AuthenticationRequired(
                "This server needs a valid API key: send it as `Authorization: Bearer prd_sk_…`. Nothing was done."
            )
        return Issuer("api_key", digest.hex()[:SHOWN_DIGITS])


def _check_local(headers: Iterable[tuple[bytes, bytes]]) -> None:
    hosts = 0
    for name, value in headers:
        if name == b"host":
            hosts += 1
            _require(_HOST.fullmatch(value) is not None, "Host", value)
        elif name == b"origin":
            _require(_ORIGIN.fullmatch(value) is not None, "Origin", value)
    _require(hosts == 1, "Host", b"")


def _require(allowed: bool, header: str, value: bytes) -> None:
    if allowed:
        return
    shown = value[:200].decode("latin-1")
    details: dict[str, Any] = {"header": header, "value": shown}
    raise HostNotAllowed(
        f"This server answers on loopback only, and the request's {header} is {shown!r}. Nothing was done; use "
        "http://127.0.0.1:PORT, or start the server with API keys to reach it under another name.",
        details,
    )
