"""Steps: the journal of a turn that is resumed rather than interrupted when its process is lost."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

Replay: TypeAlias = Literal["safe", "never"]
StepStatus: TypeAlias = Literal["running", "completed", "failed", "interrupted"]

STEP_NAME_BYTES: Final = 120
STEPS_A_TURN: Final = 10_000
STEPS_AT_ONCE: Final = 64
MEMOS_A_TURN: Final = 10_000
MEMO_BYTES: Final = 64 * 1024


class StepTold(msgspec.Struct, frozen=True):
    """What whoever begins a step is told: what became of it, and how long ago it was begun first, in microseconds."""

    status: StepStatus
    outcome_json: bytes | None
    elapsed: int


class Step(msgspec.Struct, frozen=True):
    """One journaled piece of a turn. What it began with is known by `request`, a digest; `run` is the number of the run
    that works on it or did so last, `outcome_json` its result or its error, once it has ended."""

    turn: int
    name: str
    replay: Replay
    status: StepStatus
    request: bytes
    run: int
    attempts: int
    started_at: int
    ended_seq: int | None = None
    outcome_json: bytes | None = None
