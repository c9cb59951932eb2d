"""`perdure api-key`: the keys that let others in to a server. They live in its data folder, so this is done there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

from cyclopts import App, Parameter

from perdure.cli.options import PLAIN, TABLE, Output, Rows
from perdure.cli.output import check_rows, note, show, show_rows
from perdure.errors import BadRequest

app = App(name="api-key", help="Make and revoke the API keys of a server's data folder.")

Data: TypeAlias = Annotated[Path, Parameter(help="The server's data folder.")]
_HERE = Path(".perdure")


@app.command
def create(
    name: Annotated[str, Parameter(help="What the key is for, to know it by.")],
    /,
    *,
    data: Data = _HERE,
    output: Output = PLAIN,
) -> None:
    """Make a key. It is shown this once; the server knows it from its next start."""
    from perdure.server.keys import create_key

    key = create_key(data, name)
    show({"id": key.id, "name": key.name, "api_key": key.secret}, output)
    note("The key is shown only now. Restart the server to let it in.")


@app.command(name="list")
def list_(*, data: Data = _HERE, rows: Rows = TABLE) -> None:
    """List keys, oldest first; not the keys themselves, which are not kept."""
    from perdure.server.keys import list_keys

    check_rows(rows)
    keys = [{"id": key.id, "name": key.name, "created_at": key.created_at} for key in list_keys(data)]
    show_rows({"api_keys": keys}, keys, rows, ("ID", "NAME", "CREATED"), (tuple(key.values()) for key in keys))


@app.command
def revoke(
    key_id: Annotated[str, Parameter(help="Id of the key.")], /, *, data: Data = _HERE, output: Output = PLAIN
) -> None:
    """Forget a key; the server refuses it from its next start."""
    from perdure.server.keys import revoke_key

    if not revoke_key(data, key_id):
        raise BadRequest(f"There is no key {key_id} in {data}. Nothing was changed.")
    show({"id": key_id, "status": "revoked"}, output)
