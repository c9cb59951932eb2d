"""Where a store is, and where a process that uses it keeps what is its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from perdure.errors import BadRequest
from perdure.store import open_store
from perdure.store.port import Store

DATA: Final = ".perdure"
_SQLITE: Final = "sqlite:///"
_POSTGRES: Final = frozenset({"postgresql", "postgres"})


class Place(msgspec.Struct, frozen=True):
    """A store and a data folder. `url` is the store's, None when the store is embedded in the data folder."""

    data: Path
    url: str | None = None

    @property
    def embedded(self) -> bool:
        """Whether the store is in the data folder, so that one process owns it."""
        return self.url is None

    @property
    def address(self) -> str:
        """What `open_store` takes."""
        return str(self.data) if self.url is None else self.url

    @property
    def shown(self) -> str:
        """The store as people may see it, without passwords."""
        if self.url is None:
            return str(self.data)
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@asynccontextmanager
async def opened_store(address: str) -> AsyncIterator[Store]:
    """Open a store for the length of a block; raises `StoreError` and its kinds."""
    store = open_store(address)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def parse_place(store: str, data: Path | None = None) -> Place:
    """Return the place of a store: `postgresql://…`, a data folder, or `sqlite:///FOLDER`.

    `data` is the data folder beside a store that is elsewhere, by default `.perdure`. Raises `BadRequest` for stores of
    other kinds, and for two data folders.
    """
    kind = store.partition("://")[0] if "://" in store else ""
    if kind in _POSTGRES:
        return Place((data or Path(DATA)).absolute(), store)
    if kind and not store.startswith(_SQLITE):
        raise BadRequest(
            f"There are no stores of the kind {kind}://. Nothing was done; give a data folder, sqlite:///FOLDER or "
            "postgresql://…"
        )
    if not store:
        raise BadRequest("The store's address is empty. Nothing was done; give a data folder or postgresql://…")
    folder = Path(store.removeprefix("sqlite://")).absolute()
    if data is not None and data.absolute() != folder:
        raise BadRequest(
            f"The store in {folder} has its data folder: it is that folder. Nothing was done; leave --data out."
        )
    return Place(folder)
