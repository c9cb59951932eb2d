"""`perdure serve` and `perdure worker` by themselves: what they say, what they refuse, how they stop."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from dev_parts import PATIENCE, PROJECT, copy_project, ended, free_port, until
from many_parts import Parts, PostgresServer, database_server, parts_on

from perdure.client.aio import AsyncClient


def refused(*arguments: str, cwd: Path | None = None) -> str:
    """Return the one line that a command says which does not start."""
    command = [sys.executable, "-m", "perdure.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=cwd)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done
    return done.stderr


# --- an embedded store


async def test_an_embedded_store_is_served_and_worked_by_one_process(tmp_path: Path) -> None:
    with parts_on(str(tmp_path / "data"), tmp_path) as parts:
        server = parts.embedded()
        ready = server.said[-1]
        assert (ready["store"], ready["data"], ready["works"]) == (str(tmp_path / "data"), str(tmp_path / "data"), True)
        told = refused("serve", "--store", parts.store, "--port", "0", cwd=tmp_path)
        assert "(store_in_use)" in told
        assert server.url in told
        async with server.client() as client:
            await client.deploy(PROJECT)
            receipt = await client.agents["inline"].create_session(text="count")
            assert (await ended(client.session(receipt.session_id), receipt)).result["turns"] == 1
        server.terminate()
        assert server.hear("stopping")["event"] == "stopping"
        assert server.ended() == 0
        server.start()
        async with server.client() as client:
            after = await client.session(receipt.session_id).enqueue(text="count")
            assert (await ended(client.session(receipt.session_id), after)).status == "completed"


# --- starting where it cannot be


@pytest.mark.parametrize("command", [["serve", "--no-worker", "--port", "0"], ["serve", "--port", "0"], ["worker"]])
def test_a_store_that_cannot_be_reached_is_told(command: list[str], tmp_path: Path) -> None:
    url = f"postgresql://ada:secret@127.0.0.1:{free_port()}/shop?perdure_patience=100ms"
    told = refused(*command, "--store", url, cwd=tmp_path)
    assert "(store_unavailable)" in told
    assert "secret" not in told


@pytest.mark.parametrize("command", [["serve", "--no-worker", "--port", "0"], ["worker"]])
def test_a_store_that_is_too_new_is_told(
    command: list[str], postgres: PostgresServer, parts: Parts, tmp_path: Path
) -> None:
    parts.server().terminate()
    postgres.sql("INSERT INTO perdure.migrations VALUES (9999, 'post')", database=parts.shown.rpartition("/")[2])
    assert "(store_too_new)" in refused(*command, "--store", parts.store, cwd=tmp_path)


def test_an_address_in_use_is_told(parts: Parts, tmp_path: Path) -> None:
    server = parts.server()
    place = f"127.0.0.1:{server.port}"
    for command in (["serve", "--no-worker", "--port", str(server.port)], ["worker", "--health", place]):
        told = refused(*command, "--store", parts.store, cwd=tmp_path)
        assert "(address_unavailable)" in told


# --- a worker that brings a project along


async def test_a_worker_deploys_its_project_when_it_is_not_what_is_current(parts: Parts, tmp_path: Path) -> None:
    server, project = parts.server(), copy_project(tmp_path / "project")
    options = ("--project", str(project), "--env", "shop/staging")
    worker = parts.worker(*options)
    first = worker.said[0]
    assert first["event"] == "deployed"
    async with AsyncClient(server.url, project="shop", environment="staging") as client:
        assert [each.id for each in (await client.deployments.list()).deployments] == [first["deployment_id"]]
        receipt = await client.agents["inline"].create_session(text="version")
        assert (await ended(client.session(receipt.session_id), receipt)).result == 1
        same = parts.worker(*options)
        assert same.said[0] == first
        stage = project / "agents" / "stage.py"
        stage.write_text(stage.read_text().replace("VERSION = 1", "VERSION = 2"))
        newer = parts.worker(*options)
        assert newer.said[0]["deployment_id"] != first["deployment_id"]
        current = (await client.deployments.list()).deployments[0]
        assert current.id == newer.said[0]["deployment_id"]
        receipt = await client.agents["inline"].create_session(text="version")
        assert (await ended(client.session(receipt.session_id), receipt)).result == 2
        stage.write_text("import nothing_of_that_name")
        told = refused("worker", "--store", parts.store, *options, cwd=tmp_path)
        assert "(project_import_failed)" in told
        assert (await client.deployments.list()).deployments[0] == current


async def test_a_worker_that_brings_its_project_says_so_to_nobody_else(parts: Parts, tmp_path: Path) -> None:
    """Without --env it is the project's own name, and development."""
    server, project = parts.server(), copy_project(tmp_path / "project")
    (project / "perdure.toml").write_text('project = "shop"\n')
    parts.worker("--project", str(project))
    async with AsyncClient(server.url, project="shop") as client:
        assert len((await client.deployments.list()).deployments) == 1


# --- health


async def test_a_worker_says_how_it_is_until_it_has_handed_over(parts: Parts, gate: Path) -> None:
    server, place = parts.server(), f"127.0.0.1:{free_port()}"
    worker = parts.worker("--health", place)
    assert worker.said[-1]["health"] == f"http://{place}"
    async with server.client() as client, httpx2.AsyncClient(base_url=f"http://{place}") as asking:
        assert (await asking.get("/healthz")).json() == {"status": "ok"}
        assert (await asking.get("/readyz")).json() == {"status": "ready"}
        assert (await asking.get("/v1/sessions")).status_code == 404
        await client.deploy(PROJECT)
        receipt = await client.agents["inline"].create_session(text=f"wait {gate}")
        session = client.session(receipt.session_id)
        await until(session, "turn.output")
        worker.terminate()
        await asyncio.to_thread(worker.hear, "stopping")
        reply = await asking.get("/readyz")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "unavailable")
        assert int(reply.headers["retry-after"]) >= 0
        assert (await asking.get("/healthz")).json() == {"status": "ok"}
        gate.touch()
        assert (await ended(session, receipt)).status == "completed"
        assert await asyncio.to_thread(worker.ended) == 0


@pytest.mark.restarts
async def test_readiness_follows_the_store(tmp_path: Path) -> None:
    with database_server() as postgres, parts_on(postgres.url(postgres.new_database()), tmp_path) as parts:
        await readiness_follows(parts, postgres)


async def readiness_follows(parts: Parts, postgres: PostgresServer) -> None:
    server, place = parts.server(), f"127.0.0.1:{free_port()}"
    parts.worker("--health", place)
    async with server.client() as client, httpx2.AsyncClient() as asking:
        await client.deploy(PROJECT)
        postgres.stop("immediate")
        try:
            for url in (server.url, f"http://{place}"):
                reply = await asking.get(f"{url}/readyz", timeout=10)
                assert (reply.status_code, "retry-after" in reply.headers) == (503, True)
                assert "Nothing" in reply.json()["error"]["message"] or "safe" in reply.json()["error"]["message"]
                assert (await asking.get(f"{url}/healthz")).status_code == 200
            reply = await asking.get(f"{server.url}/v1/sessions", timeout=20)
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "store_unavailable")
            assert int(reply.headers["retry-after"]) > 0
        finally:
            postgres.start()
        for url in (server.url, f"http://{place}"):
            await until_ready(asking, url)
        # The client waits for as long as it is told, and its request is done.
        receipt = await client.agents["inline"].create_session(text="count")
        assert (await ended(client.session(receipt.session_id), receipt)).status == "completed"


async def until_ready(asking: httpx2.AsyncClient, url: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while (await asking.get(f"{url}/readyz", timeout=10)).status_code != 200:
            pass


# --- stopping


async def test_a_second_signal_stops_at_once_and_another_worker_settles_it(parts: Parts, gate: Path) -> None:
    server, worker = parts.server(), parts.worker()
    async with server.client() as client:
        await client.deploy(PROJECT)
        receipt = await client.agents["inline"].create_session(text=f"wait {gate}")
        session = client.session(receipt.session_id)
        await until(session, "turn.output")
        worker.terminate()
        await asyncio.to_thread(worker.hear, "stopping")
        worker.terminate()
        assert await asyncio.to_thread(worker.ended) == 130
        parts.worker()
        assert (await ended(session, receipt)).reason == "process_lost"


def test_text_is_for_people_and_names_what_matters(parts: Parts, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "perdure.cli.main",
        "worker",
        "--store",
        parts.store,
        "--data",
        str(tmp_path / "d"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    assert lines[0] == "Perdure works\n"
    assert lines[1].split() == ["store", parts.shown]
    assert lines[2].split() == ["data", str(tmp_path / "d")]
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=PATIENCE)[0].startswith("Stopping")
    assert process.returncode == 0


def test_ready_says_where_everything_is(parts: Parts) -> None:
    server, worker = parts.server(), parts.worker()
    assert server.said[-1] == {
        "event": "ready",
        "url": server.url,
        "store": parts.shown,
        "data": str(server.data),
        "works": False,
    }
    ready = worker.said[-1]
    assert (ready["store"], ready["data"], ready["health"]) == (parts.shown, str(worker.data), None)
