"""The served description is valid OpenAPI 3.1, and the server keeps to it, well asked and badly asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from http_parts import Served, served
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from perdure.server.operations import Operation
from perdure.server.queries import NoQuery
from perdure.server.table import OPERATIONS

AGENT = """
import asyncio
import perdure

agent = perdure.Agent("asker")
quick = perdure.Agent("quick")

@agent.turn
async def turn(turn, ctx):
    await turn.on_message(lambda message: asyncio.sleep(0))
    await turn.output.write("one moment")
    print("working")
    options = [{"id": "y", "label": "Yes", "value": True}]
    await turn.ask("Shall I?", {"type": "choice", "options": options})

@quick.turn
async def quick_turn(turn, ctx):
    await turn.respond("done")
    return {"seen": len(turn.input)}
"""
INPUT = [{"type": "text", "text": "hello"}]
ENDING = frozenset({"close", "cancel", "interrupt", "resume", "answer_ask"})
ON_CLOSED = frozenset({"watch", "wait_turn"})


OF_MEANING = frozenset({"not_json", "invalid_key", "invalid_cursor", "archive_invalid"})
"""Refusals of what is well formed: no schema can tell where a cursor is from, or how many bytes a text has."""
EXAMPLES = settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class Api:
    """A server with something of everything, and the ids of it."""

    def __init__(self, url: str, kept: dict[str, str], spent: dict[str, str], closed: dict[str, str]) -> None:
        self.url = url
        self._kept = kept
        self._spent = spent
        self._closed = closed

    def ids(self, operation: str) -> dict[str, str]:
        """Return path parameters of things that are there, such that the operation ends at once and spoils nothing."""
        if operation in ON_CLOSED:
            return self._closed
        return self._spent if operation in ENDING else self._kept


async def _busy_session(server: Served, deployment_id: str) -> dict[str, str]:
    receipt = await server.post("/v1/agents/asker/sessions", {"input": INPUT})
    session_id = receipt["session_id"]
    async with server.client.stream("GET", f"/v1/sessions/{session_id}/watch?after=0") as reply:
        async for line in reply.aiter_lines():
            if line == "event: ask.created":
                break
    asks = (await server.get(f"/v1/sessions/{session_id}/asks", status="pending"))["asks"]
    runs = (await server.get(f"/v1/sessions/{session_id}/runs"))["runs"]
    return {
        "agent": "asker",
        "deployment_id": deployment_id,
        "session_id": session_id,
        "turn_id": receipt["turn_id"],
        "ask_id": asks[0]["id"],
        "run_id": runs[0]["id"],
    }


async def _closed_session(server: Served) -> dict[str, str]:
    receipt = await server.post("/v1/agents/quick/sessions", {"input": INPUT})
    await server.settled(receipt["session_id"], receipt["turn_id"])
    await server.post(f"/v1/sessions/{receipt['session_id']}/close")
    return {"session_id": receipt["session_id"], "turn_id": receipt["turn_id"]}


@asynccontextmanager
async def _prepared(folder: Path) -> AsyncIterator[Api]:
    source = folder / "project" / "agents"
    source.mkdir(parents=True)
    (source / "agents.py").write_text(AGENT)
    async with served(folder) as server:
        deployment_id = (await server.deploy(folder / "project"))["id"]
        kept, spent = [await _busy_session(server, deployment_id) for _ in range(2)]
        yield Api(server.url, kept, spent, await _closed_session(server))


@contextmanager
def _in_thread(folder: Path) -> Iterator[Api]:
    """Serve in a loop of its own, since schemathesis asks from this thread."""
    ready: list[Api] = []
    started, stop = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        try:
            async with _prepared(folder) as api:
                ready.append(api)
                started.set()
                await stop.wait()
        finally:
            started.set()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert started.wait(60)
        yield ready[0]
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with _in_thread(tmp_path_factory.mktemp("openapi")) as api:
        yield api


@pytest.fixture(scope="module")
def described(api: Api) -> Any:
    return schemathesis.openapi.from_url(f"{api.url}/openapi.json")


def test_the_description_is_valid_and_complete(described: Any) -> None:
    described.validate()
    raw = described.raw_schema
    assert raw["openapi"] == "3.1.0"
    told = {(method.upper(), path) for path, methods in raw["paths"].items() for method in methods}
    assert told == {(operation.method, operation.path) for operation in OPERATIONS}
    for methods in raw["paths"].values():
        for operation in methods.values():
            assert {"200", "201"} & set(operation["responses"])
            assert {"400", "500"} <= set(operation["responses"])
            for response in operation["responses"].values():
                assert "X-Request-ID" in response["headers"]
    watch = raw["paths"]["/v1/sessions/{session_id}/watch"]["get"]
    assert list(watch["responses"]["200"]["content"]) == ["text/event-stream"]


def test_nothing_is_described_that_is_not_used(described: Any) -> None:
    raw = described.raw_schema
    text = str(raw)
    for name in raw["components"]["schemas"]:
        assert f"'#/components/schemas/{name}'" in text, name


@schemathesis.serializer("application/gzip")
def _as_it_is(_: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


def _questions() -> Iterator[Any]:
    for operation in OPERATIONS:
        yield pytest.param(operation, GenerationMode.POSITIVE, id=f"{operation.id}-well")
        if operation.query is not NoQuery:
            yield pytest.param(operation, GenerationMode.NEGATIVE, id=f"{operation.id}-badly")


@pytest.mark.parametrize(("operation", "mode"), list(_questions()))
def test_the_server_is_what_it_says(operation: Operation, mode: GenerationMode, api: Api, described: Any) -> None:
    subject = described[operation.path][operation.method.lower()]
    strategy = subject.as_strategy(generation_mode=mode)

    @EXAMPLES
    @given(st.data())
    def ask(data: st.DataObject) -> None:
        case = data.draw(strategy)
        if mode is GenerationMode.POSITIVE:
            ids = api.ids(operation.id)
            case.path_parameters = {name: ids.get(name, value) for name, value in case.path_parameters.items()}
        reply = case.call_and_validate(timeout=30, excluded_checks=[positive_data_acceptance])
        if mode is GenerationMode.POSITIVE and reply.status_code == 400:
            assert reply.json()["error"]["code"] in OF_MEANING

    ask()
