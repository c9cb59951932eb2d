"""Tools of MCP servers: a program, an address, lost in the middle, gone altogether."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from perdure.chat import entries as e
from perdure.chat.arguments import InvalidArguments
from perdure.chat.errors import ServerNotAvailable
from perdure.chat.mcp import McpServer
from perdure.chat.results import Finished, finish
from perdure.chat.tools import RawTool
from perdure.errors import DefinitionError

PROGRAM = [sys.executable, "-P", str(Path(__file__).with_name("mcp_program.py"))]


@asynccontextmanager
async def _used(server: McpServer) -> AsyncIterator[dict[str, RawTool]]:
    try:
        yield {each.name: each for each in await server.tools()}
    finally:
        await server.close()


async def _run(tool: RawTool, arguments: str = "{}") -> Finished:
    return finish(await tool.run(None, tool.arguments(arguments).values))


def _text(result: Finished) -> str:
    return "".join(part.text for part in result.content if isinstance(part, e.Text))


@asynccontextmanager
async def _http(seen: list[dict[bytes, bytes]]) -> AsyncIterator[str]:
    from tests.unit.mcp_program import server

    app = server.streamable_http_app()

    async def listened(scope: Any, receive: Any, send: Any) -> None:
        seen.append(dict(scope.get("headers", [])))
        await app(scope, receive, send)

    web = uvicorn.Server(uvicorn.Config(listened, host="127.0.0.1", port=0, log_level="error", ws="none"))
    serving = asyncio.create_task(web.serve())
    while not web.started:
        await asyncio.sleep(0)
    try:
        yield f"http://127.0.0.1:{web.servers[0].sockets[0].getsockname()[1]}/mcp"
    finally:
        web.should_exit = True
        await serving


async def test_a_program_s_tools_are_tools() -> None:
    server = McpServer(PROGRAM, env={"MCP_TEST_WORD": "!"}, prefix="t_", replay="annotated")
    async with _used(server) as tools:
        assert sorted(tools) == ["t_book_flight", "t_die", "t_hang", "t_pid", "t_search", "t_show"]
        search = tools["t_search"]
        assert (search.description, search.replay, tools["t_book_flight"].replay) == ("Find it.", "safe", "never")
        assert search.schema.parameters["required"] == ["query"]
        with pytest.raises(InvalidArguments, match="query: is required"):
            search.arguments("{}")
        assert _text(await _run(search, '{"query": "x", "count": 2}')) == "x x !"


async def test_an_address_s_tools_are_tools() -> None:
    seen: list[dict[bytes, bytes]] = []
    async with _http(seen) as url:
        for headers in (None, {"Authorization": "Bearer secret"}):
            async with _used(McpServer(url, headers=headers)) as tools:
                assert tools["search"].replay == "never"
                assert _text(await _run(tools["search"], '{"query": "x"}')) == "x "
    assert any(headers.get(b"authorization") == b"Bearer secret" for headers in seen)


async def test_results_of_all_kinds_come_through() -> None:
    async with _used(McpServer(PROGRAM)) as tools:
        shown = await _run(tools["show"])
        assert shown.content == (e.Text("Look:"), e.File("image/png", b"png"), e.Text("inside"))
        booked = await _run(tools["book_flight"], '{"seat": 3}')
        assert booked.details == {"seat": 3}
        failed = await _run(tools["book_flight"], '{"seat": 0}')
        assert failed.outcome == "failed"
        assert "no such seat" in _text(failed)


async def test_calls_may_run_beside_each_other() -> None:
    async with _used(McpServer(PROGRAM)) as tools:
        results = await asyncio.gather(*(_run(tools["search"], f'{{"query": "q{number}"}}') for number in range(10)))
        assert [_text(result) for result in results] == [f"q{number} " for number in range(10)]


async def test_a_server_that_dies_in_the_middle_is_started_again_for_the_next_call() -> None:
    async with _used(McpServer(PROGRAM, timeout=20)) as tools:
        with pytest.raises(ServerNotAvailable):
            await _run(tools["die"])
        assert _text(await _run(tools["search"], '{"query": "x"}')) == "x "


async def test_a_call_that_takes_too_long_does_not_take_others_with_it() -> None:
    server = McpServer(PROGRAM)
    async with _used(server) as tools:
        before = _text(await _run(tools["pid"]))
        server._timeout = 0.05
        hung = asyncio.create_task(_run(tools["hang"]))
        with pytest.raises(ServerNotAvailable):
            await hung
        server._timeout = 60
        assert _text(await _run(tools["pid"])) == before, "it is the same program"


@pytest.mark.parametrize("server", [["/no/such/program"], "http://127.0.0.1:9/mcp"])
async def test_a_server_that_is_not_there_is_named(server: Any) -> None:
    mcp = McpServer(server, timeout=10)
    with pytest.raises(ServerNotAvailable, match="is not there"):
        await mcp.tools()
    await mcp.close()


async def test_a_call_that_is_cancelled_lets_the_others_go_on() -> None:
    async with _used(McpServer(PROGRAM)) as tools:
        for steps in range(30):
            call = asyncio.create_task(_run(tools["search"], '{"query": "x"}'))
            for _ in range(steps):
                await asyncio.sleep(0)
            is_asked = call.cancel()
            (ended,) = await asyncio.gather(call, return_exceptions=True)
            assert isinstance(ended, asyncio.CancelledError) == is_asked, steps
        assert _text(await _run(tools["search"], '{"query": "y"}')) == "y "


def test_an_address_is_told_from_a_command() -> None:
    with pytest.raises(DefinitionError, match=r"a command as a list, such as \['uvx', 'mcp-server-time'\]"):
        McpServer("uvx mcp-server-time")
