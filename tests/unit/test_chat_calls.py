"""What is done with the calls of an answer."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.chat import calls as c
from perdure.chat import entries as e
from perdure.chat.results import Finished, replay_after_crash
from perdure.chat.tools import Tool, tool


@tool(replay="safe")
async def search(ctx: Any, query: str) -> str:
    return query


@tool(sequential=True)
async def pay(ctx: Any, amount: int) -> str:
    return str(amount)


OFFERED = {"search": search, "pay": pay}


def _decide(*calls: e.ToolCall, stop: e.StopReason = "tools") -> list[c.Decision]:
    answer = e.AssistantMessage(id="a", at=0, parts=(e.Text("so:"), *calls), stop=stop, model="m")
    return c.decide_calls(answer, OFFERED)


def _code(decision: c.Decision) -> str:
    return "" if isinstance(decision, c.Runnable) else decision.result.diagnostics[0].code


def test_good_calls_run_in_their_order() -> None:
    decisions = _decide(e.ToolCall("1", "search", '{"query": "x"}'), e.ToolCall("2", "pay", '{"amount": 3}'))
    assert [(each.slot, each.call.id) for each in decisions] == [(0, "1"), (1, "2")]
    assert isinstance(decisions[1], c.Runnable)
    assert decisions[1].arguments.values == {"amount": 3}


def test_bad_calls_are_refused_and_the_others_run() -> None:
    decisions = _decide(
        e.ToolCall("1", "book", "{}"),
        e.ToolCall("2", "search", "{"),
        e.ToolCall("3", "search", '{"query": "x"}'),
        e.ToolCall("3", "search", '{"query": "x"}'),
        e.ToolCall("4", "pay", '{"amount": "three"}'),
    )
    assert [_code(each) for each in decisions] == [
        "tool_unavailable",
        "invalid_arguments",
        "",
        "duplicate_call",
        "invalid_arguments",
    ]
    refused = decisions[0]
    assert isinstance(refused, c.Refused)
    assert refused.result.content == e.text_content("There is no tool 'book' here. The tools are: pay, search.")
    assert refused.result.outcome == "refused"


def test_a_call_that_the_limit_of_output_cut_is_told_so() -> None:
    decisions = _decide(
        e.ToolCall("1", "search", '{"query": "x"}'), e.ToolCall("2", "search", '{"query": "lo'), stop="length"
    )
    assert [_code(each) for each in decisions] == ["", "cut_off"]


def test_an_answer_of_too_many_calls_runs_only_the_first() -> None:
    decisions = _decide(*(e.ToolCall(str(number), "search", '{"query": ""}') for number in range(130)))
    assert [_code(each) for each in decisions] == [""] * 128 + ["too_many_calls"] * 2


def test_one_sequential_tool_makes_the_round_sequential() -> None:
    one, other = e.ToolCall("1", "search", '{"query": "x"}'), e.ToolCall("2", "pay", '{"amount": 3}')
    assert c.order_of(_decide(one)) == "parallel"
    assert c.order_of(_decide(one, other)) == "sequential"
    assert c.order_of(_decide(one, e.ToolCall("2", "pay", "{"))) == "parallel", "what does not run has no order"


def test_a_round_ends_its_turn_when_all_ask_or_one_hands_over() -> None:
    plain, ending = Finished(()), Finished((), terminate=True)
    assert not c.ends_turn([])
    assert not c.ends_turn([plain, ending])
    assert c.ends_turn([ending, ending])
    assert c.ends_turn([plain, Finished((), handoff="go on")])
    assert c.handed_over([Finished((), handoff="one"), Finished((), handoff="two"), plain]) == "two"
    assert c.handed_over([plain]) is None


@pytest.mark.parametrize(
    ("stored", "now", "runs"),
    [("safe", search, True), ("never", search, False), ("safe", pay, False), ("safe", None, False)],
)
def test_a_call_runs_again_after_a_crash_only_if_both_policies_say_so(
    stored: str, now: Tool | None, runs: bool
) -> None:
    assert replay_after_crash(stored, now) is runs
