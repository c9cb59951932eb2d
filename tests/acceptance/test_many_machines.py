"""Servers and workers that share a PostgreSQL: who does the work is nobody's business, whoever stops or dies."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
from dev_parts import PROJECT, belonging, ended, log_of, texts, types_of, until
from many_parts import Parts

from perdure.api.events import Event, LiveData
from perdure.api.sessions import Receipt
from perdure.client.aio import AsyncClient, AsyncSessionHandle
from perdure.errors import AuthenticationRequired

SESSIONS = 24
TAKEN_OVER_SECONDS = 20.0


async def created(client: AsyncClient, agent: str, text: str) -> tuple[AsyncSessionHandle, Receipt]:
    receipt = await client.agents[agent].create_session(text=text)
    return client.session(receipt.session_id), receipt


async def watched(session: AsyncSessionHandle) -> list[Event]:
    """Follow a session to its end and return all its events."""
    async with aclosing(session.watch(after=0)) as items:
        return [item async for item in items if isinstance(item, Event)]


def in_order(events: list[Event]) -> list[int]:
    seqs = [event.seq for event in events]
    assert seqs == list(range(1, len(seqs) + 1))
    return seqs


async def test_sessions_begin_on_one_server_are_watched_on_another_and_run_by_any_worker(parts: Parts) -> None:
    """The workers have never seen the code: it was deployed to a server."""
    one, two = parts.server(), parts.server()
    workers = [parts.worker(), parts.worker()]
    async with one.client() as here, two.client() as there:
        await here.deploy(PROJECT)
        made = [await created(here, "inline", "pid") for _ in range(SESSIONS)]
        watching = [asyncio.create_task(watched(there.session(session.id))) for session, _ in made]
        # What a worker knows from its last turn, the next one has, too, whichever server admits it.
        ran = [await ended(there.session(session.id), receipt) for session, receipt in made]
        assert {turn.status for turn in ran} == {"completed"}
        assert {turn.result for turn in ran} == {worker.pid for worker in workers}
        for number, (session, _) in enumerate(made):
            through = there if number % 2 else here
            await through.session(session.id).enqueue(text="count")
            await through.session(session.id).close()
        for events in await asyncio.gather(*watching):
            in_order(events)
            assert [event.type for event in events].count("turn.completed") == 2


async def test_an_agent_with_a_process_runs_where_its_worker_is(parts: Parts, gate: Path) -> None:
    one, two, worker = parts.server(), parts.server(), parts.worker()
    async with one.client() as here, two.client() as there:
        await here.deploy(PROJECT)
        session, receipt = await created(here, "process", f"wait {gate}")
        elsewhere = there.session(session.id)
        await until(elsewhere, "turn.output")
        assert await worker.guest(elsewhere)
        assert not list(belonging(one.data / "computers"))
        gate.touch()
        assert (await ended(elsewhere, receipt)).status == "completed"


async def test_after_kill_9_the_other_worker_goes_on(parts: Parts, gate: Path) -> None:
    server = parts.server()
    workers = {worker.pid: worker for worker in (parts.worker(), parts.worker())}
    async with server.client() as client:
        await client.deploy(PROJECT)
        made = [await created(client, "inline", "pid") for _ in range(SESSIONS)]
        ran = {session.id: (await ended(session, receipt)).result for session, receipt in made}
        assert set(ran.values()) == set(workers)
        dead = ran[made[0][0].id]
        stuck = [await session.enqueue(text=f"wait {gate}") for session, _ in made]
        behind = [await session.enqueue(text="pid") for session, _ in made]
        await asyncio.gather(*(until(session, "turn.output") for session, _ in made))
        killed = time.monotonic()
        workers[dead].kill()
        for (session, _), stopped, after in zip(made, stuck, behind, strict=True):
            if ran[session.id] == dead:
                turn = await ended(session, stopped)
                assert (turn.status, turn.reason) == ("interrupted", "process_lost")
                assert (await ended(session, after)).result != dead
        assert time.monotonic() - killed < TAKEN_OVER_SECONDS
        gate.touch()
        for (session, _), went_on, after in zip(made, stuck, behind, strict=True):
            if ran[session.id] != dead:
                assert (await ended(session, went_on)).status == "completed"
                assert (await ended(session, after)).result == ran[session.id]
        for session, _ in made:
            in_order(await log_of(session))
            kinds = await types_of(session, "turn.")
            assert kinds.count("turn.queued") == kinds.count("turn.running") == 3


async def test_a_worker_that_is_told_to_stop_hands_its_sessions_over(parts: Parts, gate: Path) -> None:
    """With a lease of an hour nobody waits for it to run out."""
    server = parts.server()
    first = parts.worker(lease="1h")
    async with server.client() as client:
        await client.deploy(PROJECT)
        made = [await created(client, "inline", f"wait {gate}") for _ in range(SESSIONS)]
        behind = [await session.enqueue(text="pid") for session, _ in made]
        await asyncio.gather(*(until(session, "turn.output") for session, _ in made))
        second = parts.worker(lease="1h")
        first.terminate()
        await asyncio.to_thread(first.hear, "stopping")
        gate.touch()
        for (session, receipt), after in zip(made, behind, strict=True):
            assert (await ended(session, receipt)).status == "completed"
            assert (await ended(session, after)).result == second.pid
            events = await log_of(session)
            kinds = [event.type for event in events]
            assert (kinds.count("turn.running"), kinds.count("turn.completed")) == (2, 2)
            assert texts(events, receipt.turn_id) == ["waiting", "went on"]
        assert await asyncio.to_thread(first.ended) == 0


async def test_a_process_is_adopted_by_another_worker_of_its_machine_and_by_no_other(parts: Parts, gate: Path) -> None:
    server = parts.server()
    first = parts.worker()
    async with server.client() as client:
        await client.deploy(PROJECT)
        session, receipt = await created(client, "process", f"wait {gate}")
        await until(session, "turn.output")
        guest = await first.guest(session)
        elsewhere = parts.worker()
        first.kill()
        inline, second = await created(client, "inline", "pid")
        assert (await ended(inline, second)).result == elsewhere.pid
        neighbour = parts.worker(data=first.data)
        gate.touch()
        turn = await ended(session, receipt)
        assert (turn.status, turn.result["started_as"]) == ("completed", "initial")
        after = await session.enqueue(text="pid")
        assert (await ended(session, after)).result == guest
        assert not list(belonging(elsewhere.data / "computers"))
        neighbour.terminate()
        assert await asyncio.to_thread(neighbour.ended) == 0


async def test_servers_are_restarted_one_after_the_other_and_no_watcher_sees_it(parts: Parts, gate: Path) -> None:
    """Each watcher keeps to one address, as behind a load balancer, and asks again there."""
    servers = [parts.server(), parts.server()]
    parts.worker()
    async with servers[0].client() as here, servers[1].client() as there:
        await here.deploy(PROJECT)
        session, receipt = await created(here, "inline", f"stream {gate}")
        watching = [asyncio.create_task(watched(client.session(session.id))) for client in (here, there)]
        for server, client in zip(servers, (there, here), strict=True):
            seen = (await client.session(session.id).get()).last_event_seq
            await until(client.session(session.id), "turn.output", after=seen, count=5)
            server.terminate()
            assert await asyncio.to_thread(server.ended) == 0
            await asyncio.to_thread(server.start)
        gate.touch()
        turn = await ended(session, receipt)
        await session.close()
        for events in await asyncio.gather(*watching):
            in_order(events)
            assert texts(events, turn.id) == [str(number) for number in range(1, turn.result + 1)]


async def test_servers_that_work_are_enough_and_follow_each_other(parts: Parts) -> None:
    one, two = parts.server(works=True), parts.server(works=True)
    async with one.client() as here, two.client() as there:
        await here.deploy(PROJECT)
        session, receipt = await created(here, "inline", "pid")
        first = (await ended(there.session(session.id), receipt)).result
        assert first in (one.pid, two.pid)
        dead, left, client = (one, two, there) if first == one.pid else (two, one, here)
        dead.kill()
        after = await client.session(session.id).enqueue(text="pid")
        assert (await ended(client.session(session.id), after)).result == left.pid
        in_order(await log_of(client.session(session.id)))


async def test_a_cursor_of_one_server_is_one_of_any(parts: Parts) -> None:
    one, two = parts.server(), parts.server()
    parts.worker()
    async with one.client() as here, two.client() as there:
        await here.deploy(PROJECT)
        session, receipt = await created(here, "inline", "many 50")
        await ended(session, receipt)
        seen: list[Event] = []
        async with aclosing(session.watch(after=0)) as items:
            async for item in items:
                if isinstance(item, Event):
                    seen.append(item)
                    if len(seen) == 20:
                        break
        await session.close()
        async with aclosing(there.session(session.id).watch(after=seen[-1].seq)) as items:
            seen += [item async for item in items if isinstance(item, Event)]
        assert seen == await log_of(session)


async def test_a_log_is_read_where_it_was_not_written(parts: Parts) -> None:
    server = parts.server()
    parts.worker()
    async with server.client() as client:
        await client.deploy(PROJECT)
        for agent in ("inline", "process"):
            session, receipt = await created(client, agent, f"shout {agent}")
            run_id = (await ended(session, receipt)).run_id
            assert run_id is not None
            assert not (server.data / "runs" / f"{run_id}.log").exists()
            assert f"{agent} on stdout" in await whole_log(session, run_id)


async def whole_log(session: AsyncSessionHandle, run_id: str) -> str:
    """Return a run's log as soon as there is something in it."""
    text, offset = "", 0
    async with asyncio.timeout(20):
        while "went wrong" not in text:
            page = await session.logs(run_id, offset=offset)
            text, offset = text + page.data, page.next_offset
    return text


async def test_live_slots_reach_a_watcher_elsewhere_soon(parts: Parts, gate: Path) -> None:
    one, two = parts.server(), parts.server()
    parts.worker()
    async with one.client() as here, two.client() as there:
        await here.deploy(PROJECT)
        session, receipt = await created(here, "inline", f"ticks {gate}")
        delays = [delay async for delay in live_delays(there.session(session.id), 60)]
        gate.touch()
        assert (await ended(session, receipt)).status == "completed"
    p50, worst = statistics.median(delays), max(delays)
    print(f"live slots on another server: p50 {p50 * 1000:.1f} ms, worst of {len(delays)} {worst * 1000:.1f} ms")
    assert p50 < 0.5


async def live_delays(session: AsyncSessionHandle, count: int) -> AsyncIterator[float]:
    """Yield by how many seconds the times that are written into a live slot are old when they are seen."""
    async with asyncio.timeout(30), aclosing(session.watch(after=0)) as items:
        async for item in items:
            if isinstance(item, LiveData) and item.content:
                yield time.time() - float(item.content[0].text)  # type: ignore[union-attr]
                count -= 1
                if not count:
                    return


async def test_the_feed_is_the_same_on_every_server_and_goes_on_over_a_restart(parts: Parts) -> None:
    one, two = parts.server(), parts.server()
    parts.worker()
    async with one.client() as here, two.client() as there:
        await here.deploy(PROJECT)
        following = [asyncio.create_task(followed(client, SESSIONS)) for client in (here, there)]
        made = [await created(client, "inline", "many 5") for client in (here, there) for _ in range(SESSIONS // 2)]
        one.terminate()
        for session, receipt in made:
            await ended(there.session(session.id), receipt)
        assert await asyncio.to_thread(one.ended) == 0
        await asyncio.to_thread(one.start)
        for session, _ in made:
            await there.session(session.id).close()
        first, second = await asyncio.gather(*following)
        assert first == second
        assert sorted((event.session_id, event.seq) for event in first) == [
            (event.session_id, event.seq)
            for session, _ in sorted(made, key=lambda each: each[0].id)
            for event in await log_of(there.session(session.id))
        ]
        listed: list[Event] = []
        after: str | None = None
        while True:
            page = await here.events(after=after, limit=7)
            listed, after = listed + page.events, page.cursor
            if not page.has_more:
                break
        assert listed == first


async def followed(client: AsyncClient, sessions: int) -> list[Event]:
    """Follow the feed until so many sessions have ended, with all that ran of them, and return its events."""
    events: list[Event] = []
    async with asyncio.timeout(60), aclosing(client.follow_events()) as pages:
        async for page in pages:
            events += page.events
            kinds = Counter(event.type for event in events)
            over = kinds["session.process_started"] == kinds["session.process_stopped"]
            if over and kinds["session.closed"] == sessions:
                break
    return events


async def test_keys_let_in_and_are_felt_by_every_server_within_a_second(parts: Parts, tmp_path: Path) -> None:
    assert "(authentication_required)" in await asyncio.to_thread(refused, parts, "--host", "0.0.0.0")
    made = json.loads(cli("api-key", "create", "ci", "--store", parts.store, "--json"))
    one, two = parts.server("--host", "0.0.0.0"), parts.server("--host", "0.0.0.0")
    for server in (one, two):
        async with AsyncClient(server.url, made["api_key"]) as client:
            assert (await client.server()).mode == "server"
        async with AsyncClient(server.url) as client:
            with pytest.raises(AuthenticationRequired):
                await client.server()
    other = json.loads(cli("api-key", "create", "laptop", "--store", parts.store, "--json"))
    listed = cli("api-key", "list", "--store", parts.store)
    assert [line.split("\t")[1] for line in listed.splitlines()] == ["ci", "laptop"]
    assert made["api_key"] not in listed
    for server in (one, two):
        await let_in(server.url, other["api_key"])
    cli("api-key", "revoke", made["id"], "--store", parts.store)
    revoked = time.monotonic()
    for server in (one, two):
        await shut_out(server.url, made["api_key"])
    assert time.monotonic() - revoked < 3
    await let_in(one.url, other["api_key"])


def refused(parts: Parts, *options: str) -> str:
    """Return what a server says that does not start."""
    ended = subprocess.run(
        [sys.executable, "-m", "perdure.cli.main", "serve", "--store", parts.store, "--port", "0", *options],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        cwd=parts.folder,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    return ended.stderr


def cli(*arguments: str) -> str:
    """Run a command and return what it prints."""
    command = [sys.executable, "-m", "perdure.cli.main", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


async def let_in(url: str, key: str) -> None:
    """Wait until a server lets a key in."""
    async with asyncio.timeout(5), AsyncClient(url, key) as client:
        while True:
            try:
                await client.server()
            except AuthenticationRequired:
                continue
            return


async def shut_out(url: str, key: str) -> None:
    """Wait until a server lets a key in no more."""
    async with asyncio.timeout(5), AsyncClient(url, key) as client:
        try:
            while True:
                await client.server()
        except AuthenticationRequired:
            return
