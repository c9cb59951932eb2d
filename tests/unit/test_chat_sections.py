"""The system prompt in pieces, and what an agent has of its extensions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.chat import entries as e
from perdure.chat import sections as s
from perdure.chat import transcript as t
from perdure.chat.documents import Document
from perdure.chat.extensions import Extension, Selection, assemble, select
from perdure.chat.sections import Section, section
from perdure.chat.tools import Tool, tool
from perdure.errors import DefinitionError

# --- sections


@section("plan")
async def plan_section(view: Any) -> str | None:
    steps = view["steps"]
    return "\n".join(f"- {step}" for step in steps) or None


ROLE = section("role", "You are kind.\n")


async def _rendered(view: Any, shown: Mapping[str, str] | None = None) -> s.Rendered:
    broken = section("broken", lambda _: 1 / 0)  # type: ignore[arg-type,return-value]
    return await s.render([ROLE, plan_section, broken], view, shown or {})


async def test_sections_are_tagged_and_in_order() -> None:
    rendered = await _rendered({"steps": ["fly", "land"]})
    assert list(rendered.sections.items()) == [
        ("role", "<role>\nYou are kind.\n</role>"),
        ("plan", "<plan>\n- fly\n- land\n</plan>"),
    ]


async def test_a_section_that_has_nothing_to_say_is_left_out() -> None:
    assert list((await _rendered({"steps": []})).sections) == ["role"]
    assert (await s.render([section("x", "  ")], None, {})).sections == {}


async def test_tags_can_be_others_or_none() -> None:
    rendered = await s.render([section("a", "A", tag="b"), section("c", "C", tag=False)], None, {})
    assert rendered.sections == {"a": "<b>\nA\n</b>", "c": "C"}


async def test_a_section_that_fails_says_what_it_said_and_is_reported() -> None:
    rendered = await _rendered({"steps": []}, {"broken": "before"})
    assert rendered.sections["broken"] == "before"
    assert rendered.failures == {"broken": "ZeroDivisionError: division by zero"}
    wrong = await s.render([section("n", lambda _: 3), section("big", "x" * 200_000)], None, {})  # type: ignore[arg-type,return-value]
    assert list(wrong.failures) == ["n", "big"]
    assert "rendered a int" in wrong.failures["n"]
    assert "the limit is 131072" in wrong.failures["big"]


@pytest.mark.parametrize("key", ["", "Plan", "1x", "a b", "instructions", "x" * 70])
def test_keys_that_cannot_be_tags_are_refused(key: str) -> None:
    with pytest.raises(DefinitionError, match="is refused"):
        section(key, "text")


# --- what is told


def _change(before: s.Told, now: dict[str, str], tools: tuple[str, ...] = (), whole: bool = False) -> Any:
    return s.change(before, now, tools, "id", 0, whole=whole)


def test_only_what_changed_is_told() -> None:
    first = _change(s.Told(), {"role": "R", "plan": "P"}, ("b", "a"))
    assert (first.sections, first.tools_added, first.whole) == ({"role": "R", "plan": "P"}, ("a", "b"), False)
    told = s.Told().then(first)
    assert _change(told, {"role": "R", "plan": "P"}, ("a", "b")) is None
    second = _change(told, {"role": "R", "files": "F"}, ("a", "c"))
    assert second.sections == {"files": "F", "plan": None}
    assert (second.order, second.tools_added, second.tools_removed) == ((), ("c",), ("b",))


def test_another_order_is_told_without_texts() -> None:
    told = s.Told({"role": "R", "plan": "P"})
    moved = _change(told, {"plan": "P", "role": "R"})
    assert (moved.sections, moved.order) == ({}, ("plan", "role"))
    between = _change(told, {"role": "R", "new": "N", "plan": "P"})
    assert (between.sections, between.order) == ({"new": "N"}, ("role", "new", "plan"))


def test_after_a_cut_all_is_told() -> None:
    told = s.Told({"role": "R"}, frozenset({"a"}))
    whole = _change(told, {"role": "R"}, ("a",), whole=True)
    assert (whole.sections, whole.whole, whole.tools_added) == ({"role": "R"}, True, ("a",))


prompts = st.dictionaries(st.sampled_from("abcd"), st.sampled_from(["1", "2"]), max_size=4)
steps = st.lists(st.tuples(prompts, st.sets(st.sampled_from("xyz")), st.booleans()), max_size=6)


@given(steps)
def test_what_was_told_adds_up_to_what_is_so(changes: list[tuple[dict[str, str], set[str], bool]]) -> None:
    entries: list[e.Entry] = []
    for now, tools, whole in changes:
        made = s.change(s.told(entries), now, tools, str(len(entries)), 0, whole=whole)
        entries += [made] if made is not None else []
        told = s.told(entries)
        assert list(told.sections.items()) == list(now.items())
        assert told.tools == tools
        assert s.change(told, now, tools, "x", 0) is None
        assert t.build(entries).system == "\n\n".join(now.values())


# --- extensions


@tool(replay="safe")
async def search(ctx: Any, query: str) -> str:
    return query


class Plan(Document, kind="travel.plan"):
    steps: list[str] = []  # noqa: RUF012 - pydantic copies it


async def before_tool(call: Any) -> None: ...


def _travel(**more: Any) -> Extension:
    return Extension("travel", **{"tools": [search], "sections": [ROLE], "documents": [Plan], **more})


def test_extensions_are_put_together_in_their_order() -> None:
    async def also(call: Any) -> None: ...

    guard = Extension("guard", hooks={"before_tool": also}, sections=[plan_section])
    made = assemble([_travel(hooks={"before_tool": before_tool}), guard])
    assert made.tools == {"search": search}
    assert [each.key for each in made.sections] == ["role", "plan"]
    assert made.documents == {"travel.plan": Plan}
    assert made.hooks == {"before_tool": (before_tool, also)}


def _other(name: str = "other", **more: Any) -> Extension:
    return Extension(name, **more)


@pytest.mark.parametrize(
    ("extensions", "words"),
    [
        ([_travel(), _travel()], "Two extensions are named 'travel'"),
        ([_travel(), _other(tools=[search])], r"Two tools are named 'search': in extension 'travel' and in 'other'"),
        ([_travel(), _other(sections=[ROLE])], "Two sections are named 'role'"),
        ([_travel(sections=[ROLE, ROLE])], "Two sections are named 'role'"),
        ([_travel(tools=[search, search])], "Two tools are named 'search'"),
    ],
)
def test_what_two_extensions_dispute_is_refused(extensions: list[Extension], words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        assemble(extensions)


def test_a_tool_may_take_the_place_of_another_and_keeps_it() -> None:
    async def better(ctx: Any, query: str) -> str:
        return query

    mine = Tool(better, name="search")
    made = assemble([_travel(tools=[search, Tool(better)]), _other(tools=[mine], replaces="search")])
    assert list(made.tools) == ["search", "better"]
    assert made.tools["search"] is mine


def test_a_wrapper_decorates_whichever_tool_there_is() -> None:
    def logged(inner: Tool) -> Tool:
        async def run(ctx: Any, query: str) -> str:
            return f"logged {query}"

        return Tool(run, name=inner.name, replay=inner.replay)

    made = assemble([_travel(), _other(wraps={"search": logged, "absent": logged})])
    assert made.tools["search"].replay == "safe"
    assert made.tools["search"] is not search
    with pytest.raises(DefinitionError, match="must return a tool of that name"):
        assemble([_travel(), _other(wraps={"search": lambda _: Tool(search.function, name="renamed")})])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "My Ext"}, "is refused"),
        ({"tools": [print]}, "make it with @tool"),
        ({"sections": ["role"]}, r"make it with section"),
        ({"hooks": {"before_lunch": before_tool}}, "no moment 'before_lunch'"),
        ({"hooks": {"before_tool": print}}, "must be a coroutine function"),
    ],
)
def test_extensions_that_make_no_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(DefinitionError, match=words):
        Extension(**{"name": "ok", **options})


def test_a_conversation_may_use_less_of_its_agent() -> None:
    async def extra(ctx: Any) -> None: ...

    all_of = [_travel(), _other(tools=[Tool(extra)], sections=[plan_section])]
    assert list(select(all_of, Selection()).tools) == ["search", "extra"]
    assert list(select(all_of, Selection(extensions=("other", "uninstalled"))).tools) == ["extra"]
    assert list(select(all_of, Selection(without_extensions=("other",))).tools) == ["search"]
    assert list(select(all_of, Selection(tools=("extra", "gone"))).tools) == ["extra"]
    less = select(all_of, Selection(without_tools=("search",)))
    assert list(less.tools) == ["extra"]
    assert [each.key for each in less.sections] == ["role", "plan"]
    assert isinstance(less.sections[0], Section)
