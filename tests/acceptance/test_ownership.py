"""Engines that share a PostgreSQL, in one process: what each hears of the others, and what a lost lease means."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from dev_parts import PROJECT
from many_parts import PostgresServer, database_server

from perdure.deploy.archive import pack
from perdure.engine.engine import Settings
from perdure.engine.service import EventItem, LiveItem, Scope, WatchItem
from perdure.errors import StoreError
from perdure.records.sessions import Issuer, Turn
from perdure.rules import commands as c
from perdure.server.node import Node, open_node

SCOPE = Scope("demo", "development", Issuer("user", "ada"))
LEASE = 1.0
MINUTE = 60_000_000

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with database_server() as server:
        yield server


class Installation:
    """Nodes on one database."""

    def __init__(self, server: PostgresServer, database: str, folder: Path, **options: str) -> None:
        self.server = server
        self.database = database
        self.url = server.url(database, **options)
        self.folder = folder
        self.stack = AsyncExitStack()
        self._nodes = 0

    @asynccontextmanager
    async def node(self, *, works: bool = True, data: Path | None = None) -> AsyncIterator[Node]:
        self._nodes += 1
        settings = Settings(lease=LEASE, drain=5.0)
        place = data or self.folder / f"machine{self._nodes}"
        async with open_node(place, store=self.url, works=works, settings=settings) as node:
            yield node

    def sql(self, statement: str) -> list[tuple[object, ...]]:
        return self.server.sql(statement, database=self.database)


@pytest.fixture(params=["hints", "no hints"])
async def both(request: pytest.FixtureRequest, postgres: PostgresServer, tmp_path: Path) -> AsyncIterator[Installation]:
    """Whatever needs no hints must not change when there are none."""
    options = {} if request.param == "hints" else {"perdure_hints": "off"}
    database = postgres.new_database()
    yield Installation(postgres, database, tmp_path, **options)
    postgres.drop_database(database)


@pytest.fixture
async def hinted(postgres: PostgresServer, tmp_path: Path) -> AsyncIterator[Installation]:
    database = postgres.new_database()
    yield Installation(postgres, database, tmp_path)
    postgres.drop_database(database)


async def deployed(node: Node) -> None:
    await node.service.deploy(SCOPE, pack(PROJECT).data)


async def begun(node: Node, agent: str, text: str) -> tuple[str, str]:
    made = msgspec.json.decode(await node.service.create_session(SCOPE, agent, input=text))
    return made["session_id"], made["turn_id"]


async def ended(node: Node, session: str, turn: str) -> Turn:
    found = await node.service.wait_turn(SCOPE, session, turn, MINUTE)
    assert found.status not in ("queued", "running")
    return found


async def seen(node: Node, session: str, is_it: Callable[[WatchItem], bool]) -> None:
    """Watch a session until something is seen."""
    async with aclosing(node.service.watch(SCOPE, session, 0)) as items:
        async for item in items:
            if is_it(item):
                return


def said(text: str) -> Callable[[WatchItem], bool]:
    return lambda item: isinstance(item, EventItem) and f'"{text}"'.encode() in bytes(item.event.data)


async def until(condition: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(30):
        while not (found := await condition()):
            await asyncio.sleep(0.02)
    return found


async def types_of(node: Node, session: str) -> list[str]:
    page = await node.service.events(SCOPE, session, limit=1000)
    assert [event.seq for event in page.events] == list(range(1, len(page.events) + 1))
    return [event.type for event in page.events]


async def test_what_others_say_reaches_a_running_turn(both: Installation, gate: Path) -> None:
    async with both.node(works=False) as here, both.node():
        await deployed(here)
        session, turn = await begun(here, "inline", "ask")
        [ask] = await until(lambda: here.service.asks(SCOPE, session))
        await here.service.answer_ask(SCOPE, session, ask.id, "Ada", "r1")
        answered = await ended(here, session, turn)
        assert msgspec.json.decode(answered.result_json or b"")["value"] == "Ada"
        session, turn = await begun(here, "inline", "steered 2")
        await seen(here, session, said("listening"))
        for text in ("one", "two"):
            await here.service.send_to_turn(SCOPE, session, turn, text)
        assert (await ended(here, session, turn)).result_json == b'["one","two"]'
        session, turn = await begun(here, "inline", f"deaf {gate}")
        await seen(here, session, said("waiting"))
        await here.service.interrupt(SCOPE, session)
        await until(lambda: asyncio.to_thread(Path(f"{gate}.heard").exists))
        assert (await ended(here, session, turn)).status == "interrupted"
        gate.touch()


async def test_live_slots_of_a_worker_elsewhere_are_seen(both: Installation, gate: Path) -> None:
    async with both.node(works=False) as here, both.node():
        await deployed(here)
        session, turn = await begun(here, "inline", f"live {gate}")
        shown: dict[str, object] = {}
        async with aclosing(here.service.watch(SCOPE, session)) as items:
            async for item in items:
                if isinstance(item, LiveItem) and item.content is None:
                    shown.clear()
                elif isinstance(item, LiveItem) and item.content is not None:
                    shown[item.slot] = msgspec.json.decode(item.content.content_json)
                if len(shown) == 2:
                    break
        assert "thinking" in str(shown)
        gate.touch()
        assert (await ended(here, session, turn)).status == "completed"


async def test_a_graceful_stop_hands_sessions_over(both: Installation, gate: Path) -> None:
    async with both.node(works=False) as here, AsyncExitStack() as first:
        await deployed(here)
        one = await first.enter_async_context(both.node())
        sessions = [await begun(here, "inline", "count") for _ in range(5)]
        for session, turn in sessions:
            assert (await ended(here, session, turn)).status == "completed"
        busy, turn = await begun(here, "inline", f"wait {gate}")
        await seen(here, busy, said("waiting"))
        more = msgspec.json.decode(await here.service.enqueue(SCOPE, busy, "count"))
        async with both.node():
            leaving = asyncio.create_task(first.aclose())
            await until(lambda: asyncio.sleep(0, one.engine.draining))
            for session, _ in sessions:
                again = msgspec.json.decode(await here.service.enqueue(SCOPE, session, "count"))
                assert (await ended(here, session, again["turn_id"])).status == "completed"
            assert not leaving.done(), "the busy turn is waited for, and nobody else has to"
            gate.touch()
            assert (await ended(here, busy, turn)).status == "completed"
            assert (await ended(here, busy, more["turn_id"])).status == "completed"
            await leaving
        assert "session.process_lost" not in await types_of(here, busy)


async def test_a_worker_whose_lease_has_run_out_stops_its_handlers_and_begins_again(
    hinted: Installation, gate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with hinted.node(works=False) as here, hinted.node() as worker:
        await deployed(here)
        session, turn = await begun(here, "inline", f"deaf {gate}")
        await seen(here, session, said("waiting"))
        before = worker.engine.worker_id
        hinted.sql("UPDATE perdure.leases SET expires_at = now() - interval '1 s'")
        await until(lambda: asyncio.to_thread(Path(f"{gate}.heard").exists))
        gate.touch()
        assert (await ended(here, session, turn)).status == "interrupted"
        assert worker.engine.worker_id != before
        assert "has lost its lease" in caplog.text
        again = msgspec.json.decode(await here.service.enqueue(SCOPE, session, "count"))
        assert (await ended(here, session, again["turn_id"])).status == "completed"
        assert (await types_of(here, session)).count("session.process_lost") == 1


async def test_a_worker_that_is_cut_off_writes_nothing_more(hinted: Installation, gate: Path) -> None:
    """Its lease cannot be renewed; another takes over; what the first still says is refused, and its handler stops."""
    async with hinted.node(works=False) as here, hinted.node() as one:
        await deployed(here)
        session, turn = await begun(here, "inline", f"deaf {gate}")
        await seen(here, session, said("waiting"))
        head = await here.store.head(session)
        assert head is not None
        cut_off = asyncio.Event()

        async def renew(*_: Any) -> bool:
            await cut_off.wait()
            raise StoreError("cut off")

        one.engine.owner._leases.renew = renew  # type: ignore[attr-defined]
        async with hinted.node():
            await until(lambda: asyncio.to_thread(Path(f"{gate}.heard").exists))
            gate.touch()
            assert (await ended(here, session, turn)).status == "interrupted"
            again = msgspec.json.decode(await here.service.enqueue(SCOPE, session, "count"))
            assert (await ended(here, session, again["turn_id"])).status == "completed"
            write = c.WriteOutput(session_id=session, fence=head.fence, turn=1, op=9, content_json=b'[{"text":"late"}]')
            with pytest.raises(Exception, match="owner"):
                await one.store.apply(write)
            assert one.engine.awake == 0
            cut_off.set()


async def test_a_session_that_nobody_drives_is_closed_in_time(both: Installation) -> None:
    async with both.node(works=False) as here, both.node(), both.node():
        await deployed(here)
        made = msgspec.json.decode(await here.service.create_session(SCOPE, "inline_fleeting"))

        async def status() -> bool:
            view = await here.service.session(SCOPE, made["session_id"])
            return view.head.status == "closed"

        await until(status)
        assert (await types_of(here, made["session_id"])).count("session.closed") == 1


async def test_a_computer_stays_at_home(hinted: Installation, tmp_path: Path) -> None:
    """A session's files are on one machine: workers of others leave it alone, one on the same goes on with it."""
    home = tmp_path / "home"
    async with hinted.node(works=False) as here:
        await deployed(here)
        async with hinted.node(data=home):
            session, turn = await begun(here, "process", "pid")
            first = (await ended(here, session, turn)).result_json
        async with hinted.node() as other:
            again = msgspec.json.decode(await here.service.enqueue(SCOPE, session, "pid"))
            later = await begun(here, "inline", "count")
            assert (await ended(here, *later)).status == "completed"
            assert session not in other.engine._drivers
            async with hinted.node(data=home):
                assert (await ended(here, session, again["turn_id"])).result_json == first, "it is the same process"
                await here.service.close(SCOPE, session)
                await until(lambda: is_closed(here, session))


async def is_closed(node: Node, session: str) -> bool:
    head = await node.store.head(session)
    return head is not None and head.status == "closed" and head.run is None


async def test_what_a_run_prints_is_read_elsewhere(hinted: Installation) -> None:
    async with hinted.node(works=False) as here, hinted.node():
        await deployed(here)
        session, turn = await begun(here, "inline", "shout ahoy")
        run = (await ended(here, session, turn)).run_id
        assert run is not None

        async def printed() -> bool:
            return b"ahoy went wrong" in (await here.service.run_log(SCOPE, session, run)).data

        # The end of the run is heard of before the last that it printed: that is no end of its log yet.
        await here.service.close(SCOPE, session)
        await until(lambda: is_closed(here, session))
        assert not (await here.service.run_log(SCOPE, session, run)).eof
        await until(printed)
