"""What is done with the calls of an answer: which run, which are refused with which words, and in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from perdure.chat import entries as e
from perdure.chat.arguments import Arguments, InvalidArguments
from perdure.chat.results import Finished, refuse
from perdure.chat.tools import Tool

ROUND_CALLS: Final = 128


class Runnable(msgspec.Struct, frozen=True):
    """A call that may run: its place in the answer, its tool, and its arguments as the tool takes them."""

    slot: int
    call: e.ToolCall
    tool: Tool
    arguments: Arguments


class Refused(msgspec.Struct, frozen=True):
    """A call that does not run, and what the model is told instead."""

    slot: int
    call: e.ToolCall
    result: Finished


Decision: TypeAlias = Runnable | Refused


def decide_calls(answer: e.AssistantMessage, offered: Mapping[str, Tool]) -> list[Decision]:
    """Return what is done with each call of an answer, in the order of the calls.

    `offered` are the tools that the request of this answer offered. A call that the limit of output cut, one of a tool
    that was not offered, one whose id the answer has used already, one whose arguments do not fit and one beyond 128
    are refused; the others of the round run all the same.
    """
    decisions: list[Decision] = []
    seen: set[str] = set()
    for slot, call in enumerate(answer.calls):
        decisions.append(_decide(slot, call, answer.stop, offered, seen))
        seen.add(call.id)
    return decisions


def _decide(slot: int, call: e.ToolCall, stop: str, offered: Mapping[str, Tool], seen: set[str]) -> Decision:
    if slot >= ROUND_CALLS:
        return Refused(slot, call, refuse("too_many_calls", f"Not run: one answer may hold {ROUND_CALLS} calls."))
    if call.id in seen:
        # Nothing tells a call that was meant twice from one that was sent twice, and paying twice is the worse mistake.
        return Refused(
            slot,
            call,
            refuse(
                "duplicate_call",
                f"Not run: this answer has a call with the id {call.id!r} already. If you meant another call, make it "
                "again.",
            ),
        )
    tool = offered.get(call.tool)
    if tool is None:
        return Refused(slot, call, refuse("tool_unavailable", _unavailable(call.tool, offered)))
    try:
        arguments = tool.arguments(call.arguments)
    except InvalidArguments as error:
        if stop == "length":
            return Refused(slot, call, refuse("cut_off", CUT_OFF))
        return Refused(slot, call, refuse("invalid_arguments", str(error), "invalid"))
    return Runnable(slot, call, tool, arguments)


CUT_OFF: Final = (
    "Not run: the answer reached its limit of output before this call was complete. Make it again, with less in it."
)


def _unavailable(name: str, offered: Mapping[str, Tool]) -> str:
    names = ", ".join(sorted(offered)) or "none"
    return f"There is no tool {name!r} here. The tools are: {names}."


def order_of(decisions: Sequence[Decision]) -> Literal["parallel", "sequential"]:
    """Tell how the calls of a round run: one sequential tool makes the whole round sequential."""
    is_sequential = any(isinstance(each, Runnable) and each.tool.sequential for each in decisions)
    return "sequential" if is_sequential else "parallel"


def ends_turn(results: Sequence[Finished | e.ToolResult]) -> bool:
    """Tell whether a round ends its turn: all of its results ask for it, or one hands the conversation over."""
    if any(result.handoff is not None for result in results):
        return True
    return bool(results) and all(result.terminate for result in results)


def handed_over(results: Sequence[Finished | e.ToolResult]) -> str | None:
    """Return the text that the conversation begins anew with; the last in the order of the calls wins."""
    return next((result.handoff for result in reversed(results) if result.handoff is not None), None)
