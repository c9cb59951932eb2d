"""What commands on a store have in common: which store they mean."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from cyclopts import Parameter

from perdure.errors import BadRequest

if TYPE_CHECKING:
    from perdure.server.place import Place

VARIABLE: Final = "PERDURE_STORE"

StoreAt: TypeAlias = Annotated[
    str | None,
    Parameter(
        name="--store",
        help="The store: postgresql://…, a data folder, or sqlite:///FOLDER. Else PERDURE_STORE, which hides a "
        "password from those who list processes.",
    ),
]

KeysAt: TypeAlias = Annotated[
    str | None,
    Parameter(name="--store", help="The store that the servers share: postgresql://…. Else PERDURE_STORE."),
]


def place_of(store: str | None, data: Path | None = None) -> Place:
    """Return the place that a command means; raises `BadRequest` when it is told none."""
    from perdure.server.place import parse_place

    where = store or os.environ.get(VARIABLE)
    if where is None:
        raise BadRequest(f"Which store? Give --store postgresql://… or a data folder, or set {VARIABLE}.")
    return parse_place(where, data)


def keys_place(store: str | None, data: Path | None) -> Place:
    """Return where a server's API keys are: in its store, or in the data folder in which its store is embedded."""
    from perdure.server.place import DATA, Place, parse_place

    if data is not None and store is not None:
        raise BadRequest("--store and --data exclude each other: keys are in a shared store, or in a data folder.")
    if data is None and (where := store or os.environ.get(VARIABLE)):
        return parse_place(where)
    return Place(data or Path(DATA))
