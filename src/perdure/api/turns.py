"""Turns: accepted inputs and what became of them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from perdure.api.base import Id, Instant, Omitted, Wire
from perdure.api.content import Content
from perdure.records.sessions import TurnStatus


class Failure(Wire):
    """Why a turn failed. Codes are not a closed list; `type` is the class of what a handler raised."""

    code: str
    message: str
    type: Omitted[str] = None


class Turn(Wire):
    """One accepted input and what became of it.

    `result` is what the handler returned and is present (maybe null) exactly when the turn completed; `reason` says why
    it was interrupted: `interrupt`, `deadline`, `process_lost` or `process_stopped`.
    """

    id: Id
    session_id: Id
    sequence: int = Field(ge=1)
    status: TurnStatus
    input: Content
    result: Any = None
    response: Omitted[Content] = None
    error: Omitted[Failure] = None
    reason: Omitted[str] = None
    run_id: Omitted[Id] = None
    created_at: Instant
    started_at: Omitted[Instant] = None
    ended_at: Omitted[Instant] = None


class TurnPage(Wire):
    """Turns in order of sequence. No `next_after` means that there are no more now."""

    turns: list[Turn]
    next_after: Omitted[int] = None


class WaitResult(Wire):
    """`settled` with the ended turn, or `timeout` with the turn as it is now; a timeout cancels nothing."""

    status: Literal["settled", "timeout"]
    turn: Turn
