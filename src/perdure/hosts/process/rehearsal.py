"""Going once through what a guest does first, in a process that waits to become one.

A forked process shares its server's memory until it writes to it, and in Python even looking at an object writes: the
first pass through any code costs hundreds of page faults. They are taken here, where nobody waits.
"""

from __future__ import annotations

import asyncio
import signal
import socket

import msgspec

from perdure.computers.identity import own_identity
from perdure.computers.meta import GuestMeta
from perdure.hosts.process.wire import (
    FROM_GUEST,
    FROM_WORKER,
    VERSION,
    Ask,
    Connection,
    Hello,
    Reply,
    Tell,
    Told,
    Welcome,
    encode,
)
from perdure.hosts.protocol import Begin, Output, Ready


async def rehearse() -> None:
    """Exchange the first messages of a session with ourselves, and set up what every guest sets up."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGCONT, int)
    msgspec.json.encode(GuestMeta(own_identity(), "", 0))
    over = asyncio.Event()
    ours, its = socket.socketpair()
    _, guest = await loop.create_unix_connection(
        lambda: Connection(FROM_WORKER, lambda *_: None, lambda *_: over.set()), sock=ours
    )
    _, worker = await loop.create_unix_connection(
        lambda: Connection(FROM_GUEST, lambda *_: None, lambda *_: None), sock=its
    )
    for message in (Hello(VERSION, "", 0), Ask(1, 1, Ready("")), Ask(2, 2, Output(1, 1, b"[]")), Told(1)):
        guest.send(encode(message))
    for answer in (Welcome(0, ""), Reply(1, 1), Tell(1, Begin(1, "", b"[]", 0))):
        worker.send(encode(answer))
    worker.close("the rehearsal is over")
    async with asyncio.timeout(10):
        await over.wait()
    guest.close("the rehearsal is over")
