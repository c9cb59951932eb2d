"""What goes between workers and fork servers, in frames as in `wire`."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from perdure.computers.identity import ProcessIdentity
from perdure.hosts.process.guest import Launch
from perdure.hosts.process.wire import Failure


class Spawn(msgspec.Struct, frozen=True, tag="spawn"):
    """Fork a guest."""

    id: int
    launch: Launch


class Spawned(msgspec.Struct, frozen=True, tag="spawned"):
    """The guest was forked; `process` is None if it has ended already."""

    id: int
    process: ProcessIdentity | None


class SpawnFailed(msgspec.Struct, frozen=True, tag="spawn_failed"):
    """No guest was forked; `failure` is the error behind it, if it is one of ours."""

    id: int
    message: str
    failure: Failure | None = None


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """A guest has ended; every client is told. `code` is negative for a signal."""

    run_id: str
    pid: int
    code: int


FromServer: TypeAlias = Spawned | SpawnFailed | Exited

FROM_CLIENT: Final = msgspec.msgpack.Decoder(Spawn)
FROM_SERVER: Final = msgspec.msgpack.Decoder(FromServer)
