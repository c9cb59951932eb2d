"""What a handler's write must satisfy: the fence, a running turn, the turn's output budget."""

from __future__ import annotations

from perdure.errors import OutputBudgetExceeded, StaleFence, TurnNotRunning
from perdure.records.content import TURN_OUTPUT_BYTES
from perdure.records.sessions import ActiveTurn, SessionHead
from perdure.rules.commands import FencedCommand


def check_fence(head: SessionHead, command: FencedCommand) -> None:
    """Refuse a write of a worker that does not own the session any more."""
    if command.fence != head.fence:
        raise StaleFence(head.id)


def running(head: SessionHead, turn: int) -> ActiveTurn:
    """Return the active turn if it has that number and a process works on it, else refuse."""
    if head.active is None or head.active.number != turn or head.run is None:
        raise TurnNotRunning(f"{turn} of session {head.id}")
    return head.active


def spend(active: ActiveTurn, size: int) -> int:
    """Return the turn's output size after `size` more bytes, or refuse."""
    total = active.size + size
    if total > TURN_OUTPUT_BYTES:
        raise OutputBudgetExceeded(total, TURN_OUTPUT_BYTES)
    return total
