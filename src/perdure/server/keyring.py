"""API keys in a store that servers share: they are made and revoked there, and every server reads them each second."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from perdure.errors import PerdureError
from perdure.records.instants import now
from perdure.server.auth import AuthPolicy, hash_key
from perdure.server.keys import NewKey, new_key
from perdure.store.port import ApiKey, Store

_LOG: Final = logging.getLogger("perdure.server")
REREAD_SECONDS: Final = 1.0


async def create_key(store: Store, name: str) -> NewKey:
    """Make a key and keep its hash in the store."""
    key = new_key(name)
    await store.put_api_key(ApiKey(key.id, name, hash_key(key.secret), now()))
    return key


async def revoke_key(store: Store, key_id: str) -> bool:
    """Revoke a key; tells whether it was one that still let in. Servers refuse it within a second."""
    return await store.end_api_key(key_id, now())


async def list_keys(store: Store) -> list[ApiKey]:
    """Return the keys that let in, oldest first."""
    return [key for key in await store.api_keys() if key.ended_at is None]


class Keyring:
    """Keeps a policy's keys those of a store.

    While the store does not answer, the last known keys stay: a database that restarts must lock nobody out, and who
    was let in before can do no more than be told of the trouble.
    """

    def __init__(self, store: Store, policy: AuthPolicy) -> None:
        self._store = store
        self._policy = policy
        self._failing = False

    async def read(self) -> None:
        """Take the keys as they are now; raises `StoreError`."""
        self._policy.replace_keys(key.sha256 for key in await list_keys(self._store))

    async def follow(self, every: float = REREAD_SECONDS) -> None:
        """Take the keys again and again, `every` so many seconds, until the task is cancelled."""
        while True:
            await asyncio.sleep(every)
            try:
                await self.read()
            except Exception as error:
                # Whatever it was: a server that reads no keys any more would let in for ever whom it has let in once.
                if not self._failing:
                    unexpected = None if isinstance(error, PerdureError) else error
                    _LOG.warning(
                        "the API keys cannot be read, those known before are kept: %s", error, exc_info=unexpected
                    )
                self._failing = True
            else:
                if self._failing:
                    _LOG.warning("the API keys can be read again")
                self._failing = False
