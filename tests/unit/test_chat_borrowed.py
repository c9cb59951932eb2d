"""Tools that others have written: raw schemas, and agents of pydantic-ai."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel

from perdure.chat import entries as e
from perdure.chat.arguments import InvalidArguments
from perdure.chat.borrowed import agent_tool
from perdure.chat.calls import Runnable, decide_calls
from perdure.chat.results import finish
from perdure.chat.tools import RawTool, tool
from perdure.errors import DefinitionError

PARAMETERS = {
    "type": "object",
    "properties": {"ctx": {"type": "string"}, "a-b": {}},
    "required": ["ctx"],
    "additionalProperties": False,
}


async def _echo(ctx: Any, arguments: Mapping[str, Any]) -> Any:
    return [ctx, dict(arguments)]


async def test_a_raw_tool_takes_any_names_as_one_mapping() -> None:
    raw = RawTool(_echo, name="echo", description="Says it.", parameters=PARAMETERS, replay="safe", sequential=True)
    assert (raw.schema.name, raw.schema.description, raw.schema.parameters) == ("echo", "Says it.", PARAMETERS)
    assert (raw.replay, raw.sequential) == ("safe", True)
    answer = e.AssistantMessage(
        id="a", at=0, parts=(e.ToolCall("c", "echo", '{"ctx": "x", "a-b": 1}'),), stop="tools", model="m"
    )
    (decision,) = decide_calls(answer, {"echo": raw})
    assert isinstance(decision, Runnable)
    assert await decision.tool.run("here", decision.arguments.values) == ["here", {"ctx": "x", "a-b": 1}]


async def test_an_ordinary_tool_is_run_by_names() -> None:
    @tool
    async def add(ctx: Any, one: int, other: int = 2) -> int:
        return one + other

    assert await add.run(None, add.arguments('{"one": 1}').values) == 3


def test_a_raw_tool_names_what_is_missing_and_unknown() -> None:
    raw = RawTool(_echo, name="echo", parameters=PARAMETERS)
    with pytest.raises(InvalidArguments) as caught:
        raw.arguments('{"b": 1}')
    assert str(caught.value).splitlines()[1:3] == [
        "- ctx: is required and missing",
        "- b: there is no such parameter; leave it out",
    ]
    assert RawTool(_echo, name="echo").arguments('{"any": 1}').values == {"any": 1}


def test_a_raw_tool_needs_the_schema_of_an_object() -> None:
    with pytest.raises(DefinitionError, match="schema of an object"):
        RawTool(_echo, name="echo", parameters={"type": "array"})


class Flight(BaseModel):
    number: str


async def test_an_agent_of_pydantic_ai_is_a_tool() -> None:
    agent = Agent(TestModel(custom_output_text="LH1 flies."), name="research")
    borrowed = agent_tool(agent, replay="safe")
    assert borrowed.name == "research"
    result = finish(await borrowed.run(None, borrowed.arguments('{"prompt": "Which flight?"}').values))
    assert result.content == e.text_content("LH1 flies.")
    assert result.usage is not None
    assert result.usage.total > 0


async def test_an_agent_s_typed_output_is_json() -> None:
    agent = Agent(TestModel(custom_output_args={"number": "LH1"}), output_type=Flight)
    borrowed = agent_tool(agent, name="research", description="Finds flights.")
    result = finish(await borrowed.run(None, {"prompt": "Which?"}))
    assert result.content == (e.Json({"number": "LH1"}),)
    assert borrowed.schema.description == "Finds flights."


async def test_an_agent_that_fails_is_an_error_of_its_tool() -> None:
    def fail(messages: Any, info: Any) -> Any:
        raise ZeroDivisionError("oh")

    borrowed = agent_tool(Agent(FunctionModel(fail), name="broken"))
    with pytest.raises(ZeroDivisionError):
        await borrowed.run(None, {"prompt": "x"})


def test_an_agent_needs_a_name() -> None:
    with pytest.raises(DefinitionError, match="give one"):
        agent_tool(Agent(TestModel()))
