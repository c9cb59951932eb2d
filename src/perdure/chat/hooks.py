"""Hooks: what extensions say at the moments of a turn, and how what several of them say is put together.

| moment | is given | may return | together |
| --- | --- | --- | --- |
| `before_request` | view, request | another request | one after the other, each on what the one before made |
| `after_response` | view, answer | | all |
| `on_yield` | view, answer | text to go on with | the first text counts |
| `after_tools` | view, results | | all |
| `before_tool` | view, call | `Block`, `Replace`, `AskFirst` | one after the other; the first `Block` ends it |
| `after_tool` | view, call, result | another result | one after the other |
| `on_abort` | view | | all |
| `before_compact` | view, through | `Decline`, or a summary's text | the first that is not None counts |

A hook that raises is reported and passed over, except `before_tool`: a guard that cannot say yes has said no. Hooks may
run again after a crash, until what they led to is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from perdure.chat import entries as e
from perdure.chat.arguments import InvalidArguments
from perdure.chat.calls import Runnable
from perdure.chat.results import Finished, finish, refuse
from perdure.chat.transcript import Request
from perdure.errors import NotJson
from perdure.records import canonical

Hook: TypeAlias = Callable[..., Any]
Report: TypeAlias = Callable[[str, Exception], None]


class Block(msgspec.Struct, frozen=True):
    """A call does not run; the model is told why."""

    reason: str


class Replace(msgspec.Struct, frozen=True):
    """A call runs with other arguments. The transcript keeps what the model sent."""

    arguments: Mapping[str, Any]


class AskFirst(msgspec.Struct, frozen=True):
    """A call waits until a person allows it; `prompt` is what they are asked."""

    prompt: str | None = None


class Decline(msgspec.Struct, frozen=True):
    """A conversation is not summed up now."""


class CallToJudge(msgspec.Struct, frozen=True):
    """What `before_tool` is given: the tool's name and the arguments that it would get, as JSON data."""

    tool: str
    arguments: dict[str, Any]
    id: str


class Hooks:
    """The hooks of a conversation, by moment. `report` hears of those that raise."""

    def __init__(self, hooks: Mapping[str, Sequence[Hook]], report: Report) -> None:
        self._hooks = hooks
        self._report = report

    async def before_request(self, view: Any, request: Request) -> Request:
        """Return the request as the hooks want it."""
        for hook in self._of("before_request"):
            request = await self._attempt("before_request", hook, Request, view, request) or request
        return request

    async def after_response(self, view: Any, answer: e.AssistantMessage) -> None:
        """Tell of an answer that was committed."""
        await self._tell("after_response", view, answer)

    async def on_yield(self, view: Any, answer: e.AssistantMessage) -> str | None:
        """Return the text that the turn goes on with instead of ending, if a hook has one."""
        for hook in self._of("on_yield"):
            text: str | None = await self._attempt("on_yield", hook, str, view, answer)
            if text:
                return text
        return None

    async def after_tools(self, view: Any, results: Sequence[e.ToolResult]) -> None:
        """Tell of a round whose results are all there."""
        await self._tell("after_tools", view, results)

    async def before_tool(self, view: Any, call: Runnable) -> Runnable | Finished | AskFirst:
        """Return the call as it may run, the result of one that may not, or that a person is asked first."""
        asks: AskFirst | None = None
        for hook in self._of("before_tool"):
            given = CallToJudge(call.tool.name, canonical.decode(call.arguments.json), call.call.id)
            try:
                said = await hook(view, given)
                if said is not None and not isinstance(said, Block | Replace | AskFirst):
                    raise TypeError(f"before_tool returned a {type(said).__name__}")
                call = _replaced(call, said) if isinstance(said, Replace) else call
            except Exception as error:
                self._report("before_tool", error)
                return refuse("blocked", "Not run: a check of this call failed. Nothing was done.")
            if isinstance(said, Block):
                return refuse("blocked", f"Not run: {said.reason}")
            asks = asks or (said if isinstance(said, AskFirst) else None)
        return asks or call

    async def after_tool(self, view: Any, call: Runnable, result: Finished) -> Finished:
        """Return the result as the hooks want it: whatever a tool may return, they may."""
        for hook in self._of("after_tool"):
            said = await self._attempt("after_tool", hook, object, view, call, result)
            if said is not None:
                result = said if isinstance(said, Finished) else finish(said)
        return result

    async def on_abort(self, view: Any) -> None:
        """Tell that a person has stopped the work."""
        await self._tell("on_abort", view)

    async def before_compact(self, view: Any, through: str) -> Decline | str | None:
        """Return a summary of the hooks' own, or that there is to be none, or None to have one written."""
        for hook in self._of("before_compact"):
            said: Any = await self._attempt("before_compact", hook, object, view, through)
            if isinstance(said, Decline) or (isinstance(said, str) and said.strip()):
                return said
        return None

    def _of(self, moment: str) -> Sequence[Hook]:
        return self._hooks.get(moment, ())

    async def _tell(self, moment: str, *given: Any) -> None:
        for hook in self._of(moment):
            await self._attempt(moment, hook, object, *given)

    async def _attempt(self, moment: str, hook: Hook, kind: type[Any], *given: Any) -> Any:
        try:
            said = await hook(*given)
            if said is not None and not isinstance(said, kind):
                raise TypeError(f"{moment} returned a {type(said).__name__}, not a {kind.__name__}")
        except Exception as error:
            self._report(moment, error)
            return None
        return said


def _replaced(call: Runnable, said: Replace) -> Runnable:
    """Return the call with other arguments, which must fit as the model's must."""
    try:
        text = canonical.encode(dict(said.arguments), "arguments").decode()
        return Runnable(call.slot, call.call, call.tool, call.tool.arguments(text))
    except (InvalidArguments, NotJson) as error:
        raise ValueError(f"the arguments that replace those of {call.tool.name!r} do not fit: {error}") from None
