"""What all requests of one server share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from perdure.engine.service import Service
from perdure.records.ids import new_id
from perdure.server.stopping import Stopping

HEARTBEAT_SECONDS: Final = 15.0


class Identity(msgspec.Struct, frozen=True):
    """Which server this is: its version, what it was started as, and the id of this start."""

    version: str
    mode: str = "server"
    instance_id: str = msgspec.field(default_factory=new_id)


class Context(msgspec.Struct, frozen=True):
    """The service that answers, and what operations need besides. `description` makes the OpenAPI document's JSON."""

    service: Service
    identity: Identity
    description: Callable[[], bytes]
    stopping: Stopping
    heartbeat: float = HEARTBEAT_SECONDS
