"""Who may open a store: one process at a time, and none that is older than what is stored."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from store_world import Engine, World

from perdure.errors import NotSupported, StoreInUse, StoreTooNew
from perdure.store import open_store
from perdure.store.sqlite import SqliteStore

# PostgreSQL is there to be shared.
ONE_AT_A_TIME = pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
CHILD = Path(__file__).with_name("crash_child.py")


@ONE_AT_A_TIME
async def test_a_second_opener_is_refused_and_told_who_has_it(engine: Engine) -> None:
    first, second = engine.store(), engine.store()
    await first.open()
    with pytest.raises(StoreInUse, match=str(os.getpid())):
        await second.open()
    world = World(first)  # the first one is not disturbed
    session = await world.create()
    await first.close()
    await second.open()
    assert await second.head(session.id) == session
    await second.close()


@ONE_AT_A_TIME
async def test_another_process_has_it_until_it_is_killed(engine: Engine) -> None:
    child = subprocess.Popen(
        [sys.executable, str(CHILD), engine.address, "store.decide.before", "hang", "1"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    for line in child.stdout:
        if line.strip() == "reached":
            break
    store = engine.store()
    with pytest.raises(StoreInUse, match=str(child.pid)):
        await store.open()
    child.send_signal(signal.SIGKILL)
    child.wait(30)
    child.stdout.close()
    await store.open()
    await store.close()


async def test_a_store_of_a_newer_schema_is_refused_and_left_as_it_is(engine: Engine) -> None:
    store = engine.store()
    await store.open()
    await World(store).create(said="first", start=True)
    await store.close()
    engine.make_newer()
    before = engine.contents()
    for _ in range(2):
        with pytest.raises(StoreTooNew):
            await engine.store().open()
    assert engine.contents() == before


async def test_a_store_can_be_closed_twice_and_opened_again(engine: Engine) -> None:
    store = engine.store()
    await store.close()
    await store.open()
    session = await World(store).create()
    await store.close()
    await store.close()
    await store.open()
    assert await store.head(session.id) == session
    await store.close()


@pytest.mark.parametrize("form", ["{}", "sqlite:///{}"])
async def test_a_store_is_named_by_its_folder(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "with space" / "data"
    store = open_store(form.format(folder))
    assert isinstance(store, SqliteStore)
    await store.open()
    await store.close()
    assert (folder / "perdure.db").exists()


@pytest.mark.parametrize("address", ["mysql://x", "http://x"])
def test_a_store_of_another_kind_says_that_it_is_not_supported(address: str) -> None:
    with pytest.raises(NotSupported, match=address.partition(":")[0]):
        open_store(address)
