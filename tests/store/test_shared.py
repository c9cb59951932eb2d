"""What servers and workers share in the store besides sessions: sources, keys, logs; and what has changed."""

from __future__ import annotations

import msgspec
from store_world import ENVIRONMENT, Engine, World

from perdure.records.ids import new_id
from perdure.store.logs import PIECE
from perdure.store.port import LOG_BYTES, ApiKey, Deployment, Store


def deployment(digest: str, environment: str = ENVIRONMENT) -> Deployment:
    return Deployment(new_id(), environment, digest, 1_700_000_000_000_000, "/data/source", ())


# --- what has changed


async def test_sessions_whose_log_is_longer_than_was_known_have_changed(world: World, engine: Engine) -> None:
    still, moved, ended = [await world.create() for _ in range(3)]
    known = {session.id: session.last_seq for session in (still, moved, ended)}
    assert await world.store.changed(known) == []
    assert await world.store.changed({}) == []
    await world.enqueue(moved)
    await world.turns(ended, 2)
    assert {head.id: head for head in await world.store.changed(known)} == {
        session.id: await world.head(session) for session in (moved, ended)
    }
    assert await world.store.changed({still.id: 0, new_id(): 0, "nonsense": 0}) == [await world.head(still)]

    await world.store.close()
    again = engine.store()
    await again.open()
    assert {head.id for head in await again.changed(known)} == {moved.id, ended.id}
    await again.close()


async def test_a_store_says_whether_it_is_shared(store: Store, engine: Engine) -> None:
    assert (store.leases is None) == (not engine.address.startswith("postgresql"))
    assert store.leases is not None or store.hints_heard


# --- sources of deployments


async def test_the_source_of_a_deployment_is_kept_once_a_digest(store: Store, engine: Engine) -> None:
    source = b"\x00\xff" * 300_000
    first = await store.put_deployment(deployment("d1"), source)
    assert await store.archive(first.id) == source
    other = await store.put_deployment(deployment("d1", "demo/staging"))
    assert await store.archive(other.id) == source
    bare = await store.put_deployment(deployment("d2"))
    assert await store.archive(bare.id) is None
    assert await store.put_deployment(deployment("d2"), b"late") == bare
    assert await store.archive(bare.id) == b"late"
    await store.put_deployment(deployment("d2"), b"another")
    assert await store.archive(bare.id) == b"late"
    for unknown in (new_id(), "nonsense"):
        assert await store.archive(unknown) is None


# --- who may ask


async def test_keys_are_kept_in_order_and_end_once(store: Store, engine: Engine) -> None:
    first = ApiKey("0123456789ab", "for \N{GRINNING FACE} a\0b", "0123", 1_000)
    second = ApiKey("ba9876543210", "second", "4567", 2_000)
    assert await store.api_keys() == []
    for key in (second, first, first, msgspec.structs.replace(first, name="other")):
        await store.put_api_key(key)
    assert await store.api_keys() == [first, second]
    assert await store.end_api_key(first.id, 3_000)
    assert not await store.end_api_key(first.id, 4_000)
    assert not await store.end_api_key("unknown", 4_000)
    await store.close()
    again = engine.store()
    await again.open()
    assert await again.api_keys() == [msgspec.structs.replace(first, ended_at=3_000), second]
    await again.close()


# --- what runs print


async def test_a_log_is_read_as_it_was_written(store: Store) -> None:
    run, other = new_id(), new_id()
    whole = bytes(range(256)) * 4_000
    for start in range(0, len(whole), 100_000):
        await store.append_log(run, start, whole[start : start + 100_000])
    await store.append_log(other, 0, b"other")
    assert await store.log(run, 0, len(whole) + 1) == whole
    assert await store.log(run, 99_990, 20) == whole[99_990:100_010]
    assert await store.log(run, len(whole), 20) == b""
    assert await store.log(run, len(whole) - 5, 20) == whole[-5:]
    assert await store.log(run, 0, 0) == b""
    assert await store.log(other, 0, 100) == b"other"
    for unknown in (new_id(), "nonsense"):
        assert await store.log(unknown, 0, 100) == b""


async def test_pieces_that_come_again_change_nothing(store: Store) -> None:
    run = new_id()
    await store.append_log(run, 0, b"0123456789")
    await store.append_log(run, 0, b"0123456789")
    await store.append_log(run, 0, b"01234")
    await store.append_log(run, 5, b"56789abcdef")  # of a worker that knew of less
    await store.append_log(run, 0, b"0123456789abc")
    await store.append_log(run, 16, b"")
    assert await store.log(run, 0, 100) == b"0123456789abcdef"
    assert await store.log(run, 11, 3) == b"bcd"


async def test_a_log_ends_at_a_gap_until_it_is_filled(store: Store) -> None:
    run = new_id()
    await store.append_log(run, 0, b"0123")
    await store.append_log(run, 6, b"67")
    assert await store.log(run, 0, 100) == b"0123"
    assert await store.log(run, 4, 100) == b""
    assert await store.log(run, 6, 100) == b"67"
    await store.append_log(run, 4, b"45")
    assert await store.log(run, 0, 100) == b"01234567"


async def test_a_log_is_bounded(store: Store) -> None:
    run = new_id()
    large = b"x" * (PIECE * 5 + 7)
    await store.append_log(run, LOG_BYTES - len(large) + 100, large)
    await store.append_log(run, LOG_BYTES, b"beyond")
    await store.append_log(run, LOG_BYTES + 5, b"beyond")
    assert await store.log(run, LOG_BYTES - len(large) + 100, 2 * LOG_BYTES) == large[:-100]
    assert await store.log(run, LOG_BYTES - 3, 100) == b"xxx"
    assert await store.log(run, LOG_BYTES, 100) == b""
