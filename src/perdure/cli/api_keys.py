"""`perdure api-key`: the keys that let others in to a server. They are where its sessions are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

from cyclopts import App, Parameter

from perdure.cli.options import PLAIN, TABLE, Output, Rows
from perdure.cli.output import check_rows, note, show, show_rows
from perdure.cli.stores import KeysAt, in_store, keys_place
from perdure.errors import BadRequest

app = App(name="api-key", help="Make and revoke the API keys of servers.")

Data: TypeAlias = Annotated[
    Path | None, Parameter(help="The server's data folder, if its store is embedded there. Else .perdure.")
]


@app.command
def create(
    name: Annotated[str, Parameter(help="What the key is for, to know it by.")],
    /,
    *,
    store: KeysAt = None,
    data: Data = None,
    output: Output = PLAIN,
) -> None:
    """Make a key. It is shown this once.

    Servers on PostgreSQL know it within a second, one with an embedded store from its next start.
    """
    from perdure.server import keyring, keys

    place = keys_place(store, data)
    if place.embedded:
        key = keys.create_key(place.data, name)
    else:
        key = in_store(place, lambda store: keyring.create_key(store, name))
    show({"id": key.id, "name": key.name, "api_key": key.secret}, output)
    note("The key is shown only now." + (" Restart the server to let it in." if place.embedded else ""))


@app.command(name="list")
def list_(*, store: KeysAt = None, data: Data = None, rows: Rows = TABLE) -> None:
    """List keys, oldest first; not the keys themselves, which are not kept."""
    from perdure.records.instants import format_instant
    from perdure.server import keyring, keys

    check_rows(rows)
    place = keys_place(store, data)
    if place.embedded:
        known = [(key.id, key.name, key.created_at) for key in keys.list_keys(place.data)]
    else:
        found = in_store(place, keyring.list_keys)
        known = [(key.id, key.name, format_instant(key.created_at)) for key in found]
    made = [{"id": key_id, "name": name, "created_at": at} for key_id, name, at in known]
    show_rows({"api_keys": made}, made, rows, ("ID", "NAME", "CREATED"), known)


@app.command
def revoke(
    key_id: Annotated[str, Parameter(help="Id of the key.")],
    /,
    *,
    store: KeysAt = None,
    data: Data = None,
    output: Output = PLAIN,
) -> None:
    """Revoke a key.

    Servers on PostgreSQL refuse it within a second, one with an embedded store from its next start.
    """
    from perdure.server import keyring, keys

    place = keys_place(store, data)
    if place.embedded:
        was = keys.revoke_key(place.data, key_id)
    else:
        was = in_store(place, lambda store: keyring.revoke_key(store, key_id))
    if not was:
        raise BadRequest(f"There is no key {key_id} in {place.shown}. Nothing was changed.")
    show({"id": key_id, "status": "revoked"}, output)
