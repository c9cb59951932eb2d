"""The embedded engine: what it costs on disk, what it does when the machine fails, how it shares its one connection."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure.errors import (
    BadRequest,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreInUse,
    StoreReadOnly,
)
from perdure.records.ids import new_id
from perdure.records.sessions import Limits
from perdure.rules import commands
from perdure.rules.commands import Idempotency, NewTurn, Permit
from perdure.store.sqlite import SqliteStore, checkpoints, database, writer
from perdure.store.sqlite.codec import position
from perdure.store.sqlite.statements import statements

INPUT, OUTPUT, RESPONSE = (b'"' + letter * size + b'"' for letter, size in ((b"i", 198), (b"o", 298), (b"r", 298)))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "data")
    await store.open()
    yield store
    await store.close()


def raw(store: SqliteStore) -> apsw.Connection:
    """Return the writing connection; only while no command is under way."""
    assert store._writer is not None
    return store._writer._database


def unsafe(store: SqliteStore) -> None:
    """Do without flushes, where they are not what is tested."""
    raw(store).execute("PRAGMA synchronous = OFF").fetchall()


async def no_checkpoint(store: SqliteStore) -> None:
    """Wait until none is under way, since two at once are refused."""
    assert store._writer is not None
    await asyncio.to_thread(store._writer._checkpoints._threads.submit(lambda: None).result)
    await asyncio.sleep(0)
    await store._writer._idle.wait()


async def create(store: SqliteStore, **more: Any) -> str:
    session_id = new_id()
    await store.apply(
        commands.CreateSession(
            session_id=session_id,
            environment="demo/development",
            agent="assistant",
            deployment=new_id(),
            host="inline",
            limits=Limits(),
            **more,
        )
    )
    return session_id


def enqueue(session_id: str, said: bytes = INPUT, **more: Any) -> commands.Enqueue:
    turn = NewTurn(new_id(), said)
    return commands.Enqueue(session_id=session_id, turn=turn, permit=Permit("w", new_id()), **more)


async def turn(store: SqliteStore, session_id: str) -> None:
    head = (await store.apply(enqueue(session_id))).head
    assert head is not None
    assert head.active is not None
    worker = {"session_id": session_id, "fence": head.fence, "turn": head.active.number}
    await store.apply(commands.WriteOutput(op=1, content_json=OUTPUT, **worker))
    await store.apply(commands.CompleteTurn(result_json=b"null", response_json=RESPONSE, **worker))


async def turns(store: SqliteStore, session_id: str, count: int) -> None:
    for _ in range(count):
        await turn(store, session_id)


async def whole(store: SqliteStore, session_id: str) -> int:
    """Check that a session's log has no gap and agrees with its head; returns its length."""
    events, after = [], 0
    while True:
        page = await store.events(session_id, after, 1000)
        events += [event.seq for event in page.events]
        after = page.next_after
        if not page.has_more:
            break
    head = await store.head(session_id)
    assert head is not None
    assert events == list(range(1, head.last_seq + 1))
    return len(events)


# --- cost


WHOLE = ("move_", "count_")  # read all there is, when a store is moved or checked
SCHEMA = ("tables", "schema_version", "set_schema_version")  # asked once, when a store is opened


def without_index(plan: list[str]) -> list[str]:
    tables = (step for step in plan if not step.startswith("SCAN (subquery"))
    return [step for step in tables if step.startswith("SCAN") or "TEMP B-TREE" in step]


def test_every_query_goes_by_an_index(tmp_path: Path) -> None:
    from perdure.store.sqlite import schema

    made = database.open_writer(tmp_path / "perdure.db")
    schema.migrate(made)
    scans = {}
    for name, text in statements().items():
        plan = [row[3] for row in made.execute(f"EXPLAIN QUERY PLAN {text}", (None,) * count(text)).fetchall()]
        if name.startswith("insert"):
            assert plan == [], name
        elif not name.startswith(WHOLE) and (found := without_index(plan)):
            scans[name] = found
    made.close()
    # There are few environments and API keys, and who asks for them wants all; `feed` has one row. What has one key is
    # one session an agent.
    assert set(scans) == {"environments", "api_keys", "feed", "list_by_key", *SCHEMA}
    assert scans["list_by_key"] == ["USE TEMP B-TREE FOR ORDER BY"]


def count(text: str) -> int:
    numbered = [int(found) for found in re.findall(r"\?(\d+)", text)]
    return max(numbered, default=text.count("?"))


async def test_a_turn_costs_under_twice_its_payload_however_many_there_are(store: SqliteStore, tmp_path: Path) -> None:
    unsafe(store)
    sessions = [await create(store) for _ in range(10)]

    async def size_after(rounds: int) -> int:
        await asyncio.gather(*[turns(store, session_id, rounds) for session_id in sessions])
        await no_checkpoint(store)
        raw(store).wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        return (tmp_path / "data" / "perdure.db").stat().st_size

    sizes = [await size_after(40) for _ in range(3)]
    payload = 800 * 10 * 40
    growth = [later - earlier for earlier, later in pairwise(sizes)]
    assert all(grown < 2 * payload for grown in growth)
    assert max(growth) < 1.1 * min(growth)


async def test_a_turn_writes_as_many_pages_late_as_early(store: SqliteStore) -> None:
    unsafe(store)
    session_id = await create(store)

    async def pages(count: int) -> int:
        before = raw(store).status(apsw.SQLITE_DBSTATUS_CACHE_WRITE)[0]
        await turns(store, session_id, count)
        return raw(store).status(apsw.SQLITE_DBSTATUS_CACHE_WRITE)[0] - before

    await turns(store, session_id, 50)
    early = await pages(100)
    await turns(store, session_id, 400)
    late = await pages(100)
    assert late < 1.2 * early


async def test_only_so_many_heads_are_in_memory(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "HEADS", 4)
    sessions = [await create(store) for _ in range(20)]
    assert store._writer is not None
    assert len(store._writer._known) == 4
    for session_id in sessions:
        await turn(store, session_id)
        assert await whole(store, session_id) == 6
    assert len(store._writer._known) == 4


async def test_the_log_is_started_afresh_again_and_again(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    unsafe(store)
    monkeypatch.setattr(checkpoints, "PAGES", 100)
    assert store._writer is not None
    lengths: list[int] = []

    def note(connection: apsw.Connection, name: str, pages: int) -> int:
        lengths.append(pages)
        return after_commit(connection, name, pages)

    after_commit = store._writer._checkpoints._after_commit
    raw(store).set_wal_hook(note)
    sessions = [await create(store) for _ in range(5)]
    rounds = 0
    while sum(later < earlier for earlier, later in pairwise(lengths)) < 3:
        await asyncio.gather(*[turn(store, session_id) for session_id in sessions])
        rounds += 1
        assert rounds < 2_000, "the log only grows"
    for session_id in sessions:
        assert await whole(store, session_id) > rounds


async def test_a_checkpoint_that_fails_is_tried_again(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def fail(_: Path) -> None:
        tried.append(1)
        raise apsw.CantOpenError("no side connection")

    monkeypatch.setattr(checkpoints, "PAGES", 1)
    monkeypatch.setattr(checkpoints, "open_writer", fail)
    session_id = await create(store)
    await turns(store, session_id, 10)
    assert len(tried) > 1


async def test_large_commands_are_spread_over_commits_in_order(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "LARGEST_BYTES", 500)
    session_id, other = await create(store), await create(store)
    inputs = [b'"%060d"' % number for number in range(30)]
    batch = [
        enqueue(session_id, said, idempotency=Idempotency(f"{said!r}", said, b"") if index % 2 else None)
        for index, said in enumerate(inputs)
    ]
    mixed = [command for pair in zip(batch, [enqueue(other) for _ in batch], strict=True) for command in pair]
    await asyncio.gather(*map(store.apply, mixed))
    found = await store.turns(session_id, 0, 100)
    assert [turn.input_json for turn in found] == inputs


# --- the machine


async def test_a_full_database_refuses_and_goes_on_when_there_is_room(store: SqliteStore) -> None:
    session_id = await create(store)
    await turns(store, session_id, 3)
    (pages,) = database.one(raw(store), "PRAGMA page_count")
    raw(store).execute(f"PRAGMA max_page_count = {pages + 5}").fetchall()
    with pytest.raises(StoreFull):
        await turns(store, session_id, 100)
    before = await whole(store, session_id)
    answers = await asyncio.gather(
        *[store.apply(enqueue(session_id, b'"' + b"x" * 100_000 + b'"')) for _ in range(5)], return_exceptions=True
    )
    assert all(isinstance(answer, StoreFull) for answer in answers)
    assert await whole(store, session_id) == before
    raw(store).execute("PRAGMA max_page_count = 1000000").fetchall()
    await store.apply(enqueue(session_id))
    assert await whole(store, session_id) > before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("cannot mount a small disk here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


async def test_a_full_disk_refuses_loses_nothing_and_goes_on_when_there_is_room(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 1_000_000)
    store = SqliteStore(small_disk / "data")
    await store.open()
    session_id = await create(store)
    answered = 0
    with suppress(StoreFull):
        while answered < 10_000:
            await turn(store, session_id)
            answered += 1
    lived = [one.status for one in await store.turns(session_id, 0, 1000)]
    assert 0 < answered <= lived.count("completed") < 10_000
    before = await whole(store, session_id)
    ballast.unlink()
    await store.apply(commands.Close(session_id=session_id, control_id=new_id(), issuer=commands.Issuer("user", "a")))
    assert await whole(store, session_id) > before
    await store.close()
    again = SqliteStore(small_disk / "data")
    await again.open()
    assert await whole(again, session_id) > before
    await again.close()


async def test_a_folder_that_cannot_be_written_is_refused(small_disk: Path) -> None:
    first = SqliteStore(small_disk / "data")
    await first.open()
    session_id = await create(first)
    await first.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StoreReadOnly, match="data"):
        await SqliteStore(small_disk / "data").open()
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    await first.open()
    assert await first.head(session_id) is not None
    await first.close()


async def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("mine")
    with pytest.raises(StoreReadOnly):
        await SqliteStore(tmp_path / "data").open()
    assert (tmp_path / "data").read_text() == "mine"


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 8176])
async def test_a_file_that_is_no_database_is_refused_and_kept(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "data" / "perdure.db"
    file.parent.mkdir()
    file.write_bytes(content)
    with pytest.raises(StoreCorrupt, match=r"perdure\.db"):
        await SqliteStore(tmp_path / "data").open()
    assert file.read_bytes() == content


async def test_a_database_of_others_is_refused_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "data" / "perdure.db"
    file.parent.mkdir()
    other = apsw.Connection(str(file))
    other.execute("CREATE TABLE theirs (x)")
    other.close()
    before = file.read_bytes()
    with pytest.raises(StoreError, match="not one of Perdure's"):
        await SqliteStore(tmp_path / "data").open()
    assert file.read_bytes() == before


async def test_a_database_that_vanished_is_not_made_anew(tmp_path: Path) -> None:
    file = tmp_path / "data" / "perdure.db"
    file.parent.mkdir()
    (tmp_path / "data" / "perdure.db-wal").write_bytes(b"log")
    with pytest.raises(StoreCorrupt, match="missing"):
        await SqliteStore(tmp_path / "data").open()
    assert not file.exists()


async def test_a_page_that_was_destroyed_is_an_error_of_those_who_need_it(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "data")
    await store.open()
    session_id, other = await create(store), await create(store)
    await turns(store, session_id, 100)
    (page,) = database.one(
        raw(store),
        "SELECT pageno FROM dbstat WHERE name = 'events' AND pagetype = 'leaf' ORDER BY path LIMIT 1 OFFSET 5",
    )
    await store.close()
    with (tmp_path / "data" / "perdure.db").open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xde\xad" * 2048)
    await store.open()
    with pytest.raises(StoreCorrupt):
        await whole(store, session_id)
    await turn(store, other)
    await store.close()


async def test_an_empty_file_is_a_new_store(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "perdure.db").touch()
    store = SqliteStore(tmp_path / "data")
    await store.open()
    await turn(store, await create(store))
    await store.close()


async def test_a_lock_of_another_program_is_waited_for_without_holding_the_loop(
    store: SqliteStore, tmp_path: Path
) -> None:
    session_id = await create(store)
    other = apsw.Connection(str(tmp_path / "data" / "perdure.db"))
    other.execute("BEGIN IMMEDIATE")
    waiting = asyncio.ensure_future(store.apply(enqueue(session_id)))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not waiting.done()
    other.execute("ROLLBACK")
    await waiting
    other.close()
    assert await whole(store, session_id) == 4


async def test_a_lock_of_another_program_that_stays_is_an_error(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "PATIENCE_MS", 20)
    session_id = await create(store)
    other = apsw.Connection(str(tmp_path / "data" / "perdure.db"))
    other.execute("BEGIN IMMEDIATE")
    answers = await asyncio.gather(
        store.apply(enqueue(session_id)), store.apply(enqueue(session_id)), return_exceptions=True
    )
    assert all(isinstance(answer, StoreInUse) for answer in answers)
    assert database.one(raw(store), "PRAGMA busy_timeout") == (0,)  # the loop itself never waits for a lock
    other.execute("ROLLBACK")
    other.close()
    await store.apply(enqueue(session_id))
    assert await whole(store, session_id) == 4


async def test_an_error_in_a_write_is_the_senders_when_the_value_is_to_blame(store: SqliteStore) -> None:
    session_id = await create(store)
    with pytest.raises(BadRequest, match="cannot be stored"):
        await store.apply(commands.Enqueue(session_id=session_id, turn=NewTurn("\udc80", INPUT)))
    assert await whole(store, session_id) == 1


async def test_a_receipt_that_is_not_bytes_is_refused_rather_than_replayed_as_something_else(
    store: SqliteStore,
) -> None:
    session_id = await create(store)
    tick = commands.Tick(session_id=session_id, hold_id=new_id(), idempotency=Idempotency("k", b"k", b"r"))
    with pytest.raises(BadRequest, match="not bytes"):
        await store.apply(tick)


class BreaksAfterCommit:
    """A connection whose next commit is made and then reported as failed, as a dying disk may do."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        self.broken = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)

    def execute(self, statement: str, *values: Any) -> Any:
        done = self.connection.execute(statement, *values)
        if statement == "COMMIT" and self.broken:
            self.broken = False
            raise apsw.IOError("disk I/O error")
        return done


async def test_after_a_commit_of_unknown_fate_the_store_goes_by_the_disk(store: SqliteStore) -> None:
    session_id = await create(store)
    assert store._writer is not None
    store._writer._database = BreaksAfterCommit(raw(store))  # type: ignore[assignment]
    lost = enqueue(session_id, idempotency=Idempotency("k", b"k", b"r"))
    with pytest.raises(StoreError, match="same idempotency key"):
        await store.apply(lost)
    again = await store.apply(lost)
    assert again.replayed
    assert await whole(store, session_id) == 4
    await store.apply(enqueue(session_id))
    assert await whole(store, session_id) == 5
    assert again.head is not None
    assert again.head.last_turn == 1


# --- the folder


async def test_the_lock_names_its_owner_and_its_address(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "data", address="http://127.0.0.1:1")
    await store.open()
    store.tell_address("http://127.0.0.1:4321")
    owner = json.loads((tmp_path / "data" / "lock").read_text())
    assert (owner["pid"], owner["address"]) == (os.getpid(), "http://127.0.0.1:4321")
    assert owner["since"].endswith("Z")
    with pytest.raises(StoreInUse, match=r"http://127\.0\.0\.1:4321"):
        await SqliteStore(tmp_path / "data").open()
    await store.close()
    assert (tmp_path / "data" / "lock").read_text() == ""


async def test_a_lock_file_of_nonsense_does_not_matter(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "lock").write_text("nonsense")
    store = SqliteStore(tmp_path / "data")
    await store.open()
    await store.close()


async def test_a_store_that_cannot_be_opened_is_not_locked(tmp_path: Path) -> None:
    file = tmp_path / "data" / "perdure.db"
    file.parent.mkdir()
    file.write_bytes(b"not a database at all" * 100)
    store = SqliteStore(tmp_path / "data")
    with pytest.raises(StoreCorrupt):
        await store.open()
    file.unlink()
    await store.open()
    await store.close()


async def test_a_store_that_is_not_open_says_so(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "data")
    with pytest.raises(RuntimeError, match="not open"):
        await create(store)
    with pytest.raises(RuntimeError, match="not open"):
        await store.environments()


def test_positions_keep_sessions_apart() -> None:
    assert position(1, 2**32 - 1) < position(2, 0) < position(2, 1)
