"""What commands on a store have in common: which store they mean."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias, TypeVar

from cyclopts import Parameter

from perdure.errors import BadRequest

if TYPE_CHECKING:
    from perdure.server.place import Place
    from perdure.store.port import Store

T = TypeVar("T")

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


def present_store(store: str | None) -> Place:
    """Return the place that a command means; raises `BadRequest` for a folder that has no store."""
    return _present(place_of(store))


def present_place(address: str) -> Place:
    """Return the place of a store's address; raises `BadRequest` for a folder that has no store."""
    from perdure.server.place import parse_place

    return _present(parse_place(address))


def _present(place: Place) -> Place:
    from perdure.store.sqlite.folder import DATABASE

    if place.embedded and not (place.data / DATABASE).is_file():
        raise BadRequest(f"There is no store in {place.shown}. Nothing was done, and nothing made.")
    return place


def keys_place(store: str | None, data: Path | None) -> Place:
    """Return where a server's API keys are: in its store, or in the data folder in which its store is embedded."""
    from perdure.server.place import DATA, Place, parse_place

    if data is not None and store is not None:
        raise BadRequest("--store and --data exclude each other: keys are in a shared store, or in a data folder.")
    if data is None and (where := store or os.environ.get(VARIABLE)):
        return parse_place(where)
    return Place(data or Path(DATA))


def in_store(place: Place, work: Callable[[Store], Awaitable[T]]) -> T:
    """Open a store, and return what `work` does with it."""
    from perdure.server.place import opened_store

    async def run() -> T:
        async with opened_store(place.address) as store:
            return await work(store)

    return asyncio.run(run())


def environment_id(text: str) -> str:
    """Return `PROJECT/ENVIRONMENT` as it is; raises `BadRequest` for what is none."""
    from perdure.records.ids import is_slug

    project, slash, environment = text.partition("/")
    if not (slash and is_slug(project) and is_slug(environment)):
        raise BadRequest(
            f"{text!r} is no PROJECT/ENVIRONMENT: each has 1 to 63 of a-z, 0-9 and -, and does not start with -. "
            "Nothing was done."
        )
    return text
