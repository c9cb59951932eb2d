"""An MCP server for the tests: run as a program it speaks over stdin and stdout."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import EmbeddedResource, ImageContent, TextContent, TextResourceContents, ToolAnnotations

server: MCPServer[Any] = MCPServer("tests")


@server.tool(annotations=ToolAnnotations(readOnlyHint=True))
def search(query: str, count: int = 1) -> str:
    """Find it."""
    return f"{query} " * count + os.environ.get("MCP_TEST_WORD", "")


@server.tool(name="book.flight", description="Book it.")
def book(seat: int) -> dict[str, Any]:
    if seat == 0:
        raise ToolError("no such seat")
    return {"seat": seat}


@server.tool()
def show() -> list[Any]:
    return [
        TextContent(type="text", text="Look:"),
        ImageContent(type="image", data="cG5n", mimeType="image/png"),
        EmbeddedResource(type="resource", resource=TextResourceContents(uri="file:///a.txt", text="inside")),
    ]


@server.tool()
def die() -> str:
    os._exit(3)


@server.tool()
def pid() -> str:
    return str(os.getpid())


@server.tool()
async def hang() -> str:
    await asyncio.Event().wait()
    return "never"


if __name__ == "__main__":
    server.run()
