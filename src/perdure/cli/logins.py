"""Saved logins: which server commands speak to when they are told none, and the key of each server."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from perdure.errors import BadRequest, PerdureError

FILE: Final = "logins.json"


class LoginsUnreadable(PerdureError):
    """Raised when the file of saved logins is not what we wrote."""

    code = "logins_unreadable"
    status = 400


@dataclass
class Logins:
    """The servers that were logged in to. A key is only ever sent to the server that it was saved for."""

    current: str | None = None
    keys: dict[str, str | None] = field(default_factory=dict)

    def key_for(self, url: str) -> str | None:
        """Return the key saved for a server, if any."""
        return self.keys.get(normal(url))

    def add(self, url: str, key: str | None) -> None:
        """Save a server, and make it the one that commands speak to."""
        self.current = normal(url)
        self.keys[self.current] = key

    def remove(self, url: str) -> bool:
        """Forget a server; tells whether it was saved."""
        if normal(url) not in self.keys:
            return False
        del self.keys[normal(url)]
        if self.current == normal(url):
            self.current = None
        return True


def normal(url: str) -> str:
    """Return an address as it is compared: scheme and host in lower case, no default port, no slash at the end.

    Raises `BadRequest` for what is no address.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise BadRequest(f"{url!r} is not a server's address; write http://HOST:PORT.") from None
    scheme, host = parts.scheme.lower(), (parts.hostname or "").lower()
    port = None if port == {"http": 80, "https": 443}.get(scheme) else port
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}{f':{port}' if port else ''}{parts.path.rstrip('/')}"


def config_folder() -> Path:
    """Return where logins are kept: PERDURE_CONFIG_DIR, else `perdure` in the user's configuration folder."""
    if given := os.environ.get("PERDURE_CONFIG_DIR"):
        return Path(given)
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "perdure"


def read_logins() -> Logins:
    """Return the saved logins; none when nothing was saved. Raises `LoginsUnreadable`."""
    path = config_folder() / FILE
    try:
        return _logins(json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        return Logins()
    except (ValueError, TypeError, KeyError) as error:
        raise LoginsUnreadable(f"The saved logins in {path} cannot be read: {error!r}. Remove the file.") from error


def _logins(saved: Any) -> Logins:
    keys = {str(url): entry["api_key"] for url, entry in saved["servers"].items()}
    return Logins(saved["current"], keys)


def write_logins(logins: Logins) -> None:
    """Keep the logins in a file that only its owner can read. Raises OSError."""
    folder = config_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    servers = {url: {"api_key": key} for url, key in logins.keys.items()}
    text = json.dumps({"current": logins.current, "servers": servers}, indent=2) + "\n"
    draft = folder / f".{FILE}.{secrets.token_hex(8)}"
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(folder / FILE)
