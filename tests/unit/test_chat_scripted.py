"""Scripted models: every answer, and every way of failing, that a real one has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure.chat import entries as e
from perdure.chat import transcript as t
from perdure.chat.deltas import Begun, Delta, Grew
from perdure.chat.errors import ModelNotAvailable
from perdure.chat.failures import ModelFailed
from perdure.chat.models import Generated, Models, generate
from perdure.chat.script import Asked, Call, Fail, Reply, Script, load_script
from perdure.chat.scripted import ScriptedModel
from perdure.chat.tools import ToolSchema
from perdure.errors import DefinitionError


class Clock:
    """Time that passes when a model waits for it."""

    def __init__(self) -> None:
        self.now = 0.0

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class Talk:
    """A conversation with a scripted model."""

    def __init__(self, script: Any, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()
        self.model = ScriptedModel(script, sleep=self.clock.sleep)
        self.entries: list[e.Entry] = []
        self.heard: list[tuple[float, Delta]] = []

    async def ask(self, words: str = "") -> Generated:
        if words:
            self._add(e.UserMessage(id=self._id(), at=0, content=e.text_content(words)))
        request = t.build(self.entries)
        answer = await generate(
            self.model, request, listen=lambda delta: self.heard.append((self.clock.now, delta)), tools=[SEARCH]
        )
        self._add(answer.entry(self._id(), 0, "scripted:x"))
        return answer

    def results(self, *texts: str) -> None:
        asked = self.entries[-1]
        assert isinstance(asked, e.AssistantMessage)
        for slot, (call, text) in enumerate(zip(asked.calls, texts, strict=True)):
            result = {"answers": asked.id, "slot": slot, "call": call.id, "tool": call.tool}
            self._add(e.ToolResult(id=self._id(), at=0, content=e.text_content(text), **result))  # type: ignore[arg-type]

    def _id(self) -> str:
        return f"e{len(self.entries)}"

    def _add(self, entry: e.Entry) -> None:
        self.entries.append(entry)


SEARCH = ToolSchema("search", "", {"type": "object", "properties": {}})


def _text(answer: Generated) -> str:
    return "".join(part.text for part in answer.parts if isinstance(part, e.Text))


async def test_answers_come_in_their_order_and_calls_in_parallel() -> None:
    calls = (Call(tool="search", arguments={"q": "x"}), Call(tool="search", arguments="{broken", id="mine"))
    talk = Talk(["Hello.", Reply(think="Hm.", text="Looking.", calls=calls), "Found."])
    assert (await talk.ask("hi")).stop == "answer"
    looking = await talk.ask("find it")
    assert looking.stop == "tools"
    assert looking.parts[1:] == (
        e.Text("Looking."),
        e.ToolCall("call_1_0", "search", '{"q":"x"}'),
        e.ToolCall("mine", "search", "{broken"),
    )
    talk.results("one", "two")
    assert _text(await talk.ask()) == "Found."
    assert talk.model.asked[-1] == Asked(words="", results={"search": "two"}, answers=2, tools=("search",))


async def test_another_process_goes_on_where_the_first_was() -> None:
    script = ["One.", "Two."]
    talk = Talk(script)
    await talk.ask("hi")
    talk.model = ScriptedModel(script)
    assert _text(await talk.ask("and?")) == "Two."


async def test_an_answer_may_answer_something_in_particular() -> None:
    script = Script(
        answers=(
            Reply(text="Booked.", after="search", when="ok"),
            Reply(text="No seat.", after="search"),
            Reply(text="", when="book", calls=(Call(tool="search"),)),
            Reply(text="First."),
        ),
        otherwise=Reply(text="Pardon?"),
    )
    talk = Talk(script)
    assert _text(await talk.ask("hello")) == "First."
    await talk.ask("please BOOK it")
    talk.results("ok")
    assert _text(await talk.ask()) == "Booked."
    await talk.ask("book another")
    talk.results("full")
    assert _text(await talk.ask()) == "No seat."
    assert _text(await talk.ask("hm")) == "Pardon?"


async def test_a_function_may_answer() -> None:
    talk = Talk(lambda asked: Reply(text=f"{asked.words}! {asked.system}"))
    talk.entries.append(e.SectionsChange(id="s", at=0, sections={"role": "Kind."}, whole=True))
    assert _text(await talk.ask("hi")) == "hi! Kind."


async def test_a_script_that_has_ended_is_an_error_that_is_not_tried_again() -> None:
    talk = Talk(["One."])
    await talk.ask("hi")
    with pytest.raises(ModelFailed, match="has no answer number 2") as caught:
        await talk.ask("more")
    assert not caught.value.failure.is_retryable


async def test_it_streams_at_its_speed_by_the_clock_that_it_is_given() -> None:
    talk = Talk([Reply(text="abcdefghij", speed=2, wait=3)])
    await talk.ask("hi")
    assert [(at, type(delta)) for at, delta in talk.heard[:3]] == [(3, Begun), (5, Grew), (7, Grew)]
    assert talk.clock.now == 8


async def test_a_stream_is_cut_once_wherever_the_script_says() -> None:
    talk = Talk([Reply(text="abcdefghij", calls=(Call(tool="search", arguments={"q": "x"}),), cut=14)])
    with pytest.raises(ModelFailed) as caught:
        await talk.ask("hi")
    assert caught.value.failure.kind == "connection"
    assert caught.value.parts == (e.Text("abcdefghij"), e.ToolCall("call_0_0", "search", '{"q"'))
    talk.entries.clear()
    assert _text(await talk.ask("hi")) == "abcdefghij"


@pytest.mark.parametrize(
    ("kind", "retryable"),
    [
        ("rate_limit", True),
        ("overloaded", True),
        ("server", True),
        ("connection", True),
        ("timeout", True),
        ("malformed", True),
        ("overflow", False),
        ("quota", False),
        ("credentials", False),
        ("rejected", False),
    ],
)
async def test_it_fails_as_the_script_says_and_then_answers(kind: Any, retryable: bool) -> None:
    talk = Talk([Reply(text="abcdef", fail=Fail(kind=kind, times=2, retry_after=3))])
    for _ in range(2):
        with pytest.raises(ModelFailed) as caught:
            await talk.ask("hi")
        talk.entries.clear()
        assert (caught.value.failure.kind, caught.value.failure.is_retryable) == (kind, retryable)
    assert caught.value.failure.retry_after in (3_000_000, None)
    assert _text(await talk.ask("hi")) == "abcdef"


async def test_it_fails_in_the_middle_too() -> None:
    talk = Talk([Reply(text="abcdef", fail=Fail(kind="overloaded", after=3))])
    with pytest.raises(ModelFailed) as caught:
        await talk.ask("hi")
    assert (caught.value.failure.kind, caught.value.parts) == ("overloaded", (e.Text("abc"),))


async def test_limits_and_refusals_can_be_scripted() -> None:
    talk = Talk([Reply(text="Once", stop="length"), Reply(text="I", stop="refused")])
    assert (await talk.ask("hi")).stop == "length"
    assert (await talk.ask("hi")).stop == "refused"


# --- YAML


def _write(folder: Path, text: str) -> str:
    path = folder / "demo.yaml"
    path.write_text(text, "utf-8")
    return str(path)


async def test_a_yaml_file_is_a_model(tmp_path: Path) -> None:
    path = _write(
        tmp_path,
        """
speed: 1000
otherwise: Pardon?
answers:
  - Hello there.
  - text: Looking.
    calls:
      - tool: search
        arguments: {q: "x"}
  - when: book|reserve
    text: Booked.
    fail: {kind: overloaded, times: 2}
""",
    )
    model = await Models().get(f"scripted:{path}")
    answer = await generate(model, t.build([e.UserMessage(id="u", at=0, content=e.text_content("hi"))]))
    assert _text(answer) == "Hello there."
    script = load_script(path)
    assert script.answers[2].fail == Fail(kind="overloaded", times=2)
    assert script.otherwise == Reply(text="Pardon?")


def test_a_list_is_a_script_too(tmp_path: Path) -> None:
    assert load_script(_write(tmp_path, "- One.\n- {text: Two.}\n")).answers == (Reply(text="One."), Reply(text="Two."))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("answers: [{txt: x}]", "unknown field `txt`"),
        ("answers: {", "says something wrong"),
        ("3", "says something wrong"),
        ("answers: [{when: '('}]", "no regular expression"),
        ("answers: [{text: x, speed: 0}]", "must be above 0"),
        ("answers: [{calls: [{tol: x}]}]", "answers"),
    ],
)
def test_what_is_wrong_with_a_script_is_said(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ModelNotAvailable, match=words):
        load_script(_write(tmp_path, text))


def test_a_script_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelNotAvailable, match="No such file"):
        load_script(str(tmp_path / "none.yaml"))


def test_a_script_in_python_is_checked_too() -> None:
    with pytest.raises(DefinitionError, match="no regular expression"):
        ScriptedModel([Reply(when="(")])
