"""The table of all operations."""

from __future__ import annotations

from typing import Final

from perdure.server import asks, deployments, events, health, runs, sessions, turns
from perdure.server.operations import Operation

OPERATIONS: Final[tuple[Operation, ...]] = (
    *sessions.OPERATIONS,
    *turns.OPERATIONS,
    *events.OPERATIONS,
    *asks.OPERATIONS,
    *runs.OPERATIONS,
    *deployments.OPERATIONS,
    *health.OPERATIONS,
)
