"""The one protocol between a session's driver (in the worker) and its runtime (where user code runs).

The inline host passes these objects by reference; the process host sends them over its link. *Directives* go down and
are idempotent: a turn is begun once however often `Begin` arrives. *Requests* go up and are answered once: by a value
or by an error. A request that is sent again because its answer was lost gets the first answer (turns carry numbers,
outputs their `op`, questions and messages their ids). `turn` is a turn's number in its session.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import msgspec

from perdure.records.definitions import AgentDefinition
from perdure.records.sessions import Issuer, Recovery
from perdure.records.steps import Replay

# --- requests: from the runtime to the driver ----------------------------------------------------------------------


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """`init` has returned; the runtime takes turns."""

    run_id: str


class InitRaised(msgspec.Struct, frozen=True, tag="init_raised"):
    run_id: str
    error_json: bytes


class Output(msgspec.Struct, frozen=True, tag="output"):
    """Answered with the event's sequence number."""

    turn: int
    op: int
    content_json: bytes


class Live(msgspec.Struct, frozen=True, tag="live"):
    turn: int
    slot: str
    content_json: bytes


class OpenMessages(msgspec.Struct, frozen=True, tag="open_messages"):
    turn: int


class MessageBegun(msgspec.Struct, frozen=True, tag="message_begun"):
    turn: int
    message_id: str


class MessageDone(msgspec.Struct, frozen=True, tag="message_done"):
    turn: int
    message_id: str
    rejected: str | None = None


class Question(msgspec.Struct, frozen=True, tag="question"):
    turn: int
    ask_id: str
    prompt_json: bytes
    control_json: bytes


class Withdraw(msgspec.Struct, frozen=True, tag="withdraw"):
    turn: int
    ask_id: str


class StepBegun(msgspec.Struct, frozen=True, tag="step_begun"):
    """Answered with the step's status, its outcome as JSON if it has ended, and when it was begun first."""

    turn: int
    name: str
    replay: Replay
    request: bytes


class StepEnded(msgspec.Struct, frozen=True, tag="step_ended"):
    turn: int
    name: str
    status: str
    outcome_json: bytes


class MemoKept(msgspec.Struct, frozen=True, tag="memo_kept"):
    """Answered with the value that is kept, as JSON."""

    turn: int
    name: str
    value_json: bytes


class Returned(msgspec.Struct, frozen=True, tag="returned"):
    """The handler returned. Answered with the turn's final status once that is committed."""

    turn: int
    result_json: bytes
    response_json: bytes | None = None


class Raised(msgspec.Struct, frozen=True, tag="raised"):
    """The handler raised. Answered as `Returned` is."""

    turn: int
    error_json: bytes


class Released(msgspec.Struct, frozen=True, tag="released"):
    """The handler of a turn that was stopped has let go."""

    turn: int


Request: TypeAlias = (
    Ready
    | InitRaised
    | Output
    | Live
    | OpenMessages
    | MessageBegun
    | MessageDone
    | Question
    | Withdraw
    | StepBegun
    | StepEnded
    | MemoKept
    | Returned
    | Raised
    | Released
)

# --- directives: from the driver to the runtime --------------------------------------------------------------------


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """Run the handler for a turn, unless that turn or a later one was begun before."""

    turn: int
    id: str
    input_json: bytes
    created_at: int


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Cancel the handler of a turn: the turn has ended already. Answered by `Released` when it has let go."""

    turn: int
    reason: str


class Deliver(msgspec.Struct, frozen=True, tag="deliver"):
    turn: int
    message_id: str
    content_json: bytes


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    """A question has its answer, or was cancelled (`answer_json` is None)."""

    turn: int
    ask_id: str
    answer_json: bytes | None = None
    responder: Issuer | None = None


Directive: TypeAlias = Begin | Stop | Deliver | Answered

# --- what a runtime is started with --------------------------------------------------------------------------------


class RunSpec(msgspec.Struct, frozen=True):
    """All that a host needs to start or find a session's runtime.

    `epoch` is the session's fence: a runtime obeys the highest that it has met. `source` is the folder of the
    deployment's project, `log_path` the file that takes the run's stdout, stderr and logging. `computer_path` holds the
    Computer's `workspace` and `run` folders; both are None for the inline host.
    """

    session_id: str
    run_id: str
    number: int
    agent: AgentDefinition
    deployment_id: str
    source: str
    log_path: str
    epoch: int
    recovery: Recovery
    key: str | None = None
    reason: str | None = None
    computer_id: str | None = None
    computer_path: str | None = None


class Driver(Protocol):
    """What a host calls in the worker."""

    async def handle(self, request: Request) -> Any:
        """Commit what the runtime asks and return the answer; raises `PerdureError` for a refusal."""
        ...

    def lost(self, reason: str) -> None:
        """Say, once, that the runtime is gone without having been asked to go; `reason` is for people."""
        ...


class Link(Protocol):
    """What a runtime calls."""

    async def call(self, request: Request) -> Any:
        """Return the driver's answer; raises `PerdureError` for a refusal. Waits while the link is down."""
        ...


class Guest(Protocol):
    """A running session runtime, as its driver sees it."""

    def tell(self, directive: Directive) -> None:
        """Give a directive; it is delivered in order, and again after a reconnection where that matters."""
        ...

    async def stop(self, grace: float) -> None:
        """End the runtime and all of its processes; returns when they are gone. `lost` is not called."""
        ...

    async def hibernate(self) -> str:
        """Stop the processes where they stand; returns what was done, in words. Raises `NotSupported`."""
        ...

    async def resume(self) -> str:
        """Let hibernated processes go on; returns once the runtime answers again."""
        ...

    async def detach(self) -> None:
        """Let go without stopping it, so that another worker may adopt it."""
        ...


class Host(Protocol):
    """A place where runtimes live."""

    async def start(self, spec: RunSpec, driver: Driver) -> Guest:
        """Start a runtime; its `init` runs at once and `Ready` or `InitRaised` follows. Raises `ProcessStartFailed`."""
        ...

    async def adopt(self, spec: RunSpec, driver: Driver, *, hibernated: bool) -> Guest | None:
        """Find the living runtime of a run whose worker was lost; None when it is gone.

        A runtime that is found sends its unanswered requests again and says nothing more of `init` when that is done:
        the host repeats `Ready` for it, which changes nothing where it was committed before.
        """
        ...

    async def close(self) -> None:
        """Let go of all that belongs to the worker; runtimes in processes of their own live on."""
        ...
