"""From a command's options to a client: which server, with which key, in which scope."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from perdure.cli.logins import read_logins
from perdure.cli.options import Server

if TYPE_CHECKING:
    from perdure.client.sync import Client

DEFAULT_URL: Final = "http://127.0.0.1:7373"
_CONFIG: Final = "perdure.toml"


class Target(NamedTuple):
    """Where a command goes."""

    url: str
    api_key: str | None


def target(server: Server) -> Target:
    """Return the address and key: of the options, else of the environment, else of the saved login.

    A saved key goes only to the server that it was saved for.
    """
    logins = read_logins()
    url = server.api_url or os.environ.get("PERDURE_API_URL") or logins.current or DEFAULT_URL
    key = server.api_key or os.environ.get("PERDURE_API_KEY") or logins.key_for(url)
    return Target(url, key)


def project_of(folder: Path) -> str:
    """Return the project that commands mean in a folder: the one that its `perdure.toml` names, else `demo`."""
    if not (folder / _CONFIG).is_file():
        return "demo"
    from perdure.authoring.config import read_config

    return read_config(folder).project or "demo"


def connect(server: Server, folder: Path | None = None) -> Client:
    """Return a client for a command's options; `folder` is where the project is, if it is not the present one."""
    from perdure.client.sync import Client

    url, key = target(server)
    project = server.project or project_of(folder or Path())
    return Client(url, key, project, server.environment or "development")
