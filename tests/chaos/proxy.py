"""Connections between nodes and the database that can be made to stand still: a partition for who may not make one.

`python -m tests.chaos.proxy ROUTES` forwards; ROUTES is JSON: for each node, listening ports and where they lead.
Lines on its input, `stall NODE` and `heal NODE`, stop and restart what flows for a node, in both directions, without
closing anything; new connections are taken and stand still, too. It ends with its input.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

Route = tuple[int, str, int]
_PIECE = 64 * 1024


class Proxies:
    """The forwarding process, as its user sees it."""

    def __init__(self, routes: Mapping[str, Sequence[Route]]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.proxy", msgspec.json.encode(routes).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def tell(self, word: str, node: str) -> None:
        """Stall or heal a node."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word} {node}\n".encode())
        self._process.stdin.flush()

    def close(self) -> None:
        """End it, and all connections with it."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait(10)


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter, flows: asyncio.Event) -> None:
    with suppress(OSError):
        while piece := await source.read(_PIECE):
            await flows.wait()
            target.write(piece)
            await target.drain()
    await flows.wait()
    target.close()


async def _serve(route: Route, flows: asyncio.Event) -> None:
    port, host, to = route

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await flows.wait()
        try:
            inner_reader, inner_writer = await asyncio.open_connection(host, to)
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(_pump(reader, inner_writer, flows), _pump(inner_reader, writer, flows))

    await asyncio.start_server(connected, "127.0.0.1", port)


async def _main(routes: dict[str, list[Route]]) -> None:
    flows = {name: asyncio.Event() for name in routes}
    for name, ways in routes.items():
        flows[name].set()
        for way in ways:
            await _serve(way, flows[name])
    print("ready", flush=True)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        word, node = line.decode().split()
        flows[node].set() if word == "heal" else flows[node].clear()
    os._exit(0)  # all connections at once, whatever they are about


if __name__ == "__main__":
    asyncio.run(_main(msgspec.json.decode(sys.argv[1], type=dict[str, list[Route]])))
