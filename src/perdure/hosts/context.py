"""What handlers see: the turn, and the context around it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from perdure.errors import NotSupported
from perdure.records.content import ContentLike, JsonPart, Part, TextPart, text_of

if TYPE_CHECKING:
    from perdure.hosts.journal import Journal
    from perdure.hosts.turns import TurnExecution

T = TypeVar("T")


@dataclass(frozen=True)
class SessionInfo:
    """The session that a handler works for. `key` is the name that its creator gave it, if any."""

    id: str
    agent: str
    key: str | None


@dataclass(frozen=True)
class RunInfo:
    """The period of execution: one process of the session. Numbers count from 1."""

    id: str
    number: int


@dataclass(frozen=True)
class RecoveryInfo:
    """How this process came to be.

    `initial` for the session's first process, `reconstructed` for any later one: what `init` returned before is gone,
    and `reason` says why (`process_lost`, `slept`, `code_changed` …).
    """

    kind: Literal["initial", "reconstructed"]
    reason: str | None


@dataclass(frozen=True)
class ComputerInfo:
    """The session's Computer. `workspace` is its durable folder, which is also the working directory."""

    id: str
    workspace: Path


@dataclass(frozen=True)
class InitContext:
    """The context of `init`, which runs once per process, before its first turn."""

    session: SessionInfo
    run: RunInfo
    recovery: RecoveryInfo
    deployment_id: str
    computer: ComputerInfo | None


@dataclass(frozen=True)
class TurnContext(InitContext):
    """The context of a turn. `init_result` is the very object that `init` returned in this process.

    `step`, `memo` and `sleep` are for agents with `recovery="resume"`, whose handler is called again after a loss.
    """

    init_result: Any = None
    _journal: Journal | None = field(default=None, repr=False, compare=False)

    async def step(
        self,
        name: str,
        function: Callable[..., Awaitable[T] | T],
        *args: Any,
        replay: Literal["safe", "never"] = "never",
        **kwargs: Any,
    ) -> T:
        """Do `function(*args, **kwargs)` as one journaled step and return its result, as JSON gives it back.

        That it begins is committed before it does; its result is before it is returned, and is what it returns ever
        after. When the process is lost in between, a `safe` step runs again; one that is `never` replayed, the default,
        raises `StepInterrupted`: it may have happened. A function that raises ends its step for good with
        `StepFailed`, and so does a result that cannot be stored: what is not JSON or larger than 1 MiB.

        Steps are known by name and order: the second `charge` is another one than the first. Called again after a loss
        with other arguments, a step raises `StepMismatch`. At most 64 are at work at once, and 10,000 in a turn.
        """
        return await self._of_a_resumable_turn().step(name, function, args, kwargs, replay)

    async def memo(self, name: str, value: Callable[[], Awaitable[T] | T] | T) -> T:
        """Return the value that was kept under the name first, by this call or by one before a loss.

        It is committed before it is returned: an idempotency key for an outside API is the same for ever. `value` is
        the candidate, or a function that makes it; at most 64 KiB of JSON.
        """
        return await self._of_a_resumable_turn().memo(name, value)

    async def sleep(self, duration: str) -> None:
        """Wait for a time such as `90s`, counting from when the wait was first begun, whatever was lost meanwhile."""
        await self._of_a_resumable_turn().sleep(duration)

    def _of_a_resumable_turn(self) -> Journal:
        if self._journal is None:
            raise NotSupported(
                "This agent is interrupted when its process is lost, so it keeps no journal. Nothing was done; define "
                'it with recovery="resume".'
            )
        return self._journal


@dataclass(frozen=True)
class Option:
    """One option of a choice. `value` is what the program gets; by default the id."""

    id: str
    label: str
    value: Any = None
    description: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the option as its control describes it."""
        plain = {"id": self.id, "label": self.label, "value": self.id if self.value is None else self.value}
        return plain if self.description is None else {**plain, "description": self.description}


AnswerControl: TypeAlias = "Literal['text'] | Iterable[Option | str] | Mapping[str, Any]"


@dataclass(frozen=True)
class Answer:
    """A person's answer. `value` is the answer as JSON; `by` says who gave it."""

    value: Any
    by_kind: str
    by_id: str

    @property
    def text(self) -> str:
        """The text of a text answer, or the custom text of a choice."""
        if isinstance(self.value, str):
            return self.value
        return str(self.value.get("text") or "")

    @property
    def selected(self) -> list[Any]:
        """The values of the selected options, in order of declaration."""
        if isinstance(self.value, str):
            return []
        return [choice["value"] for choice in self.value.get("selected", [])]


@dataclass(frozen=True)
class Message:
    """A steering message that reached the running turn."""

    id: str
    content: list[Part]

    @property
    def text(self) -> str:
        """The joined text parts."""
        return text_of(self.content)


MessageHandler: TypeAlias = Callable[[Message], Awaitable[None]]


class Output:
    """Where a turn shows its progress. All writes are durable and visible once their await returns."""

    def __init__(self, execution: TurnExecution) -> None:
        self._execution = execution

    async def write(self, content: ContentLike) -> int:
        """Append content to the session's log and return the event's sequence number.

        Raises `ContentTooLarge` beyond 256 KiB or 64 parts, `OutputBudgetExceeded` beyond 8 MiB a turn, `NotJson` for
        JSON parts that cannot be stored. A refused write changes nothing and does not by itself fail the turn.
        """
        return await self._execution.write(content)

    async def pipe(self, fragments: AsyncIterable[ContentLike]) -> int:
        """Write fragments in order as they come and return how many; those before a failing one stay."""
        count = 0
        async for fragment in fragments:
            await self.write(fragment)
            count += 1
        return count

    async def live(self, content: ContentLike, slot: str = "output") -> None:
        """Overwrite a live slot: what is being written just now. Watchers see the newest; the log keeps none of it."""
        await self._execution.write_live(slot, content)


@dataclass(frozen=True)
class Turn:
    """One accepted input, in the hands of its handler."""

    id: str
    sequence: int
    input: list[Part]
    created_at: int
    output: Output
    _execution: TurnExecution = field(repr=False)

    @property
    def text(self) -> str:
        """The joined text parts of the input."""
        return text_of(self.input)

    async def respond(self, content: ContentLike) -> None:
        """Stage the one answer for people; it becomes visible only when the turn completes.

        Raises `ResponseAlreadyStaged` the second time. Without a call there is no response;
        an empty text is one.
        """
        self._execution.respond(content)

    async def ask(self, prompt: ContentLike, answer: AnswerControl = "text") -> Answer:
        """Ask a person and wait for the answer.

        `answer` is "text", or options of which one may be chosen, or a control in JSON for more (`multiple`,
        `allow_text`). A cancelled wait withdraws the question.
        """
        return await self._execution.ask(prompt, answer)

    def on_message(self, handler: MessageHandler) -> asyncio.Task[None]:
        """Take messages that are sent to this turn while it runs, one at a time, in order.

        Before this is called no message is accepted. Raise `MessageRejected` in the handler to reject one. The returned
        task ends when messages are accepted; awaiting it is optional. May be used as a decorator.
        """
        return self._execution.on_message(handler)


__all__ = [
    "Answer",
    "AnswerControl",
    "ComputerInfo",
    "InitContext",
    "JsonPart",
    "Message",
    "MessageHandler",
    "Option",
    "Output",
    "RecoveryInfo",
    "RunInfo",
    "SessionInfo",
    "TextPart",
    "Turn",
    "TurnContext",
]
