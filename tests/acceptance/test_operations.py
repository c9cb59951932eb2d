"""What operators do and see: a restore to an instant, metrics, traces; with real servers, workers and databases."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
from dev_parts import PROJECT, ended, free_port, log_of, until
from many_parts import Parts, PostgresServer, Server, Worker, database_server, parts_on
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from postgres_cluster import PostgresNode
from postgres_cluster import until as holds
from postgres_server import binaries
from prometheus_client.parser import text_string_to_metric_families

from perdure.cli import main as cli
from perdure.client.aio import AsyncClient
from perdure.errors import InvalidCursor, SessionNotFound, TurnNotFound
from perdure.telemetry.traces import of_turn

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


# --- backup and point-in-time restore


def _settings_shown() -> dict[str, str]:
    """What the guide tells operators to set."""
    guide = Path(__file__).parents[2] / "docs" / "how-to" / "back-up-postgresql.md"
    return dict(re.findall(r"^(\w+) = '?(.*?)'?$", guide.read_text("utf-8"), re.M))


class Archive:
    """A database that archives its log, a base backup of it, and a second one restored from both, as the guide says."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="perdure-pitr-"))
        self.folder.chmod(0o755)
        self._log = self.folder / "archive"
        self._log.mkdir()
        self.primary = PostgresNode(self.folder, "primary")
        self.restored = PostgresNode(self.folder, "restored")
        if os.geteuid() == 0:
            shutil.chown(self._log, "nobody", "nogroup")
        self._shown = {name: value.replace("/archive", str(self._log)) for name, value in _settings_shown().items()}
        self.primary.settings |= {name: self._shown[name] for name in ("wal_level", "archive_mode", "archive_command")}
        self.primary.make()
        self.primary.start()
        self.primary.sql("CREATE DATABASE perdure")

    def back_up(self) -> None:
        where = self.primary.replication
        self.primary.run("pg_basebackup", "-D", str(self.restored.data), "-d", where, "-c", "fast", "-X", "none", "-N")

    def now(self) -> str:
        """Return an instant of the database's, with commits before and after it."""
        ((instant,),) = self.primary.sql("SELECT clock_timestamp()::text")
        return str(instant)

    def lose(self) -> None:
        """Archive what was written, then lose the database."""
        ((last,),) = self.primary.sql("SELECT pg_walfile_name(pg_switch_wal())")
        holds(lambda: (self._log / str(last)).exists(), "the log is archived")
        self.primary.stop("immediate")
        shutil.rmtree(self.primary.data)

    def restore(self, instant: str) -> None:
        again = {name: self._shown[name] for name in ("restore_command", "recovery_target_action")}
        self.restored.settings |= {**again, "recovery_target_time": instant}
        (self.restored.data / "recovery.signal").touch()
        self.restored.start()
        holds(lambda: self.restored.sql("SELECT pg_is_in_recovery()") == [(False,)], "the database takes writes")

    def remove(self) -> None:
        for node in (self.primary, self.restored):
            if node.pid is not None:
                node.stop("immediate")
        shutil.rmtree(self.folder)


@pytest.fixture
def archive() -> Iterator[Archive]:
    archive = Archive()
    try:
        yield archive
    finally:
        archive.remove()


async def test_a_restore_to_an_instant_has_all_before_it_and_nothing_after(
    archive: Archive, tmp_path: Path, gate: Path
) -> None:
    (before_folder := tmp_path / "before").mkdir()
    (after_folder := tmp_path / "after").mkdir()
    with parts_on(archive.primary.url("perdure"), before_folder) as parts:
        async with parts.server(works=True).client() as client:
            await client.deploy(PROJECT)
            first = await client.agents["inline"].create_session(text="count", key="user:ada")
            session = client.session(first.session_id)
            await ended(session, first)
            await asyncio.to_thread(archive.back_up)
            second = await session.enqueue(text="count")
            assert (await ended(session, second)).result["turns"] == 2
            stuck = await client.agents["inline"].create_session(text=f"wait {gate}")
            await until(client.session(stuck.session_id), "turn.output")
            before = await log_of(session)
            instant = await asyncio.to_thread(archive.now)
            third = await session.enqueue(text="count", idempotency_key="third")
            assert (await ended(session, third)).result["turns"] == 3
            later = await client.agents["inline"].create_session(text="count")
            await ended(client.session(later.session_id), later)
            seen = (await log_of(session))[-1].seq
    # All servers and workers have ended here, as they must have before a restored database is opened.
    await asyncio.to_thread(archive.lose)
    await asyncio.to_thread(archive.restore, instant)
    with parts_on(archive.restored.url("perdure"), after_folder) as parts:
        async with parts.server(works=True).client() as client:
            session = client.session(first.session_id)
            assert (await log_of(session))[: len(before)] == before
            assert second.turn_id is not None
            assert (await session.turn(second.turn_id).get()).status == "completed"
            await _nothing_after_is_known(client, first.session_id, str(third.turn_id), later.session_id, seen)
            # What ran at that instant is settled, not repeated.
            turn = await ended(client.session(stuck.session_id), stuck)
            assert (turn.status, turn.reason) == ("interrupted", "process_lost")
            # A client that is not sure sends it again, and it is done, as the first one for this database.
            again = await client.agents["inline"].get_or_create("user:ada", text="count", idempotency_key="third")
            assert (again.session_id, again.sequence, again.turn_id != third.turn_id) == (first.session_id, 3, True)
            assert (await ended(session, again)).status == "completed"
            await log_of(session)


async def _nothing_after_is_known(client: AsyncClient, session_id: str, turn_id: str, later: str, seen: int) -> None:
    session = client.session(session_id)
    with pytest.raises(TurnNotFound):
        await session.turn(turn_id).get()
    with pytest.raises(SessionNotFound):
        await client.session(later).get()
    for items in (session.iter_events(after=seen), session.watch(after=seen)):
        with pytest.raises(InvalidCursor, match=rf"no event {seen} |none after {seen} "):
            await anext(items)


def run(program: str, *arguments: str) -> None:
    """Run one of PostgreSQL's programs."""
    found = binaries()
    assert found is not None
    subprocess.run([str(found / program), *arguments], check=True, timeout=60)


async def test_a_dump_is_an_installation_on_another_server(parts: Parts, tmp_path: Path) -> None:
    async with parts.server(works=True).client() as client:
        await client.deploy(PROJECT)
        receipt = await client.agents["inline"].create_session(text="count")
        await ended(client.session(receipt.session_id), receipt)
        before = await log_of(client.session(receipt.session_id))
    dump = str(tmp_path / "perdure.dump")
    await asyncio.to_thread(run, "pg_dump", "--format=custom", "--schema=perdure", f"--file={dump}", parts.store)
    with database_server() as other:
        url = other.url(other.new_database())
        await asyncio.to_thread(run, "pg_restore", f"--dbname={url}", dump)
        for command in (["migrate", "--finish"], ["check"]):
            assert await asyncio.to_thread(cli.run, ["store", *command, "--store", url]) == 0
        with parts_on(url, tmp_path) as restored:
            async with restored.server(works=True).client() as client:
                session = client.session(receipt.session_id)
                assert (await log_of(session))[: len(before)] == before
                assert (await ended(session, await session.enqueue(text="count"))).status == "completed"
                after = await log_of(session)
                told = [event.seq async for event in _feed(client, len(after))]
                assert told == [event.seq for event in after]


async def _feed(client: AsyncClient, count: int) -> AsyncIterator[Any]:
    """Yield the first events of all sessions, waiting for them."""
    async with asyncio.timeout(30), aclosing(client.follow_events()) as pages:
        async for page in pages:
            for event in page.events:
                yield event
                count -= 1
            if count <= 0:
                return


# --- restarts of workers


@pytest.mark.parametrize("how", ["terminate", "kill"])
async def test_a_worker_that_is_started_again_on_its_machine_goes_on_with_running_turns(
    parts: Parts, gate: Path, how: str
) -> None:
    """What the unit for systemd relies on: only the worker is signalled, and sessions' processes are adopted."""
    server, workers = parts.server(), [parts.worker(), parts.worker()]
    async with server.client() as client:
        await client.deploy(PROJECT)
        receipt = await client.agents["process"].create_session(text=f"wait {gate}")
        session = client.session(receipt.session_id)
        await until(session, "turn.output")
        computer = (await session.get()).computer
        assert computer is not None
        (home,) = [part for part in workers if (part.data / "computers" / computer.id).exists()]
        guest = await home.guest(session)
        getattr(home, how)()
        if how == "terminate":
            assert await asyncio.to_thread(home.ended) == 0
        await asyncio.to_thread(home.start)
        gate.touch()
        assert (await ended(session, receipt)).status == "completed"
        assert await home.guest(session) == guest


# --- metrics


def samples(text: str) -> dict[str, float]:
    """What Prometheus reads, by name, summed over labels but for what turns became."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name + ("/" + sample.labels["outcome"] if "outcome" in sample.labels else "")
            found[name] = found.get(name, 0) + sample.value
    return found


async def read(url: str) -> dict[str, float]:
    async with httpx2.AsyncClient() as client:
        answer = await client.get(f"{url}/metrics")
    assert answer.status_code == 200, answer.text
    return samples(answer.text)


async def test_servers_and_workers_tell_what_they_have_done(parts: Parts) -> None:
    server = parts.server()
    worker_url = f"http://127.0.0.1:{(port := free_port())}"
    parts.worker("--health", f"127.0.0.1:{port}")
    async with server.client() as client:
        await client.deploy(PROJECT)
        for agent in ("inline", "process"):
            receipt = await client.agents[agent].create_session(text="count")
            await ended(client.session(receipt.session_id), receipt)
    told, worked = await read(server.url), await read(worker_url)
    assert told["perdure_turns_admitted_total"] == 2
    assert told["perdure_http_requests_total"] > 2
    assert told["perdure_hints_heard_total"] > 0
    assert told["perdure_hints_listening"] == 1
    assert "perdure_turns_total/completed" not in told
    assert worked["perdure_turns_total/completed"] == 2
    assert worked["perdure_turn_seconds_count/completed"] == 2
    assert worked["perdure_turn_queue_seconds_count"] == 2
    assert worked["perdure_process_starts_total/started"] == 1
    assert worked["perdure_sessions_awake"] == 2
    assert worked["perdure_sessions_claimed_total"] == 2
    assert worked["perdure_lease_renewals_total/granted"] > 0
    assert worked["perdure_leases_lost_total"] == 0
    assert worked["perdure_commits_total"] > 2
    assert worked["process_resident_memory_bytes"] > 0


# --- traces


class Collector:
    """Takes spans as an OpenTelemetry collector does, with the process that sent them."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self._some = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.take(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        found = [span for each in request.resource_spans for scope in each.scope_spans for span in scope.spans]
        with self._some:
            self.spans += found
            self._some.notify_all()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    try:
        yield collector
    finally:
        collector.close()


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    with collecting() as collector:
        yield collector


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


async def test_a_turn_is_traced_from_a_server_to_a_worker(
    postgres: PostgresServer, collector: Collector, tmp_path: Path
) -> None:
    store = postgres.url(postgres.new_database())
    server, worker = Server(store, tmp_path / "server"), Worker(store, tmp_path / "worker")
    try:
        for part in (server, worker):
            await asyncio.to_thread(part.start, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
        async with server.client() as client:
            await client.deploy(PROJECT)
            session_id, turn_id = await _create(server.url)
            await ended(client.session(session_id), turn_id)
        # What they have not sent yet, they send when they stop.
        for part in (server, worker):
            part.terminate()
            assert await asyncio.to_thread(part.ended) == 0
    finally:
        server.end()
        worker.end()
    own = of_turn(turn_id)
    (request,) = [span for span in collector.spans if span.name == "create_session"]
    (turn,) = [span for span in collector.spans if span.name == "turn"]
    assert request.trace_id.hex() == CALLER.split("-")[1]
    assert request.parent_span_id.hex() == CALLER.split("-")[2]
    assert [(link.trace_id, link.span_id) for link in request.links] == [(turn.trace_id, turn.span_id)]
    assert (int.from_bytes(turn.trace_id), int.from_bytes(turn.span_id)) == (own.trace, own.span)
    told = attributes(turn)
    assert (told["perdure.session.id"], told["perdure.turn.id"]) == (session_id, turn_id)
    assert (told["perdure.turn.outcome"], told["perdure.agent"]) == ("completed", "inline")
    assert {"commit", "claim"} <= {span.name for span in collector.spans}


async def _create(url: str) -> tuple[str, str]:
    """Create a session as a client that is traced does."""
    body = {"input": [{"type": "text", "text": "count"}]}
    async with httpx2.AsyncClient() as client:
        answer = await client.post(f"{url}/v1/agents/inline/sessions", json=body, headers={"traceparent": CALLER})
    assert answer.status_code in (200, 201), answer.text
    return answer.json()["session_id"], answer.json()["turn_id"]


async def test_a_server_that_cannot_trace_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to install, rather than leave out what was asked for."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util as util\n"
        "found = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name.startswith('opentelemetry') else found(name, *rest)\n"
    )
    dev = Server(str(tmp_path / "data"), tmp_path / "data", works=True)
    dev.command = lambda: ["serve", "--store", str(tmp_path / "data"), "--port", str(dev.port)]  # type: ignore[method-assign]
    try:
        dev.launch(PYTHONPATH=str(hidden), OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:4318")
        assert await asyncio.to_thread(dev.ended) == 1
        assert "perdure[telemetry]" in dev.errors.read_text()
    finally:
        dev.end()
