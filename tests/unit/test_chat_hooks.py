"""Hooks: what several of them say at one moment, and what becomes of one that fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.chat import entries as e
from perdure.chat.calls import Runnable, decide_calls
from perdure.chat.extensions import HOOKS, Extension, assemble
from perdure.chat.hooks import AskFirst, Block, CallToJudge, Decline, Hooks, Replace
from perdure.chat.results import Finished, finish
from perdure.chat.tools import tool
from perdure.chat.transcript import Request


@tool
async def pay(ctx: Any, amount: int) -> str:
    return str(amount)


def _call() -> Runnable:
    answer = e.AssistantMessage(
        id="a", at=0, parts=(e.ToolCall("c1", "pay", '{"amount": 5}'),), stop="tools", model="m"
    )
    (decision,) = decide_calls(answer, {"pay": pay})
    assert isinstance(decision, Runnable)
    return decision


class Said:
    """Hooks that return what they are told to, in order, and what was reported of them."""

    def __init__(self, moment: str, *values: Any) -> None:
        self.given: list[tuple[Any, ...]] = []
        self.reported: list[tuple[str, str]] = []
        self.hooks = Hooks({moment: [self._hook(value) for value in values]}, self._report)

    def _hook(self, value: Any) -> Any:
        async def hook(*given: Any) -> Any:
            self.given.append(given)
            if isinstance(value, BaseException):
                raise value
            return value

        return hook

    def _report(self, moment: str, error: Exception) -> None:
        self.reported.append((moment, str(error)))


def test_every_moment_that_an_extension_may_hook_is_there() -> None:
    assert all(hasattr(Hooks, moment) for moment in HOOKS)


async def test_requests_pass_through_all_hooks() -> None:
    first, second = Request("one", ()), Request("two", ())
    said = Said("before_request", first, None, ValueError("broken"), "no request", second)
    assert await said.hooks.before_request("view", Request("none", ())) is second
    assert [request.system for _, request in said.given] == ["none", "one", "one", "one", "one"]
    assert said.reported == [
        ("before_request", "broken"),
        ("before_request", "before_request returned a str, not a Request"),
    ]


async def test_a_call_may_be_replaced_and_is_checked_again() -> None:
    said = Said("before_tool", None, Replace({"amount": 7}), Replace({"amount": 8}))
    judged = await said.hooks.before_tool("view", _call())
    assert isinstance(judged, Runnable)
    assert (judged.arguments.values, judged.call.arguments) == ({"amount": 8}, '{"amount": 5}')
    assert [call for _, call in said.given] == [
        CallToJudge("pay", {"amount": 5}, "c1"),
        CallToJudge("pay", {"amount": 5}, "c1"),
        CallToJudge("pay", {"amount": 7}, "c1"),
    ]


async def test_the_first_block_ends_it() -> None:
    said = Said("before_tool", AskFirst("sure?"), Block("too much"), ValueError("never asked"))
    judged = await said.hooks.before_tool("view", _call())
    assert isinstance(judged, Finished)
    assert judged.content == e.text_content("Not run: too much")
    assert judged.diagnostics[0].code == "blocked"
    assert len(said.given) == 2


@pytest.mark.parametrize(
    "broken", [ValueError("oh"), "yes", Replace({"amount": "much"}), Replace({"amount": float("nan")})]
)
async def test_a_guard_that_cannot_say_yes_has_said_no(broken: Any) -> None:
    said = Said("before_tool", broken)
    judged = await said.hooks.before_tool("view", _call())
    assert isinstance(judged, Finished)
    assert judged.outcome == "refused"
    assert len(said.reported) == 1


async def test_a_guard_may_have_a_person_asked() -> None:
    said = Said("before_tool", AskFirst("sure?"), None)
    assert await said.hooks.before_tool("view", _call()) == AskFirst("sure?")


async def test_results_pass_through_all_hooks() -> None:
    said = Said("after_tool", None, "shorter", ValueError("broken"), finish("shortest"))
    assert await said.hooks.after_tool("view", _call(), finish("long")) == finish("shortest")
    assert [result for _, _, result in said.given] == [finish(each) for each in ("long", "long", "shorter", "shorter")]
    assert said.reported == [("after_tool", "broken")]


async def test_the_first_text_to_go_on_with_counts() -> None:
    answer = e.AssistantMessage(id="a", at=0, parts=(), stop="answer", model="m")
    said = Said("on_yield", None, "", "Go on.", "Not this.")
    assert await said.hooks.on_yield("view", answer) == "Go on."
    assert await Said("on_yield", 3).hooks.on_yield("view", answer) is None
    assert await Said("after_response").hooks.on_yield("view", answer) is None


async def test_a_summary_may_be_declined_or_given() -> None:
    assert await Said("before_compact", None, Decline(), "text").hooks.before_compact("view", "e1") == Decline()
    assert await Said("before_compact", "  ", "so far").hooks.before_compact("view", "e1") == "so far"
    assert await Said("before_compact", None).hooks.before_compact("view", "e1") is None


async def test_all_are_told_even_if_one_fails() -> None:
    for moment, given in (("after_response", (None,)), ("after_tools", ([],)), ("on_abort", ())):
        said = Said(moment, ValueError("broken"), None)
        await getattr(said.hooks, moment)("view", *given)
        assert len(said.given) == 2
        assert said.reported == [(moment, "broken")]


async def test_a_cancellation_is_not_a_hook_s_failure() -> None:
    for moment, given in (("before_tool", (_call(),)), ("on_abort", ())):
        said = Said(moment, asyncio.CancelledError())
        with pytest.raises(asyncio.CancelledError):
            await getattr(said.hooks, moment)("view", *given)
        assert not said.reported


async def test_hooks_of_extensions_come_in_their_order() -> None:
    async def first(view: Any, answer: Any) -> str | None:
        return None

    async def second(view: Any, answer: Any) -> str | None:
        return "second"

    made = assemble([Extension("a", hooks={"on_yield": first}), Extension("b", hooks={"on_yield": second})])
    hooks = Hooks(made.hooks, lambda moment, error: None)
    answer = e.AssistantMessage(id="a", at=0, parts=(), stop="answer", model="m")
    assert await hooks.on_yield(None, answer) == "second"
