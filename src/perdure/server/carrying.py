"""What goes along when a store is copied, and is not in it where it is embedded: the API keys of the data folder."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.records.instants import format_instant, parse_instant
from perdure.server import keyring, keys
from perdure.server.place import Place, opened_store
from perdure.store.port import ApiKey


async def carry_keys(source: Place, target: Place) -> int:
    """Let those in to the target who have a key of the source; returns how many keys were carried over.

    Between two shared stores there is nothing to carry: their keys are among what is copied.
    """
    if not (source.embedded or target.embedded):
        return 0
    found = await _keys_of(source)
    await _give(target, found)
    return len(found)


async def _keys_of(place: Place) -> list[ApiKey]:
    if not place.embedded:
        async with opened_store(place.address) as store:
            return await keyring.list_keys(store)
    return [ApiKey(key.id, key.name, key.sha256, parse_instant(key.created_at)) for key in keys.list_keys(place.data)]


async def _give(place: Place, found: Sequence[ApiKey]) -> None:
    if place.embedded:
        given = [keys.StoredKey(key.id, key.name, key.sha256, format_instant(key.created_at)) for key in found]
        keys.write_keys(place.data, given)
        return
    async with opened_store(place.address) as store:
        for key in found:
            await store.put_api_key(key)
