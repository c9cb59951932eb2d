"""Tools of MCP servers: a program that is started, or an address."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, Literal

from perdure.chat import entries as e
from perdure.chat.errors import ServerNotAvailable
from perdure.chat.results import ToolResult
from perdure.chat.tools import Approval, RawTool, Replay
from perdure.errors import DefinitionError

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import CallToolResult, ContentBlock
    from mcp_types import Tool as ServerTool

_PAGES: Final = 100
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]+")
_NAME_LENGTH: Final = 64


class McpServer:
    """An MCP server whose tools an agent offers.

    `server` is an address (`https://…/mcp`), a command as a list (`["uvx", "mcp-server-time"]`), or a server object of
    the `mcp` package. `prefix` stands before the names of its tools, so that those of two servers do not meet. `replay`
    is the policy of all its tools; `annotated` makes those safe that the server says only read. `timeout` is in
    seconds.

    The connection is made when tools are first asked for and made again when it was lost: a call that was under way
    fails, the next one connects. Raises `DefinitionError` for what can be no server.
    """

    def __init__(
        self,
        server: str | Sequence[str] | Any,
        *,
        prefix: str = "",
        env: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        replay: Replay | Literal["annotated"] = "never",
        approval: Approval = False,
        timeout: float = 60.0,
    ) -> None:
        if isinstance(server, str) and not server.startswith(("http://", "https://")):
            raise DefinitionError(
                f"McpServer({server!r}): write an address (https://…), or a command as a list, such as "
                f"{server.split()!r}."
            )
        self._server, self._env, self._headers = server, dict(env or {}), dict(headers or {})
        self._prefix, self._replay, self._approval, self._timeout = prefix, replay, approval, timeout
        self._connection: _Connection | None = None
        self._connecting = asyncio.Lock()

    async def tools(self) -> list[RawTool]:
        """Return the server's tools as they are now; raises `ServerNotAvailable`."""
        client = await self._client()
        found: list[ServerTool] = []
        cursor: str | None = None
        try:
            for _ in range(_PAGES):
                page = await client.list_tools(cursor=cursor)
                found += page.tools
                cursor = page.next_cursor
                if not cursor:
                    break
        except Exception as error:
            await self._drop()
            raise ServerNotAvailable(self._name, _words(error)) from error
        return [self._tool(each) for each in found]

    async def close(self) -> None:
        """End the connection, and the program if one was started."""
        await self._drop()

    @property
    def _name(self) -> str:
        if isinstance(self._server, str):
            return self._server
        return " ".join(self._server) if isinstance(self._server, list | tuple) else type(self._server).__name__

    def _tool(self, each: ServerTool) -> RawTool:
        async def call(ctx: Any, arguments: Mapping[str, Any]) -> ToolResult:  # noqa: ARG001 - it knows nothing of the chat
            return await self._call(each.name, arguments)

        hints = each.annotations
        only_reads = bool(hints and hints.read_only_hint)
        replay: Replay = self._replay if self._replay != "annotated" else "safe" if only_reads else "never"
        return RawTool(
            call,
            name=_UNSAFE.sub("_", self._prefix + each.name)[:_NAME_LENGTH],
            description=each.description or each.title or "",
            parameters={"type": "object", "properties": {}, **each.input_schema},
            replay=replay,
            approval=self._approval,
        )

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        client = await self._client()
        try:
            return _result(await client.call_tool(name, dict(arguments), read_timeout_seconds=self._timeout))
        except Exception as error:
            if isinstance(error, MCPError) and error.code not in (CONNECTION_CLOSED, REQUEST_TIMEOUT):
                # The server has answered, and the connection is as good as before.
                return ToolResult(f"The server refused the call: {_words(error)}", is_error=True)
            if not isinstance(error, MCPError) or error.code == CONNECTION_CLOSED:
                await self._drop()  # and not for one call that took too long, beside which others run
            raise ServerNotAvailable(self._name, _words(error)) from error

    async def _client(self) -> Client:
        async with self._connecting:
            if self._connection is None or self._connection.is_over:
                self._connection = _Connection(self._open)
            try:
                # Not wait_for: it swallows a cancellation that comes as its future is done.
                async with asyncio.timeout(self._timeout):
                    return await self._connection.client()
            except Exception as error:
                await self._drop()
                raise ServerNotAvailable(self._name, _words(error)) from error

    async def _open(self, stack: AsyncExitStack) -> Client:
        try:
            from mcp import Client
            from mcp.client.stdio import StdioServerParameters
        except ImportError:
            raise ServerNotAvailable(self._name, "MCP needs the extra 'mcp': pip install 'perdure[mcp]'.") from None
        server: Any = self._server
        if isinstance(server, list | tuple):
            command, *args = server
            server = StdioServerParameters(command=command, args=args, env=self._env or None)
        elif isinstance(server, str) and self._headers:
            server = await self._with_headers(stack, server)
        return await stack.enter_async_context(Client(server, read_timeout_seconds=self._timeout))

    async def _with_headers(self, stack: AsyncExitStack, url: str) -> Any:
        from httpx2 import AsyncClient
        from mcp.client.streamable_http import streamable_http_client

        http = await stack.enter_async_context(AsyncClient(headers=self._headers, timeout=self._timeout))
        return streamable_http_client(url, http_client=http)

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


class _Connection:
    """A client in a task of its own: what it has entered must be left by the task that entered it."""

    def __init__(self, connect: Callable[[AsyncExitStack], Any]) -> None:
        self._connect = connect
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._ending = asyncio.Event()
        self._task = asyncio.create_task(self._live())

    @property
    def is_over(self) -> bool:
        """Whether the connection was lost or could not be made."""
        return self._task.done()

    async def client(self) -> Client:
        """Return the client once it is connected, or raise why it is not."""
        return await asyncio.shield(self._ready)

    async def close(self) -> None:
        """End the connection; returns when all of it is gone."""
        self._ending.set()
        if not self._ready.done():
            self._task.cancel()
        await asyncio.wait([self._task])

    async def _live(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                self._ready.set_result(await self._connect(stack))
                await self._ending.wait()
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
                self._ready.exception()  # whoever waits for it gets it; nobody may
            if not isinstance(error, Exception):
                raise


# --- what a server answers


def _result(result: CallToolResult) -> ToolResult:
    parts = [_part(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [e.Json(result.structured_content)]
    return ToolResult(parts, details=result.structured_content, is_error=result.is_error)


def _part(block: ContentBlock) -> e.Text | e.Json | e.File:
    import mcp_types as types

    if isinstance(block, types.TextContent):
        return e.Text(block.text)
    if isinstance(block, types.ImageContent | types.AudioContent):
        return e.File(block.mime_type, base64.b64decode(block.data))
    if isinstance(block, types.ResourceLink):
        return e.Text(f"[{block.name}: {block.uri}]")
    inner = block.resource
    if isinstance(inner, types.TextResourceContents):
        return e.Text(inner.text)
    return e.File(inner.mime_type or "application/octet-stream", base64.b64decode(inner.blob), str(inner.uri))


def _words(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__
