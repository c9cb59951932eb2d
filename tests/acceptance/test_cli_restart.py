"""The client across the death of its server: nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_parts import Dev, clean_environment, write_project

from perdure.api.events import Event
from perdure.client.aio import AsyncClient
from perdure.client.retry import Retry
from perdure.client.sync import Client
from perdure.client.watching import End

PATIENT = Retry(attempts=40, first=0.05, longest=0.5)


class Restartable:
    """A `perdure dev` that dies and comes back at the same address with the same data."""

    def __init__(self, project: Path) -> None:
        self._dev = Dev(project)
        self.url = self._dev.url

    def kill(self) -> None:
        self._dev.kill()

    def start(self) -> None:
        self._dev = Dev(self._dev.project, self._dev.port)

    def stop(self) -> None:
        self._dev.stop()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Restartable]:
    clean_environment(monkeypatch, tmp_path)
    server = Restartable(write_project(tmp_path / "project"))
    yield server
    server.stop()


class Background:
    """Something that runs beside the test; `result` waits for it."""

    def __init__(self, target: Callable[[], Any]) -> None:
        self._result: Any = None
        self._error: BaseException | None = None

        def work() -> None:
            try:
                self._result = target()
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=work)
        self._thread.start()

    def result(self) -> Any:
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self._error:
            raise self._error
        return self._result


def watch_sync(url: str, session_id: str, lost: threading.Event, seen: threading.Event) -> list[Any]:
    with Client(url, retry=PATIENT) as client:
        items = []
        for item in client.session(session_id).watch(after=0, on_lost=lambda *_: lost.set()):
            items.append(item)
            seen.set()
        return items


def watch_async(url: str, session_id: str, lost: threading.Event, seen: threading.Event) -> list[Any]:
    async def watch() -> list[Any]:
        async with AsyncClient(url, retry=PATIENT) as client:
            items = []
            async for item in client.session(session_id).watch(after=0, on_lost=lambda *_: lost.set()):
                items.append(item)
                seen.set()
            return items

    return asyncio.run(watch())


@pytest.mark.parametrize("watch", [watch_sync, watch_async])
def test_a_watch_goes_on_where_it_was_when_its_server_died(server: Restartable, watch: Callable[..., Any]) -> None:
    with Client(server.url, retry=PATIENT) as client:
        session = client.session(client.agents["echo"].create_session(text="count 20").session_id)
        for _ in range(5):
            session.enqueue("count 20")
        lost, seen = threading.Event(), threading.Event()
        watching = Background(lambda: watch(server.url, session.id, lost, seen))
        assert seen.wait(30)
        for _ in range(2):
            lost.clear()
            server.kill()
            assert lost.wait(30)
            server.start()
            session.enqueue("count 20")
        session.close()
        items = watching.result()
        events = list(session.iter_events())
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [item for item in items if isinstance(item, Event)] == events
    assert isinstance(items[-1], End)


def test_a_wait_goes_on_when_its_server_died(server: Restartable) -> None:
    with Client(server.url, retry=PATIENT) as client:
        receipt = client.agents["echo"].create_session(text="sleep 600")
        assert receipt.turn_id
        session = client.session(receipt.session_id)
        next(event for event in session.iter_events(follow=True) if event.type == "turn.running")
        polled = threading.Event()
        waiting = Background(lambda: _wait(server.url, receipt, polled))
        assert polled.wait(30)
        server.kill()
        server.start()
        result = waiting.result()
    assert (result.status, result.turn.status) == ("settled", "interrupted")


def _wait(url: str, receipt: Any, polled: threading.Event) -> Any:
    with Client(url, retry=PATIENT) as client:
        turn = client.session(receipt.session_id).turn(receipt.turn_id)
        turn.wait("100ms")
        polled.set()
        return turn.wait("60s")


def test_what_is_asked_while_the_server_is_away_is_done_once(server: Restartable) -> None:
    with Client(server.url, retry=PATIENT) as client:
        session = client.session(client.agents["echo"].create_session().session_id)
        server.kill()
        asking = Background(lambda: session.enqueue("count 1"))
        server.start()
        receipt = asking.result()
        assert [turn.id for turn in session.iter_turns()] == [receipt.turn_id]
        assert session.turn(receipt.turn_id).wait("30s").turn.status == "completed"


def test_a_command_that_follows_goes_on_when_its_server_died(server: Restartable) -> None:
    with Client(server.url, retry=PATIENT) as client:
        session = client.session(client.agents["echo"].create_session(text="count 3").session_id)
        watch = ["session", "watch", session.id, "--jsonl", "-a", server.url]
        command = [sys.executable, "-m", "perdure.cli.main", *watch]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                first = json.loads(process.stdout.readline())
                assert first["event"] == "snapshot"
                server.kill()
                server.start()
                session.close()
                out, err = process.communicate(timeout=60)
            finally:
                process.kill()
    lines = [json.loads(line) for line in out.splitlines()]
    ids = [line["id"] for line in lines if "id" in line]
    assert ids == list(range(first["data"]["cursor"] + 1, lines[-1]["data"]["cursor"] + 1))
    assert (lines[-1]["event"], err, process.returncode) == ("end", "", 0)
