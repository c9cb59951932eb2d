"""Commands: what can be asked of a session.

A command carries what a rule cannot know itself: ids, content as canonical JSON bytes, who asks. Commands of the
outside may name the `environment` that they are scoped to; commands of a worker carry the `fence` that they were
given. `turn` is a turn's number in its session.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from perdure.records.sessions import ComputerState, HostKind, Issuer, Limits
from perdure.records.steps import Replay


class Idempotency(msgspec.Struct, frozen=True):
    """An operation's identity: `scope` names caller, operation, target and key; `request` is what was asked."""

    key: str
    scope: bytes
    request: bytes


class Permit(msgspec.Struct, frozen=True):
    """A worker's leave to start a turn in the very commit that admits it.

    `run_id` lets it begin a run where there is none: one that is ready at once for an inline agent (without `init`),
    one that starts for an agent with a process of its own, on the machine `home`.
    """

    worker: str
    run_id: str | None = None
    home: str | None = None


class NewTurn(msgspec.Struct, frozen=True):
    id: str
    input_json: bytes


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all commands."""

    session_id: str
    environment: str | None = None
    idempotency: Idempotency | None = None


class FencedCommand(Command, frozen=True, kw_only=True):
    """Base of what a worker does by what it knows of a session: it is refused once another has claimed it since."""

    fence: int


class WorkerCommand(FencedCommand, frozen=True, kw_only=True):
    """Base of what only a session's owner may do. `start` lets the commit start the next queued turn."""

    start: bool = True


# --- from outside --------------------------------------------------------------------------------------------------


class CreateSession(Command, frozen=True, kw_only=True):
    """Create a session, with its first turn if there is an input. `reuse` makes it get-or-create."""

    agent: str
    deployment: str
    host: HostKind
    limits: Limits
    key: str | None = None
    computer: ComputerState | None = None
    turn: NewTurn | None = None
    permit: Permit | None = None
    resumes: bool = False


class Enqueue(Command, frozen=True, kw_only=True):
    turn: NewTurn
    permit: Permit | None = None


class Send(Command, frozen=True, kw_only=True):
    """Steer the running turn if it takes messages, else enqueue."""

    turn: NewTurn
    message_id: str
    permit: Permit | None = None


class SendToTurn(Command, frozen=True, kw_only=True):
    turn_id: str
    message_id: str
    content_json: bytes


class Interrupt(Command, frozen=True, kw_only=True):
    control_id: str
    hold_id: str
    issuer: Issuer
    message: str | None = None


class Resume(Command, frozen=True, kw_only=True):
    control_id: str
    hold_id: str
    issuer: Issuer


class Close(Command, frozen=True, kw_only=True):
    control_id: str
    issuer: Issuer


class Cancel(Command, frozen=True, kw_only=True):
    control_id: str
    issuer: Issuer


class AnswerAsk(Command, frozen=True, kw_only=True):
    ask_id: str
    answer_json: bytes
    response_id: str
    issuer: Issuer


# --- from the engine -----------------------------------------------------------------------------------------------


class Tick(Command, frozen=True, kw_only=True):
    """The session's wake time has come: do what is due."""

    hold_id: str


class StartRun(FencedCommand, frozen=True, kw_only=True):
    """Claim the session for a worker and begin a run; bumps the fence. `home` is the machine of the worker."""

    worker: str
    run_id: str
    deployment: str
    limits: Limits
    home: str | None = None
    resumes: bool = False


class AdoptRun(FencedCommand, frozen=True, kw_only=True):
    """Claim a session whose process outlived its worker; bumps the fence, keeps the run."""

    worker: str
    run_id: str


class RunReady(WorkerCommand, frozen=True, kw_only=True):
    """The process is connected and has run `init`; starts the next queued turn in the same commit."""

    run_id: str


class InitFailed(WorkerCommand, frozen=True, kw_only=True):
    run_id: str
    error_json: bytes
    hold_id: str


class StopRun(WorkerCommand, frozen=True, kw_only=True):
    """Say that the run's process is about to be ended, and why.

    With `if_idle` only when nothing is to be done; with `though_queued` too, turns that only wait do not count.
    """

    run_id: str
    reason: str
    if_idle: bool = False
    though_queued: bool = False


class Sleep(WorkerCommand, frozen=True, kw_only=True):
    """End the run of an idle inline session, which has no process to wait for; nothing when it is not idle.

    With `though_queued`, turns that only wait do not count; they go on in the next run.
    """

    run_id: str
    reason: str
    though_queued: bool = False


class PlaceHold(Command, frozen=True, kw_only=True):
    """Hold the session for a reason of the system's."""

    hold_id: str
    reason: str
    message: str


class RunStopped(FencedCommand, frozen=True, kw_only=True):
    """The run's process has ended as was asked."""

    run_id: str
    reason: str


class RunLost(FencedCommand, frozen=True, kw_only=True):
    """The run's process was lost: it died, or its worker did and it cannot be adopted.

    Claims the session for the worker that says so; bumps the fence, so that nothing of the run counts any more.
    """

    worker: str
    run_id: str
    reason: str
    hold_id: str


class SetResidency(WorkerCommand, frozen=True, kw_only=True):
    """The Computer changed between running and hibernated."""

    residency: str
    note: str | None = None


# --- from a running handler ----------------------------------------------------------------------------------------


class StartTurn(WorkerCommand, frozen=True, kw_only=True):
    """Start the next queued turn; does nothing when none may start."""


class WriteOutput(WorkerCommand, frozen=True, kw_only=True):
    turn: int
    op: int
    content_json: bytes


class WriteLive(WorkerCommand, frozen=True, kw_only=True):
    """Overwrite a live slot: the newest partial state of something unfinished; not an event."""

    turn: int
    slot: str
    content_json: bytes


class TakeMessages(WorkerCommand, frozen=True, kw_only=True):
    turn: int


class MessageStarted(WorkerCommand, frozen=True, kw_only=True):
    turn: int
    message_id: str


class MessageSettled(WorkerCommand, frozen=True, kw_only=True):
    turn: int
    message_id: str
    rejected: str | None = None


class CreateAsk(WorkerCommand, frozen=True, kw_only=True):
    turn: int
    ask_id: str
    prompt_json: bytes
    control_json: bytes


class WithdrawAsk(WorkerCommand, frozen=True, kw_only=True):
    turn: int
    ask_id: str


class BeginStep(WorkerCommand, frozen=True, kw_only=True):
    """Intend a step of a resumable turn, or hear what became of it. `request` is a digest of what it begins with."""

    turn: int
    name: str
    replay: Replay
    request: bytes


class EndStep(WorkerCommand, frozen=True, kw_only=True):
    """Commit a step's outcome: its result, or its error."""

    turn: int
    name: str
    status: Literal["completed", "failed"]
    outcome_json: bytes


class KeepMemo(WorkerCommand, frozen=True, kw_only=True):
    """Keep a value of a resumable turn; the first one under a name stands."""

    turn: int
    name: str
    value_json: bytes


class CompleteTurn(WorkerCommand, frozen=True, kw_only=True):
    """The handler returned: commit result and response, and start the next queued turn in the same commit."""

    turn: int
    result_json: bytes
    response_json: bytes | None = None


class FailTurn(WorkerCommand, frozen=True, kw_only=True):
    turn: int
    error_json: bytes


class HandlerReleased(WorkerCommand, frozen=True, kw_only=True):
    """The handler of a turn that was ended from outside has let go."""

    turn: int
