"""`perdure store` and `perdure doctor` against real stores."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dev_parts import PATIENCE, PROJECT, Dev, ended, free_port, log_of
from many_parts import Parts, PostgresServer, parts_on

from perdure.api.events import Event, SnapshotData
from perdure.client.aio import AsyncClient
from perdure.errors import CursorExpired, SessionNotFound, TurnNotFound


def perdure(*arguments: str, code: int = 0) -> str:
    """Run a command and return what it prints: on stdout, or if it is to fail, on stderr."""
    command = [sys.executable, "-m", "perdure.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == code, done
    return done.stderr or done.stdout


def document(*arguments: str, code: int = 0) -> Any:
    return json.loads(perdure(*arguments, "--json", code=code))


# --- retention


async def test_what_is_too_old_goes_by_the_policy_of_its_environment(parts: Parts) -> None:
    server = parts.server()
    parts.worker()
    where = ("--store", parts.store)
    assert "(environment_not_found)" in perdure("store", "retention", "demo/development", *where, code=1)
    async with server.client() as client:
        await client.deploy(PROJECT)
        lines = perdure("store", "retention", "demo/development", *where).splitlines()
        assert lines == ["environment: demo/development", "events: forever", "sessions: forever", "receipts: forever"]
        receipts = [await client.agents["inline"].create_session(text="many 10") for _ in range(2)]
        over, goes_on = [client.session(receipt.session_id) for receipt in receipts]
        for session, receipt in zip((over, goes_on), receipts, strict=True):
            await ended(session, receipt)
        await over.close()
        [_ async for _ in over.iter_events(follow=True)]
        first = await client.events(limit=1)
        assert first.events[0].session_id in (over.id, goes_on.id)
        nothing = document("store", "prune", *where)["environments"]
        assert nothing == [{"environment": "demo/development", "sessions": 0, "turns": 0, "events": 0, "receipts": 0}]
        set_ = document("store", "retention", "demo/development", "--events", "1ms", "--sessions", "1ms", *where)
        assert set_ == {"environment": "demo/development", "events": "1ms", "sessions": "1ms", "receipts": "forever"}
        kept = document("store", "retention", "demo/development", "--receipts", "30d", *where)
        assert (kept["events"], kept["receipts"]) == ("1ms", "30d")
        told = document("store", "prune", "--dry-run", *where)
        assert told["dry_run"] is True
        assert told["environments"][0]["events"] > told["environments"][0]["receipts"]
        assert (await over.get()).status == "closed"
        gone = document("store", "prune", "--env", "demo/development", *where)["environments"][0]
        assert gone["sessions"] == 1
        assert gone["turns"] >= 1
        with pytest.raises(SessionNotFound):
            await over.get()
        assert receipts[1].turn_id is not None
        with pytest.raises(TurnNotFound, match="gone by retention"):
            await goes_on.turn(receipts[1].turn_id).get()
        with pytest.raises(CursorExpired) as expired:
            await goes_on.events(after=0)
        floor = expired.value.details["retained_after"]
        assert [event.seq for event in (await goes_on.events(after=floor)).events] == list(
            range(floor + 1, (await goes_on.get()).last_event_seq + 1)
        )
        with pytest.raises(CursorExpired):
            await client.events(after=first.cursor)
        # Who watches without a cursor, and what comes from now on, are as before.
        watch = goes_on.watch()
        assert isinstance(await anext(watch), SnapshotData)
        after = await goes_on.enqueue(text="count")
        assert (await ended(goes_on, after)).status == "completed"
        async for item in watch:
            if isinstance(item, Event) and item.type == "turn.completed":
                break
        await watch.aclose()
        forever = document("store", "retention", "demo/development", "--events", "forever", *where)
        assert forever["events"] == "forever"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["store", "retention", "demo", "--store", "{}"], "no PROJECT/ENVIRONMENT"),
        (["store", "prune", "--env", "Demo/x", "--store", "{}"], "no PROJECT/ENVIRONMENT"),
        (["store", "retention", "demo/development", "--events", "soon", "--store", "{}"], "(invalid_duration)"),
        (["store", "prune", "--store", "{}"], "There is no store in"),
        (["store", "retention", "demo/development", "--store", "{}"], "There is no store in"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_made(arguments: list[str], said: str, tmp_path: Path) -> None:
    folder = tmp_path / "nothing"
    assert said in perdure(*(word.format(folder) for word in arguments), code=1)
    assert not folder.exists()


def test_an_embedded_store_is_its_owners(tmp_path: Path) -> None:
    with parts_on(str(tmp_path / "data"), tmp_path) as parts:
        parts.embedded()
        told = perdure("store", "prune", "--store", parts.store, code=1)
        assert "(store_in_use)" in told


# --- migrations


def test_a_schema_is_brought_up_to_date_once(postgres: PostgresServer, tmp_path: Path) -> None:
    where = ("--store", postgres.url(postgres.new_database()))
    told = document("store", "migrate", "--dry-run", *where)
    assert (told["dry_run"], told["done"], bool(told["due"])) == (True, [], True)
    assert document("store", "migrate", "--dry-run", *where) == told
    done = document("store", "migrate", *where)
    assert (done["done"], done["due"]) == (told["due"], [])
    assert perdure("store", "migrate", *where).splitlines()[1:] == ["schema: up to date"]
    assert document("store", "migrate", "--finish", *where)["done"] == []


# --- doctor and check


async def test_a_doctor_tells_what_would_be_lost_and_ends_with_it(postgres: PostgresServer, parts: Parts) -> None:
    """The tests' server does not flush."""
    told = document("doctor", "--store", parts.store, code=2)
    assert (told["store"], told["status"]) == (parts.shown, "errors")
    worst = told["findings"][0]
    assert (worst["severity"], worst["what"]) == ("error", "fsync is off.")
    assert "acknowledged" in worst["lost"]
    assert "ALTER SYSTEM" in worst["mend"]
    lines = perdure("doctor", "--store", parts.store, code=2).splitlines()
    assert lines[0] == f"store: {parts.shown}"
    assert lines[1] == "error: fsync is off."
    assert lines[2].startswith("  what it costs: ")
    assert lines[3].startswith("  what to do: ")
    assert lines[-1] == "status: errors"


def test_a_doctor_bears_warnings_unless_he_is_strict(tmp_path: Path) -> None:
    server = PostgresServer(fsync=True)
    try:
        where = server.url(server.new_database())
        told = document("doctor", "--store", where)
        assert told["status"] == "warnings", told
        assert {each["severity"] for each in told["findings"]} <= {"warning", "note"}
        assert document("doctor", "--store", where, "--strict", code=1) == told
    finally:
        server.remove()


def test_a_doctor_who_reaches_nobody_says_so() -> None:
    where = f"postgresql://ada:secret@127.0.0.1:{free_port()}/shop?perdure_patience=100ms"
    told = document("doctor", "--store", where, code=2)
    assert (told["store"].count("secret"), told["findings"][0]["severity"]) == (0, "error")


async def test_a_store_that_was_used_is_found_in_order(parts: Parts) -> None:
    server = parts.server()
    parts.worker()
    async with server.client() as client:
        await client.deploy(PROJECT)
        for agent in ("inline", "process"):
            await began(client, agent, "many 20")
        # While others use it.
        told = document("store", "check", "--store", parts.store)
        assert (told["status"], told["findings"]) == ("good", [])


async def test_what_does_not_fit_together_is_found(parts: Parts, postgres: PostgresServer) -> None:
    server = parts.server()
    parts.worker()
    async with server.client() as client:
        await client.deploy(PROJECT)
        await began(client, "inline", "many 20")
    postgres.sql("DELETE FROM perdure.events WHERE seq = 7", database=parts.shown.rpartition("/")[2])
    told = document("store", "check", "--store", parts.store, code=2)
    assert told["status"] == "errors"
    assert "error: " in perdure("store", "check", "--store", parts.store, code=2)


# --- moving a whole installation


async def test_an_installation_moves_to_postgresql_and_its_sessions_go_on_and_back(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    """A key lets in on both sides, and a session with a process goes on with its memory: its machine is the folder."""
    here, back = tmp_path / "data", tmp_path / "back"
    there = postgres.url(postgres.new_database())
    key = document("api-key", "create", "ci", "--data", str(here))["api_key"]
    with (
        parts_on(str(here), tmp_path) as alone,
        parts_on(there, tmp_path) as many,
        parts_on(str(back), tmp_path) as again,
    ):
        server = alone.embedded()
        async with AsyncClient(server.url, key) as client:
            await client.deploy(PROJECT)
            inline, process = await began(client, "inline", "count"), await began(client, "process", "count")
            held = client.session((await client.agents["inline"].create_session()).session_id)
            hold = await held.interrupt()
            waiting = await held.enqueue(text="count")
            before = await logs_of(client, inline, process, held.id)
            assert "(store_in_use)" in perdure("store", "copy", str(here), there, code=1)
        stopped(server)
        copied = document("store", "copy", str(here), there)
        assert copied["source"] == str(here)
        assert (copied["rows"]["sessions"], copied["rows"]["api_keys"]) == (3, 1)
        assert any("keep it" in text for text in copied["notes"])
        assert "(conflict)" in perdure("store", "copy", str(here), there, code=1)

        server, worker = many.server(), many.worker(data=here)
        async with AsyncClient(server.url, key) as client:
            await check_logs(client, before)
            assert await turns_of(client, inline) == 1
            assert await turns_of(client, process) == 2
            assert hold.hold_id is not None
            await client.session(held.id).resume(hold.hold_id)
            assert (await ended(client.session(held.id), waiting)).status == "completed"
            elsewhere = await began(client, "inline", "count")
            before = await logs_of(client, *before, elsewhere)
        stopped(worker)
        stopped(server)
        assert "api keys: 1" in perdure("store", "copy", there, f"sqlite://{back}").splitlines()

        async with AsyncClient(again.embedded().url, key) as client:
            await check_logs(client, before)
            assert await turns_of(client, elsewhere) == 1


def stopped(part: Dev) -> None:
    part.terminate()
    assert part.ended() == 0


async def logs_of(client: AsyncClient, *session_ids: str) -> dict[str, list[Event]]:
    return {session_id: await log_of(client.session(session_id)) for session_id in session_ids}


async def check_logs(client: AsyncClient, before: dict[str, list[Event]]) -> None:
    """Check that sessions have the events that they had, at least."""
    for session_id, events in before.items():
        assert (await log_of(client.session(session_id)))[: len(events)] == events


async def began(client: AsyncClient, agent: str, text: str) -> str:
    """Return a session that has had a turn."""
    receipt = await client.agents[agent].create_session(text=text)
    await ended(client.session(receipt.session_id), receipt)
    return receipt.session_id


async def turns_of(client: AsyncClient, session_id: str) -> int:
    """Return the how manieth turn a next one is for the live state of its process."""
    session = client.session(session_id)
    turn = await ended(session, await session.enqueue(text="count"))
    return int(turn.result["turns"])
