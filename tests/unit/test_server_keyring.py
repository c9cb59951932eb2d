"""API keys in a shared store: made, revoked, and known to servers soon."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

from perdure.errors import AuthenticationRequired, StoreError
from perdure.server.auth import AuthPolicy, hash_key
from perdure.server.keyring import Keyring, create_key, list_keys, revoke_key
from perdure.store.port import ApiKey, Store

OPEN = [(b"host", b"localhost")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class KeyStore:
    """The part of a store that has keys; `failing` is what reading them raises. `read` is set by each reading."""

    def __init__(self) -> None:
        self.keys: dict[str, ApiKey] = {}
        self.failing: Exception | None = None
        self.read = asyncio.Event()

    async def api_keys(self) -> list[ApiKey]:
        self.read.set()
        if self.failing:
            raise self.failing
        return list(self.keys.values())

    async def put_api_key(self, key: ApiKey) -> None:
        self.keys.setdefault(key.id, key)

    async def end_api_key(self, key_id: str, at: int) -> bool:
        key = self.keys.get(key_id)
        if key is None or key.ended_at is not None:
            return False
        self.keys[key_id] = ApiKey(key.id, key.name, key.sha256, key.created_at, at)
        return True

    async def readings(self, count: int) -> None:
        """Wait for so many readings that begin from now on."""
        for _ in range(count):
            self.read.clear()
            await self.read.wait()


def store_of(keys: KeyStore) -> Store:
    return cast("Store", keys)


def bearer(secret: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", f"Bearer {secret}".encode())]


async def test_a_store_has_the_hash_and_the_maker_the_key() -> None:
    keys = KeyStore()
    made, other = await create_key(store_of(keys), "ci"), await create_key(store_of(keys), "laptop")
    assert [(key.id, key.name) for key in await list_keys(store_of(keys))] == [(made.id, "ci"), (other.id, "laptop")]
    assert keys.keys[made.id].sha256 == hash_key(made.secret)
    assert made.secret not in repr(keys.keys)
    assert await revoke_key(store_of(keys), made.id)
    assert not await revoke_key(store_of(keys), made.id)
    assert [key.id for key in await list_keys(store_of(keys))] == [other.id]


async def test_a_policy_follows_the_store() -> None:
    keys, policy = KeyStore(), AuthPolicy()
    keyring = Keyring(store_of(keys), policy)
    await keyring.read()
    assert policy.admit("/v1/x", OPEN).kind == "user"
    following = asyncio.create_task(keyring.follow(every=0.001))
    made = await create_key(store_of(keys), "ci")
    await keys.readings(2)
    assert policy.admit("/v1/x", bearer(made.secret)).id == made.id
    with pytest.raises(AuthenticationRequired):
        policy.admit("/v1/x", OPEN)
    await revoke_key(store_of(keys), made.id)
    await keys.readings(2)
    for headers in (bearer(made.secret), OPEN):  # the last key is gone: that opens the server to nobody
        with pytest.raises(AuthenticationRequired):
            policy.admit("/v1/x", headers)
    following.cancel()


@pytest.mark.parametrize("error", [StoreError("PostgreSQL does not answer."), OSError("PostgreSQL does not answer.")])
async def test_while_the_store_is_away_known_keys_stay(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    keys, policy = KeyStore(), AuthPolicy()
    made = await create_key(store_of(keys), "ci")
    keyring = Keyring(store_of(keys), policy)
    await keyring.read()
    keys.failing = error
    with pytest.raises(type(error)):
        await keyring.read()
    with caplog.at_level(logging.WARNING, "perdure.server"):
        following = asyncio.create_task(keyring.follow(every=0.001))
        await keys.readings(4)
        assert policy.admit("/v1/x", bearer(made.secret)).id == made.id
        keys.failing = None
        await revoke_key(store_of(keys), made.id)
        await keys.readings(2)
        with pytest.raises(AuthenticationRequired):
            policy.admit("/v1/x", bearer(made.secret))
        following.cancel()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "those known before are kept" in told[0]
    assert "PostgreSQL does not answer" in told[0]


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_a_closed_policy_lets_nobody_in_but_tells_everybody_how_it_is(path: str) -> None:
    policy = AuthPolicy(closed=True)
    stranger: Any = [(b"host", b"10.0.0.7:9090")]
    assert policy.admit(path, stranger).kind == "user"
    with pytest.raises(AuthenticationRequired):
        policy.admit("/v1/server", stranger)
