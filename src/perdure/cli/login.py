"""`perdure login` and `perdure logout`: which server later commands speak to."""

from __future__ import annotations

import getpass
import sys
from typing import Annotated

from cyclopts import Parameter

from perdure.cli.logins import normal, read_logins, write_logins
from perdure.cli.options import PLAIN, Output
from perdure.cli.output import show
from perdure.errors import AuthenticationRequired, BadRequest


def login(
    url: Annotated[str, Parameter(help="Address of the server.")],
    /,
    *,
    api_key: Annotated[
        str | None, Parameter(help="API key; - reads it from standard input. Asked for when the server needs one.")
    ] = None,
    output: Output = PLAIN,
) -> None:
    """Save a server's address and API key for later commands, once the server has accepted them."""
    key = sys.stdin.readline().strip() if api_key == "-" else api_key
    try:
        version = _ask(url, key)
    except AuthenticationRequired:
        if key is not None or not sys.stdin.isatty():
            raise
        key = getpass.getpass("API key: ")
        version = _ask(url, key)
    logins = read_logins()
    logins.add(url, key)
    write_logins(logins)
    show({"api_url": normal(url), "server_version": version}, output)


def _ask(url: str, key: str | None) -> str:
    from perdure.client.sync import Client

    with Client(url, key) as client:
        return client.server().version


def logout(
    url: Annotated[
        str | None, Parameter(help="Address of the server. Else the one that was logged in to last.")
    ] = None,
    /,
    *,
    output: Output = PLAIN,
) -> None:
    """Forget a saved server and its key."""
    logins = read_logins()
    gone = url or logins.current
    if gone is None or not logins.remove(gone):
        raise BadRequest(f"There is no saved login{f' for {url}' if url else ''}. Nothing was changed.")
    write_logins(logins)
    show({"api_url": normal(gone), "status": "logged out"}, output)
