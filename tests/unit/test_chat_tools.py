"""Tools: what a function becomes for a model, and what is done with whatever the model sends back."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, field_validator

from perdure.chat.arguments import InvalidArguments
from perdure.chat.tools import Tool, tool
from perdure.errors import DefinitionError

if TYPE_CHECKING:
    from nowhere import Context


class Step(BaseModel):
    text: str
    title: str = "untitled"
    done: bool = False


class Even(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def _is_even(cls, number: int) -> int:
        if number % 2:
            raise RuntimeError("odd things happen")
        return number


@tool(replay="safe")
async def update_plan(
    ctx: Context,
    steps: list[Step],
    json: str,
    kind: Literal["draft", "final"] = "draft",
    count: Annotated[int, Field(ge=1, description="How many.")] = 3,
    copy: dict[str, int] | None = None,
) -> Context:
    """Save your plan.

    Call it again whenever a step is done.

    Args:
        steps: What is to be done,
            in order.
        json: A parameter whose name pydantic has taken.

    Returns:
        Nothing that a model reads.
    """
    return ctx


@tool
async def pay(ctx: Any, amount: Decimal, when: Annotated[str, Field(default="now")]) -> str:
    return f"{amount} {when}"


@tool
async def ping(ctx: Any) -> str:
    return "pong"


async def _named(ctx: Any, even: Even) -> None: ...


def _refusal(used: Tool, text: str) -> str:
    with pytest.raises(InvalidArguments) as caught:
        used.arguments(text)
    return str(caught.value)


# --- what a model is told


def test_schema_and_words_come_from_signature_and_docstring() -> None:
    schema = update_plan.schema
    assert schema.name == "update_plan"
    assert schema.description == "Save your plan.\n\nCall it again whenever a step is done."
    assert schema.parameters["required"] == ["steps", "json"]
    assert schema.parameters["additionalProperties"] is False
    properties = schema.parameters["properties"]
    assert properties["steps"] == {
        "description": "What is to be done, in order.",
        "items": {"$ref": "#/$defs/Step"},
        "type": "array",
    }
    assert properties["kind"] == {"default": "draft", "enum": ["draft", "final"], "type": "string"}
    assert properties["count"] == {"default": 3, "description": "How many.", "minimum": 1, "type": "integer"}


def test_titles_are_left_out_but_fields_of_that_name_stay() -> None:
    step = update_plan.schema.parameters["$defs"]["Step"]
    assert step["properties"]["title"] == {"default": "untitled", "type": "string"}
    assert "title" not in step


def test_a_tool_without_parameters_and_words() -> None:
    assert ping.schema.parameters == {"additionalProperties": False, "properties": {}, "type": "object"}
    assert ping.schema.description == ""
    assert ping.arguments("").values == {}


def test_name_and_description_may_be_given() -> None:
    named = Tool(_named, name="named-2", description="Says nothing.")
    assert (named.schema.name, named.schema.description) == ("named-2", "Says nothing.")


@pytest.mark.parametrize(
    "text",
    [
        "Find it.\n\nParameters\n----------\nwhat : str\n    The thing.\n",
        "Find it.\n\n:param what: The thing.\n",
        "Find it.\n\nArgs:\n    what: The thing.\n",
    ],
)
def test_docstrings_of_three_styles_are_read(text: str) -> None:
    async def find(ctx: Any, what: str) -> None: ...

    find.__doc__ = text
    schema = Tool(find).schema
    assert schema.description == "Find it."
    assert schema.parameters["properties"]["what"]["description"] == "The thing."


# --- what a function must be to be a tool


def _blocking(ctx: Any) -> None: ...


async def _contextless(query: str) -> None: ...


async def _empty() -> None: ...


async def _anything(ctx: Any, *queries: str) -> None: ...


async def _keywords(ctx: Any, **queries: str) -> None: ...


async def _untyped(ctx, query) -> None: ...  # type: ignore[no-untyped-def]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (_blocking, "must be a coroutine function"),
        (_contextless, "must take the context first"),
        (_empty, "must take the context first"),
        (_anything, "a model calls by name"),
        (_keywords, "a model calls by name"),
        (_untyped, "'query' has no type"),
    ],
)
def test_functions_that_cannot_be_tools_are_refused(function: Any, words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        tool(function)


@pytest.mark.parametrize("name", ["", "has space", "x" * 65, "ünï"])
def test_names_that_providers_refuse_are_refused(name: str) -> None:
    with pytest.raises(DefinitionError, match="cannot be named"):
        Tool(_named, name=name)


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(DefinitionError, match="replay='maybe'"):
        Tool(_named, replay="maybe")  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="approval=3"):
        Tool(_named, approval=3)  # type: ignore[arg-type]


def test_a_type_that_is_not_there_at_run_time_is_refused() -> None:
    async def lost(ctx: Any, where: Context) -> None: ...

    with pytest.raises(DefinitionError, match="not under TYPE_CHECKING"):
        _ = Tool(lost).schema


def test_a_type_without_a_schema_is_refused() -> None:
    class Engine: ...

    async def start(ctx: Any, engine: Any) -> None: ...

    start.__annotations__["engine"] = Engine
    with pytest.raises(DefinitionError, match="no JSON schema"):
        _ = Tool(start).schema


# --- what a model sends


def test_arguments_become_values() -> None:
    found = update_plan.arguments('{"steps": [{"text": "fly", "done": true}], "json": "{}"}')
    assert found.values == {"steps": [Step(text="fly", done=True)], "json": "{}"}
    assert found.json == b'{"json":"{}","steps":[{"done":true,"text":"fly"}]}'


async def test_defaults_of_both_kinds_reach_the_function() -> None:
    values = pay.arguments('{"amount": "12.340"}').values
    assert await pay(None, **values) == "12.340 now"


def test_every_mistake_is_named_so_that_a_model_can_mend_it() -> None:
    sent = '{"steps": [{"text": 1, "done": "maybe"}], "count": 0, "kind": "x", "colour": "red"}'
    assert _refusal(update_plan, sent).splitlines() == [
        "The arguments do not fit the tool's parameters:",
        "- steps.0.text: Input should be a valid string, not 1",
        '- steps.0.done: Input should be a valid boolean, unable to interpret input, not "maybe"',
        "- json: is required and missing",
        "- kind: Input should be 'draft' or 'final', not \"x\"",
        "- count: Input should be greater than or equal to 1, not 0",
        "- colour: there is no such parameter; leave it out",
        "Correct them and call again.",
    ]


def test_a_hundred_mistakes_are_not_all_named() -> None:
    sent = "{" + ",".join(f'"x{number}": 1' for number in range(100)) + "}"
    lines = _refusal(ping, sent).splitlines()
    assert len(lines) == 11
    assert lines[-2] == "- and 92 more"


def test_a_large_wrong_value_is_not_repeated_whole() -> None:
    assert len(_refusal(update_plan, '{"steps": "' + "x" * 100_000 + '", "json": ""}')) < 400


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ('{"amount": ', "is not JSON"),
        ('{"amount": NaN}', "contains NaN"),
        ('{"amount": -Infinity}', "contains -Infinity"),
        ('{"amount": 1e999}', r"at \$.amount it is inf"),
        ("[1]", "are an array"),
        ('"1"', "are text"),
        ("null", "are null"),
        ("{'amount': 1}", "is not JSON"),
        ('{"amount": 1}{"amount": 2}', "is not JSON"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "."),
        ('{"amount": ' + "9" * 30 + "}", "does not fit 64 bits"),
        ('{"amount": "' + "9" * 1_100_000 + '"}', "the limit is 1048576"),
    ],
)
def test_what_is_not_a_json_object_is_refused(sent: str, words: str) -> None:
    with pytest.raises(InvalidArguments, match=words):
        pay.arguments(sent)


def test_a_validator_that_breaks_is_told_to_the_model() -> None:
    words = _refusal(Tool(_named), '{"even": {"number": 3}}')
    assert words == "The arguments could not be checked: RuntimeError: odd things happen."


@given(st.text() | st.sampled_from(["\ud800", '{"amount": "\ud800"}', '{"amount": "\\ud800"}', "{}\x00"]))
def test_any_text_fits_or_is_refused(text: str) -> None:
    for used in (ping, pay, update_plan):
        with suppress(InvalidArguments):
            assert isinstance(used.arguments(text).values, dict)


# --- who must agree


def test_approval_by_flag_and_by_predicate() -> None:
    def above_ten(arguments: Mapping[str, Any]) -> bool:
        return bool(arguments["amount"] > 10)

    assert not Tool(_named).needs_approval({})
    assert Tool(_named, approval=True).needs_approval({})
    asking = Tool(_named, approval=above_ten)
    assert asking.needs_approval({"amount": 11})
    assert not asking.needs_approval({"amount": 9})
    assert asking.needs_approval({}), "a predicate that fails asks"
