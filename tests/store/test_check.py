"""What `perdure store check` finds: nothing in a store that is well, and each thing that is put wrong on purpose."""

from __future__ import annotations

import apsw
import pytest
from store_engines import PostgresEngine, SqliteEngine
from store_life import Life
from store_world import ENVIRONMENT, Clock, Engine, World

from perdure.errors import BadRequest, StoreError
from perdure.rules.retention import Trim
from perdure.store.port import Retention
from perdure.store.tools.check import check
from perdure.store.tools.findings import Finding
from perdure.store.tools.prune import prune

DAY = 86_400_000_000


def run(engine: Engine, statement: str) -> None:
    """Put something wrong, behind the store's back."""
    if isinstance(engine, SqliteEngine):
        database = apsw.Connection(f"{engine.address}/perdure.db")
        database.execute(statement.replace("perdure.", ""))
        assert database.changes() > 0
        database.close()
    else:
        assert isinstance(engine, PostgresEngine)
        engine.server.sql(statement, database=engine.database)


def said(findings: list[Finding]) -> str:
    return "\n".join(f"{finding.severity}: {finding.what}" for finding in findings)


async def test_a_store_that_is_well(world: World, engine: Engine, clock: Clock) -> None:
    life = Life()
    await life.live(world)
    told: list[int] = []
    # Beside the store that is open.
    findings = await check(engine.address, told.append)
    assert [finding.severity for finding in findings] == ["warning"]
    assert "7 sessions are of deployment" in said(findings)  # the tests' sessions have one that was never made
    assert told[-1] == 7


async def test_a_store_that_was_swept_is_well(world: World, engine: Engine, clock: Clock) -> None:
    life = Life()
    await life.live(world)
    await world.store.set_retention(ENVIRONMENT, Retention(events=DAY, sessions=DAY, receipts=DAY))
    clock.now += 2 * DAY
    await world.turns(await world.create(), 2)
    await prune(world.store, clock.now, rows=37)
    assert "error" not in said(await check(engine.address))
    # Also when it was broken off in the middle.
    clock.now += 2 * DAY
    await world.apply(Trim(session_id=life.waiting.id, upto=10**6))
    await world.store.prune(ENVIRONMENT, clock.now, 5)
    assert "error" not in said(await check(engine.address))


WRONG: dict[str, tuple[str, str]] = {
    "a gap": (
        "DELETE FROM perdure.events WHERE {event} = 4",
        "its log has a gap after event 3",
    ),
    "a cut log": (
        "DELETE FROM perdure.events WHERE {event} >= 9",
        "its log ends with event 8, its head with",
    ),
    "a beheaded log": ("DELETE FROM perdure.events WHERE {event} = 1", "its log begins with event 2"),
    "a turn that never ends": (
        "UPDATE perdure.turns SET status = {running} WHERE {turn} = 2",
        "are running, and should be",
    ),
    "a turn without its end": ("UPDATE perdure.turns SET ended_seq = NULL WHERE {turn} = 1", "None as the event of"),
    "a turn that is missing": ("DELETE FROM perdure.turns WHERE {turn} = 2", "are not numbered up to"),
    "a run": ("UPDATE perdure.runs SET ended_at = 1", "the runs [] have not ended, and should be [1]"),
    "a hold": ("UPDATE perdure.holds SET released_at = 1", "the holds [] are open, and should be"),
    "a question": ("UPDATE perdure.asks SET status = 'cancelled'", "the questions [] are open"),
    "a message": ("UPDATE perdure.messages SET status = 'rejected'", "the messages [] are open"),
    "an index": ("UPDATE perdure.sessions SET wake_at = 5 WHERE key = 'closed'", "its index says"),
    "an owner": ("UPDATE perdure.sessions SET owned = {false} WHERE key = 'running'", "its index says"),
    "a head": ("UPDATE perdure.heads SET body = {bytes}", "cannot be read"),
    "a receipt": ("UPDATE perdure.idempotency SET receipt = {bytes}", "The receipt"),
    "a deployment": ("DELETE FROM perdure.deployments", "The current deployment"),
    "a source": ("UPDATE perdure.archives SET digest = 'other'", "is of no deployment"),
    "the feed": ("DELETE FROM perdure.commits WHERE {commit}", " has event 6 of session"),
    "the end of the feed": ("DELETE FROM perdure.commits WHERE {last_commit}", "The feed ends with event"),
    "orphans": ("DELETE FROM perdure.heads", "of session"),
}
SQLITE = {
    "event": "(pos & 4294967295)",
    "turn": "(pos & 4294967295)",
    "running": "1",
    "false": "0",
    "bytes": "CAST('{{' AS BLOB)",
    "commit": "substr(hex(ranges), 17, 16) = '0000000000000005'",
    "last_commit": "number > (SELECT max(number) - 3 FROM commits)",
}
POSTGRES = {
    "event": "seq",
    "turn": "number",
    "running": "'running'",
    "false": "false",
    "bytes": "'{{'::bytea",
    "commit": "firsts[1] = 5",
    "last_commit": "mark >= (SELECT mark FROM perdure.commits ORDER BY mark DESC OFFSET 2 LIMIT 1)",
}


@pytest.mark.parametrize("what", WRONG)
async def test_what_is_put_wrong_is_found(world: World, engine: Engine, what: str) -> None:
    life = Life()
    await life.live(world)
    await world.store.close()
    statement, told = WRONG[what]
    words = SQLITE if isinstance(engine, SqliteEngine) else POSTGRES
    run(engine, statement.format(**words).replace("{{", "{"))
    findings = await check(engine.address)
    if what == "orphans" and isinstance(engine, SqliteEngine):
        told = "of sessions that are not there"
    assert told in said(findings), said(findings)
    assert all(finding.mend or finding.severity == "note" for finding in findings)


async def test_only_so_many_are_told(world: World, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(6):
        await world.create()
    await world.store.close()
    run(engine, "DELETE FROM perdure.events")
    monkeypatch.setattr("perdure.store.tools.check.MOST", 3)
    findings = await check(engine.address)
    assert len(findings) == 4
    assert "And 4 more" in said(findings)


async def test_a_store_of_another_version_is_not_checked(world: World, engine: Engine) -> None:
    await world.store.close()
    engine.make_newer()
    before = engine.contents()
    if isinstance(engine, SqliteEngine):
        with pytest.raises(StoreError):
            await check(engine.address)
    assert engine.contents() == before
    with pytest.raises(BadRequest):
        await check("/nowhere/at/all")
