"""What `perdure doctor` finds: on a real server whose settings are changed, and from facts that are not to be had."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest
from postgres_server import PostgresServer
from store_world import ENVIRONMENT, World

from perdure.errors import InvalidCursor, StoreError
from perdure.records import instants
from perdure.records.ids import new_id
from perdure.records.sessions import ComputerState
from perdure.store.port import Deployment
from perdure.store.postgres import PostgresStore
from perdure.store.postgres.doctor import Facts, StoreFacts
from perdure.store.tools import doctor
from perdure.store.tools.diagnosis import diagnose
from perdure.store.tools.doctor import examine
from perdure.store.tools.findings import Finding
from perdure.store.tools.migrate import migrate

LONG = 60_000_000


def said(findings: list[Finding]) -> dict[str, str]:
    """Return what was found, with its severity; what is found is told with what to do."""
    assert all(finding.mend or finding.severity == "note" for finding in findings)
    return {finding.what: finding.severity for finding in findings}


def has(findings: list[Finding], severity: str, what: str) -> bool:
    return any(finding.severity == severity and what in finding.what for finding in findings)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer(fsync=False)
    server.sql("ALTER SYSTEM SET fsync = on")
    server.sql("ALTER SYSTEM SET autovacuum = on")
    server.restart()
    yield server
    server.remove()


@pytest.fixture
async def store(server: PostgresServer) -> AsyncIterator[PostgresStore]:
    name = server.new_database()
    store = PostgresStore(server.url(name))
    await store.open()
    yield store
    await store.close()
    server.drop_database(name)


@pytest.fixture
def where(store: PostgresStore, server: PostgresServer) -> str:
    return server.url(str(store._address.conninfo).partition("?")[0].rpartition("/")[2])


def change(server: PostgresServer, setting: str, value: str) -> None:
    server.sql(f"ALTER SYSTEM SET {setting} = '{value}'")
    server.sql("SELECT pg_reload_conf()")


async def found_with(server: PostgresServer, where: str, setting: str, value: str, what: str) -> list[Finding]:
    """Change a setting, wait until the server goes by it, and examine it."""
    change(server, setting, value)
    try:
        for _ in range(200):
            findings = await examine(where)
            if any(what in finding.what for finding in findings):
                return findings
        raise AssertionError(said(findings))
    finally:
        server.sql(f"ALTER SYSTEM RESET {setting}")
        server.sql("SELECT pg_reload_conf()")


async def test_a_server_that_keeps_its_promises_is_told_of_what_it_lacks(where: str) -> None:
    findings = await examine(where)
    assert said(findings) == {
        "No synchronous standby is named.": "warning",
        "The log is not archived (wal_level replica, archive_mode off).": "note",
    }


@pytest.mark.restarts
@pytest.mark.parametrize(
    ("setting", "value", "severity", "what"),
    [
        ("fsync", "off", "error", "fsync is off"),
        ("full_page_writes", "off", "error", "full_page_writes is off"),
        ("synchronous_commit", "off", "warning", "synchronous_commit is off"),
        ("autovacuum", "off", "warning", "autovacuum is off"),
        ("synchronous_standby_names", "other", "warning", "none is connected"),
        ("default_transaction_read_only", "on", "error", "takes no writes"),
    ],
)
async def test_a_setting_that_loses_work_is_found(
    server: PostgresServer, where: str, setting: str, value: str, severity: str, what: str
) -> None:
    findings = await found_with(server, where, setting, value, what)
    assert has(findings, severity, what)
    assert [finding.severity for finding in findings] == sorted(
        (finding.severity for finding in findings), key=("error", "warning", "note").index
    )


async def test_nobody_waits_for_the_standby(server: PostgresServer, where: str) -> None:
    server.sql("ALTER SYSTEM SET synchronous_commit = 'local'")
    try:
        findings = await found_with(server, where, "synchronous_standby_names", "other", "synchronous_commit is local")
    finally:
        server.sql("ALTER SYSTEM RESET synchronous_commit")
        server.sql("SELECT pg_reload_conf()")
    assert has(findings, "warning", "synchronous_commit is local")


async def test_connections_that_are_too_few_are_found(store: PostgresStore, server: PostgresServer, where: str) -> None:
    assert not has(await examine(where), "warning", "connections")
    for number in range(3):
        assert await store.leases.renew(f"w{number}", LONG)
    name = where.partition("?")[0].rpartition("/")[2]
    server.sql(f"ALTER DATABASE {name} CONNECTION LIMIT 20")
    assert has(await examine(where), "warning", "3 live workers and a server may open 28 connections; this user may")


async def test_clocks_that_differ_are_found(where: str) -> None:
    assert not any("clock" in what for what in said(await examine(where)))
    late = await examine(where, clock=lambda: instants.now() - 3_600_000_000)
    assert has(late, "warning", "3600.0 s ahead of this machine's")
    assert has(await examine(where, clock=lambda: instants.now() + 5_000_000), "warning", "5.0 s behind")


async def test_sessions_that_wait_are_found(store: PostgresStore, server: PostgresServer, where: str) -> None:
    world = World(store)
    await world.create(said="x")
    findings = await examine(where)
    assert has(findings, "warning", "No worker is alive, and 1 sessions need one")
    at_home = ComputerState(new_id(), "template", home="far-away")
    await world.create(host="process", computer=at_home, said="x")
    await world.create(said="x", start=True)
    assert await store.leases.renew("alive", LONG, None, "here")
    findings = await examine(where)
    assert has(findings, "warning", "1 sessions have their Computer on machine far-away, where no worker is alive")
    assert has(findings, "warning", "Worker worker-1 has no lease and still owns 1 sessions")
    name = where.partition("?")[0].rpartition("/")[2]
    for seconds, told in ((10, False), (90, True)):
        server.sql("DELETE FROM perdure.leases WHERE worker = 'worker-1'", database=name)
        server.sql(
            "INSERT INTO perdure.leases VALUES ('worker-1', clock_timestamp() - %s * interval '1 s')",
            seconds,
            database=name,
        )
        assert has(await examine(where), "warning", "Worker worker-1") == told
    assert await store.leases.renew("other", LONG, None, "far-away")
    assert not has(await examine(where), "warning", "far-away")


async def test_a_store_that_is_not_migrated_is_found(server: PostgresServer, where: str) -> None:
    name = where.partition("?")[0].rpartition("/")[2]
    server.sql("DELETE FROM perdure.migrations WHERE number = 4", database=name)
    assert has(await examine(where), "warning", "The schema is older than this version: 0004")
    empty = server.new_database()
    assert has(await examine(server.url(empty)), "note", "There is no store in this database yet")
    server.drop_database(empty)


async def test_a_server_that_cannot_be_asked_says_why(server: PostgresServer) -> None:
    with pytest.raises(StoreError):
        await examine(server.url("nothing", perdure_patience="1s"))


async def test_a_transaction_that_stays_open_is_found(
    server: PostgresServer, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perdure.store.postgres.statements import statements

    text = statements()["open_for_long"].replace("60 seconds", "0 seconds")
    monkeypatch.setitem(statements(), "open_for_long", text)
    with psycopg.connect(where) as open_one:
        open_one.execute("SELECT pg_current_xact_id()")
        assert has(await examine(where), "warning", "A transaction of")


# --- after a restore from a dump


async def test_a_feed_that_is_ahead_of_its_server_is_found_and_mended(
    store: PostgresStore, server: PostgresServer, where: str
) -> None:
    world = World(store)
    name = where.partition("?")[0].rpartition("/")[2]
    await store.put_deployment(Deployment(new_id(), ENVIRONMENT, "d", 1, "/source", ()))
    session = await world.create()
    await world.turns(session, 2)
    before = await store.feed(ENVIRONMENT, "", 1000)
    assert await migrate(where, dry_run=True) == []
    # As if the server that was dumped had had a million transactions more.
    server.sql("UPDATE perdure.commits SET mark = mark + (1000000::bigint << 16), xid = xid + 1000000", database=name)
    server.sql("UPDATE perdure.heads SET mark = mark + (1000000::bigint << 16)", database=name)
    assert (await store.feed(ENVIRONMENT, "", 1000)).events == []
    assert has(await examine(where), "error", "restored from a dump")
    assert [step for step in await migrate(where, dry_run=True) if "anew" in step]
    assert [step for step in await migrate(where) if "anew" in step]
    assert not has(await examine(where), "error", "restored from a dump")
    await world.turns(session, 1)
    after = await store.feed(ENVIRONMENT, "", 1000)
    assert after.events[: len(before.events)] == before.events
    assert [event.seq for event in after.events] == [seq for seq, _ in await world.log(session)]
    with pytest.raises(InvalidCursor):
        await store.feed(ENVIRONMENT, before.cursor, 10)


# --- what cannot be had here


GOOD = Facts(
    version=150_004,
    fsync=True,
    full_page_writes=True,
    synchronous_commit="on",
    standby_names="other",
    standbys=1,
    in_recovery=False,
    read_only=False,
    wal_level="replica",
    archive_mode="on",
    autovacuum=True,
    limit=100,
    a_process=7,
    store=StoreFacts(missing=[], workers=2),
)


def judged(**changes: object) -> list[Finding]:
    import copy

    facts = copy.copy(GOOD)
    for name, value in changes.items():
        setattr(facts, name, value)
    return list(diagnose(facts))


def test_a_server_of_which_nothing_is_to_be_said() -> None:
    assert judged() == []


@pytest.mark.parametrize(
    ("changes", "severity", "what"),
    [
        ({"version": 140_010}, "error", "PostgreSQL 14; Perdure needs 15"),
        ({"in_recovery": True}, "error", "a standby that takes no writes"),
        ({"direct": False, "hears": False}, "warning", "a pooler in between"),
        ({"free": 0.01}, "error", "almost full: 1.0%"),
        ({"wal_level": "minimal"}, "note", "not archived"),
        ({"store": StoreFacts(missing=[(2, "post")], workers=1)}, "note", "what older versions need: 0002"),
    ],
)
def test_facts_mean_something(changes: dict[str, object], severity: str, what: str) -> None:
    findings = judged(**changes)
    assert [has(findings, severity, what), len(findings)] == [True, 1]


# --- data folders


async def test_a_data_folder_is_examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await examine(str(tmp_path)) == []
    assert said(await examine(f"sqlite://{tmp_path}/none")) == {f"There is no data folder {tmp_path}/none yet.": "note"}
    monkeypatch.setattr(doctor, "_file_system", lambda _: "nfs4")
    assert has(await examine(str(tmp_path)), "error", "network file system (nfs4)")
    monkeypatch.undo()
    monkeypatch.setattr(doctor, "FULL", 1.1)
    assert has(await examine(str(tmp_path)), "error", "almost full")


async def test_a_data_folder_is_migrated(tmp_path: Path) -> None:
    from perdure.store.sqlite import schema

    newest = [f"{number:04d}" for number, _ in schema.migrations()]
    assert await migrate(str(tmp_path), dry_run=True) == newest
    assert not list(tmp_path.iterdir())
    assert await migrate(str(tmp_path)) == newest
    assert await migrate(str(tmp_path)) == []
