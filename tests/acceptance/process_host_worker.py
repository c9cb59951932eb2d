"""A worker that can be killed: it starts one session, begins a turn and leaves one request of it unanswered."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec
from process_host_parts import begin

from perdure.hosts.process.host import ProcessHost
from perdure.hosts.protocol import Output, Request, RunSpec


class Hanging:
    """Answers everything but outputs from the second on."""

    async def handle(self, request: Request) -> int:
        if isinstance(request, Output) and request.op > 1:
            print("hanging", flush=True)
            await asyncio.Event().wait()
        print(type(request).__name__, flush=True)
        return 7

    def lost(self, reason: str) -> None:
        print("lost", reason, flush=True)


async def main() -> None:
    root, spec, text = Path(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=RunSpec), sys.argv[3]
    host = ProcessHost(root / "computers", root / "servers", patience=10)
    guest = await host.start(spec, Hanging())
    if text == "hibernate":
        print(await guest.hibernate(), flush=True)
    else:
        guest.tell(begin(1, text))
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
