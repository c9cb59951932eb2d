"""A model that follows a script: for tests and demonstrations, with no key and no network, but with all that can go
wrong with a real one.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pydantic_ai import exceptions as x
from pydantic_ai import messages as m
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from perdure.chat.script import Asked, Chooser, Fail, Reply, Script, load_script, script_of

Sleep = Callable[[float], Awaitable[None]]

_PIECE: Final = 4
_REMEMBERED: Final = 1000
_CHARACTERS_A_TOKEN: Final = 4
_FINISH: Final = {"length": "length", "refused": "content_filter"}
_STATUS: Final[dict[str, tuple[Any, int]]] = {
    "rate_limit": (x.ModelRateLimitError, 429),
    "overloaded": (x.ModelOverloadedError, 529),
    "server": (x.ModelServerError, 500),
    "quota": (x.ModelQuotaExceededError, 402),
    "credentials": (x.ModelAuthenticationError, 401),
    "overflow": (x.ModelContextWindowExceededError, 400),
    "rejected": (x.ModelRequestRejectedError, 400),
}


class ScriptedModel(Model[Any]):
    """A model that answers by a script: a `Script`, a list of answers, or a function of what was asked.

    Which answer comes next is read off the conversation, so a process that is started again goes on where it was.
    `sleep` is how it waits between pieces; tests give it a clock of their own. `asked` keeps
    what it was asked last.
    """

    def __init__(
        self,
        script: Script | Sequence[Reply | str] | Chooser,
        *,
        name: str = "script",
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        super().__init__()
        self._script: Script | Chooser = script if isinstance(script, Script) or callable(script) else script_of(script)
        self._name = name
        self._sleep = sleep
        self._tries: Counter[tuple[int, str]] = Counter()
        self.asked: deque[Asked] = deque(maxlen=_REMEMBERED)

    @classmethod
    def from_file(cls, path: str, *, sleep: Sleep = asyncio.sleep) -> ScriptedModel:
        """Return the model of a YAML script; raises `ModelNotAvailable`."""
        return cls(load_script(path), name=path, sleep=sleep)

    @property
    def model_name(self) -> str:
        """The script's name."""
        return self._name

    @property
    def system(self) -> str:
        """The provider's name."""
        return "scripted"

    @property
    def provider(self) -> None:
        """None: nobody is asked."""
        return

    async def request(
        self,
        messages: list[m.ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> m.ModelResponse:
        """Return the answer at once."""
        async with self.request_stream(messages, model_settings, model_request_parameters) as stream:
            async for _ in stream:
                pass
            return stream.get()

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[m.ModelMessage],
        model_settings: ModelSettings | None,  # noqa: ARG002 - a script heeds none
        model_request_parameters: ModelRequestParameters,
        run_context: Any = None,  # noqa: ARG002 - the base's signature
    ) -> AsyncGenerator[StreamedResponse]:
        """Stream the answer at the script's speed, or fail as the script says."""
        asked = _what_is_asked(messages, model_request_parameters)
        self.asked.append(asked)
        reply = self._choose(asked)
        tries = self._count(asked, reply)
        await self._sleep(reply.wait)
        fail = reply.fail if reply.fail is not None and tries <= reply.fail.times else None
        if fail is not None and not fail.after:
            raise _failure(fail, self._name)
        yield _ScriptedStream(
            model_request_parameters,
            _model=self._name,
            _reply=reply,
            _number=asked.answers,
            _end=_early_end(reply, fail, tries, self._name),
            _pause=self._pause(reply),
            _input=sum(len(str(message)) for message in messages) // _CHARACTERS_A_TOKEN,
        )

    def _choose(self, asked: Asked) -> Reply:
        if not isinstance(self._script, Script):
            return self._script(asked)
        reply = self._script.choose(asked)
        if reply is None:
            raise x.UserError(
                f"The script {self._name!r} has no answer number {asked.answers + 1}, and no `otherwise`."
            )
        return reply

    def _count(self, asked: Asked, reply: Reply) -> int:
        key = (asked.answers, repr(reply))
        self._tries[key] += 1
        return self._tries[key]

    def _pause(self, reply: Reply) -> Callable[[int], Awaitable[None]]:
        script_speed = self._script.speed if isinstance(self._script, Script) else None
        speed = reply.speed or script_speed

        async def pause(characters: int) -> None:
            # Even at full speed others get their turn between pieces, as they do with a network in between.
            await self._sleep(characters / speed if speed else 0)

        return pause


def _early_end(reply: Reply, fail: Fail | None, tries: int, name: str) -> tuple[int, Exception] | None:
    """Return after how many characters the stream breaks, and with what."""
    if fail is not None:
        return fail.after, _failure(fail, name)
    if reply.cut is not None and tries == 1:
        return reply.cut, x.ModelConnectionError(name, "The connection was closed.", phase="read", in_stream=True)
    return None


def _failure(fail: Fail, name: str) -> Exception:
    words = f"The script says: {fail.kind}."
    if fail.kind in _STATUS:
        category, status = _STATUS[fail.kind]
        return x.ModelHTTPError.for_category(
            category, status_code=status, model_name=name, body={"message": words}, retry_after=fail.retry_after
        )
    if fail.kind == "timeout":
        return x.ModelTimeoutError(name, words)
    if fail.kind == "malformed":
        return x.UnexpectedModelBehavior(words)
    return x.ModelConnectionError(name, words)


# --- what it is asked


def _what_is_asked(messages: Sequence[m.ModelMessage], parameters: ModelRequestParameters) -> Asked:
    newest = [part for message in _since_last_answer(messages) for part in message.parts]
    return Asked(
        words="\n".join(_words(part) for part in newest if isinstance(part, m.UserPromptPart)),
        results={part.tool_name: str(part.content) for part in newest if isinstance(part, m.ToolReturnPart)},
        answers=sum(message.kind == "response" for message in messages),
        system="\n\n".join(part.content for part in parameters.instruction_parts or ()),
        tools=tuple(tool.name for tool in parameters.function_tools),
    )


def _since_last_answer(messages: Sequence[m.ModelMessage]) -> list[m.ModelRequest]:
    newest: list[m.ModelRequest] = []
    for message in reversed(messages):
        if not isinstance(message, m.ModelRequest):
            break
        newest.insert(0, message)
    return newest


def _words(part: m.UserPromptPart) -> str:
    if isinstance(part.content, str):
        return part.content
    return "\n".join(each for each in part.content if isinstance(each, str))


# --- how it answers


@dataclass
class _ScriptedStream(StreamedResponse):
    """An answer in pieces."""

    _model: str
    _reply: Reply
    _number: int
    _end: tuple[int, Exception] | None
    _pause: Callable[[int], Awaitable[None]]
    _input: int
    _sent: int = field(default=0, init=False)
    _started: datetime = field(default_factory=lambda: datetime.now(UTC), init=False)

    async def _get_event_iterator(self) -> AsyncIterator[m.ModelResponseStreamEvent]:
        self._usage = RequestUsage(input_tokens=self._input)
        for index, (kind, text) in enumerate(self._pieces_of_reply()):
            for event in self._begin(index, kind):
                yield event
            async for piece in self._paced(text):
                for event in self._grow(index, kind, piece):
                    yield event
        if self._end is not None:
            raise self._end[1]
        self.finish_reason = _finish(self._reply)

    def _pieces_of_reply(self) -> Iterator[tuple[str | int, str]]:
        """Return each part's kind (for calls, their place) and its text."""
        if self._reply.think:
            yield "think", self._reply.think
        if self._reply.text:
            yield "text", self._reply.text
        for slot, call in enumerate(self._reply.calls):
            yield slot, call.text

    def _begin(self, index: int, kind: str | int) -> Iterator[m.ModelResponseStreamEvent]:
        if not isinstance(kind, int):
            return
        call = self._reply.calls[kind]
        yield from self._parts_manager.handle_tool_call_delta_events(
            vendor_part_id=index,
            tool_name=call.tool,
            args="",
            tool_call_id=call.id if call.id is not None else f"call_{self._number}_{kind}",
        )

    def _grow(self, index: int, kind: str | int, piece: str) -> Iterator[m.ModelResponseStreamEvent]:
        if kind == "think":
            yield from self._parts_manager.handle_thinking_delta(
                vendor_part_id=index, content=piece, signature="scripted", provider_name="scripted"
            )
        elif kind == "text":
            yield from self._parts_manager.handle_text_delta(vendor_part_id=index, content=piece)
        else:
            yield from self._parts_manager.handle_tool_call_delta_events(vendor_part_id=index, args=piece)

    async def _paced(self, text: str) -> AsyncIterator[str]:
        """Return a text in pieces; where the stream breaks, it breaks, be it in the middle of one."""
        for start in range(0, len(text), _PIECE):
            piece = text[start : start + _PIECE]
            left = len(piece) if self._end is None else self._end[0] - self._sent
            if left < len(piece):
                if left > 0:
                    yield piece[:left]
                assert self._end is not None
                raise self._end[1]
            self._sent += len(piece)
            self._usage.output_tokens = self._sent // _CHARACTERS_A_TOKEN
            yield piece
            await self._pause(len(piece))

    async def close_stream(self) -> None:
        """Nothing is open."""

    @property
    def model_name(self) -> str:
        return self._model

    @property
    def provider_name(self) -> str:
        return "scripted"

    @property
    def provider_url(self) -> None:
        return None

    @property
    def timestamp(self) -> datetime:
        return self._started


def _finish(reply: Reply) -> Any:
    return _FINISH[reply.stop] if reply.stop else "tool_call" if reply.calls else "stop"
