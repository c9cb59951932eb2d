"""A worker is crashed at a point while others share its store: another goes on, and nothing is done twice."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

sys.path.append(str(Path(__file__).parents[1] / "store"))

from crash_story import QUICK
from postgres_server import PostgresServer
from test_recovery import PROJECT, eventually, history_of, settled

from perdure.client.aio import AsyncClient
from perdure.crashpoints import REACHED, SHARED_POINTS, VARIABLE
from perdure.engine.engine import Settings
from perdure.server.node import open_node
from perdure.testing import DevServer, Ledger, Started, check_history
from perdure.testing.dev import END_SECONDS

LEASE = 1.0
ACTIONS = ("kill", "raise", "hang")
TAKEN_OVER = (
    "engine.act.before=start_run",
    "engine.act.after=start_run",
    "engine.spawn.before",
    "engine.spawn.after",
    "engine.begin.after",
    "engine.request.before=Output",
    "engine.request.after=Returned",
    "runtime.handler.before",
    "runtime.handler.after",
    "store.commit.before=StartRun",
    "store.commit.after=StartRun",
    "store.commit.before=CompleteTurn",
    "store.commit.after=CompleteTurn",
    "store.publish.before=RunReady",
)
"""Where a worker is killed once it owns a session: the one that takes over is not the one that starts again."""
CASES = [(point, action) for point in SHARED_POINTS for action in ACTIONS] + [(point, "kill") for point in TAKEN_OVER]


class Part(DevServer):
    """`perdure serve` or `perdure worker` on a store."""

    def __init__(self, kind: str, store: str, data: Path, ledger: Path) -> None:
        super().__init__(data, data, environment={"LEDGER": str(ledger)})
        self._line = [kind, "--store", store, "--data", str(data), "--json"]
        self._line += ["--no-worker", "--port", str(self.port)] if kind == "serve" else ["--lease", f"{LEASE:g}s"]

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "perdure.cli.main", *self._line]


class Scene:
    """A database, a server without a worker, and the code deployed."""

    def __init__(self, postgres: PostgresServer, folder: Path) -> None:
        self.url = postgres.url(postgres.new_database())
        self.folder = folder
        self.ledger = folder / "ledger"
        (folder / "project" / "agents").mkdir(parents=True)
        (folder / "project" / "agents" / "waiter.py").write_text(PROJECT)
        self.server = Part("serve", self.url, folder / "server", self.ledger)

    def worker(self, name: str) -> Part:
        return Part("worker", self.url, self.folder / name, self.ledger)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    postgres = PostgresServer(fsync=False)
    try:
        scene = Scene(postgres, tmp_path_factory.mktemp("many"))
        with scene.server:
            with scene.server.client() as client:
                client.deploy(scene.folder / "project")
            yield scene
    finally:
        postgres.remove()


@pytest.fixture
def armed(scene: Scene, request: pytest.FixtureRequest) -> Iterator[Part]:
    worker = scene.worker("".join(c for c in request.node.name if c.isalnum()))
    yield worker
    if worker.runs:
        worker.kill()


async def until_reached(worker: Part, file: Path, action: str) -> None:
    """Wait until the worker has crashed; one that hangs is then killed, as who finds it would."""
    await eventually(lambda: Path(f"{file}{REACHED}").exists())
    if action == "kill":
        assert await asyncio.to_thread(worker.wait, END_SECONDS) == -signal.SIGKILL
    elif action == "hang":
        await asyncio.to_thread(worker.kill)


async def go_on(scene: Scene, client: AsyncClient, session_id: str, receipts: list[object]) -> None:
    """Wait until all turns of a session have ended, and check what is told of it."""
    session = client.session(session_id)
    more = await session.enqueue(text="go")
    assert await settled(client, more) == "completed"
    entries = Ledger(scene.ledger).entries(session=session_id)
    begun = [Started(entry["sequence"], entry["run"]) for entry in entries]
    documents = [each.document() for each in [*receipts, more]]  # type: ignore[attr-defined]
    check_history(await history_of(client, session_id), begun, documents)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("point", "action"), CASES)
async def test_another_worker_goes_on(
    scene: Scene, armed: Part, point: str, action: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEDGER", str(scene.ledger))
    file = tmp_path / "arming"
    file.write_text(f"{point}:{action}")
    async with AsyncClient(scene.server.url, retry=QUICK) as client:
        receipts = [await client.agents["waiter"].create_session(text="go")]
        session_id = receipts[0].session_id
        armed.environment[VARIABLE] = f"@{file}"
        await asyncio.to_thread(armed.start)
        if point == "engine.lease.lost":
            receipts += await in_flight(client, session_id, scene, receipts[0])
            end_leases(scene)
        await until_reached(armed, file, action)
        settings = Settings(lease=LEASE, drain=1.0)
        async with open_node(tmp_path / "second", store=scene.url, settings=settings):
            await go_on(scene, client, session_id, list(receipts))


async def in_flight(client: AsyncClient, session_id: str, scene: Scene, first: object) -> list[object]:
    await settled(client, first)  # type: ignore[arg-type]
    waiting = await client.session(session_id).enqueue(text="wait")
    await eventually(lambda: len(Ledger(scene.ledger).entries(session=session_id)) == 2)
    return [waiting]


def end_leases(scene: Scene) -> None:
    """Let the lease run out while its worker is well."""
    with psycopg.connect(scene.url, autocommit=True) as connection:
        connection.execute("UPDATE perdure.leases SET expires_at = now() - interval '1 s' WHERE expires_at > now()")
