"""Names of models, drafts of answers, and when a failed call is made again."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai import messages as m
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel
from tests.unit import chat_strategies as strategies

from perdure.chat import entries as e
from perdure.chat import messages
from perdure.chat import transcript as t
from perdure.chat.deltas import Became, Begun, Draft, Grew
from perdure.chat.entries import Failure
from perdure.chat.errors import ModelNotAvailable
from perdure.chat.failures import ModelFailed
from perdure.chat.models import Models, generate, make_model
from perdure.chat.retries import RetryPolicy, retry_at

SECOND = 1_000_000


# --- names


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("anthropic:claude-opus-5-5", "AnthropicModel"),
        ("openai:gpt-5", "OpenAIResponsesModel"),
        ("openai-chat:gpt-5", "OpenAIChatModel"),
        ("google:gemini-3-pro", "GoogleModel"),
    ],
)
async def test_names_become_models_with_their_own_address_and_key(name: str, kind: str) -> None:
    models = Models()
    model = await models.get(name, base_url="http://127.0.0.1:9/v1", api_key="k")
    assert kind in {each.__name__ for each in type(model).__mro__}
    assert str(model.base_url).startswith("http://127.0.0.1:9")
    assert await models.get(name, base_url="http://127.0.0.1:9/v1", api_key="k") is model
    assert await models.get(name, base_url="http://127.0.0.1:9/v1", api_key="other") is not model
    await models.close()


async def test_a_model_of_one_s_own_is_taken_as_it_is() -> None:
    model = TestModel()
    assert await Models().get(model) is model


@pytest.mark.parametrize("name", ["", "claude", "anthropic:", ":x", "nobody:model"])
def test_names_that_mean_nothing_are_refused(name: str) -> None:
    with pytest.raises(ModelNotAvailable):
        make_model(name, api_key="k")


def test_a_missing_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(ModelNotAvailable, match="ANTHROPIC_API_KEY"):
        make_model("anthropic:claude-opus-5-5")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("anthropic", "pydantic_ai.models.anthropic"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "pydantic_ai.providers.anthropic", raising=False)
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(ModelNotAvailable, match=r"pip install 'perdure\[anthropic\]'"):
        make_model("anthropic:claude-opus-5-5", api_key="k")


# --- custom models


async def test_a_custom_model_answers_without_stating_a_reason() -> None:
    async def speak(asked: Any, info: Any) -> Any:
        yield "Hello "
        yield "there"

    answer = await generate(FunctionModel(stream_function=speak), t.build([]))
    assert (answer.parts, answer.stop) == ((e.Text("Hello there"),), "answer")
    assert answer.usage.cost is None


async def test_a_custom_model_that_raises_has_failed() -> None:
    async def speak(asked: Any, info: Any) -> Any:
        yield "Hello "
        raise ZeroDivisionError("oh")

    with pytest.raises(ModelFailed) as caught:
        await generate(FunctionModel(stream_function=speak), t.build([]))
    assert caught.value.failure == Failure("malformed", "oh")
    assert caught.value.parts == (e.Text("Hello "),)


# --- there and back


@given(strategies.transcripts)
def test_answers_survive_the_way_to_the_library_and_back(entries: list[e.Entry]) -> None:
    stored = [e.decode(e.encode(entry)) for entry in entries]
    request = t.build(stored)
    there = messages.to_messages(request)
    for message, ours in zip(there, request.messages, strict=True):
        assert message.kind == ("request" if isinstance(ours, t.Said) else "response")
        if isinstance(message, m.ModelResponse) and isinstance(ours, t.Answered):
            parts, origin = messages.from_response(message)
            assert parts == ours.parts
            assert origin == ours.origin
    assert messages.to_messages(request) == there, "equal requests are equal"


@given(strategies.transcripts)
def test_a_conversation_that_grows_is_translated_the_same(entries: list[e.Entry]) -> None:
    growing, translator = t.Transcript(), messages.Translator()
    for entry in entries:
        growing.add(e.decode(e.encode(entry)))
        request = growing.request()
        assert translator.messages(request) == messages.to_messages(request)


def test_what_was_translated_is_not_translated_again() -> None:
    growing = t.Transcript()
    translator = messages.Translator()
    for number in range(3):
        growing.add(e.UserMessage(id=f"u{number}", at=0, content=e.text_content("hi")))
        answer = e.AssistantMessage(id=f"a{number}", at=0, parts=(e.Text("ho"),), stop="answer", model="m")
        growing.add(answer)
    before = translator.messages(growing.request())
    growing.add(e.UserMessage(id="new", at=0, content=e.text_content("more")))
    after = translator.messages(growing.request())
    assert len(before) == len(after) == 7
    assert all(one is other for one, other in zip(before[:-1], after[:-1], strict=True))


def test_parts_that_only_a_provider_understands_come_back_whole() -> None:
    call = m.NativeToolCallPart("web_search", {"q": "x"}, "srv_1", provider_name="anthropic", provider_details={"a": 1})
    found = m.NativeToolReturnPart("web_search", [{"url": "u"}], "srv_1", provider_name="anthropic")
    image = m.FilePart(m.BinaryImage(b"png", media_type="image/png"), id="f", provider_name="google")
    parts = [messages.from_part(part) for part in (call, found, image)]
    entry = e.AssistantMessage(id="a", at=0, parts=(*parts, e.Text("so")), stop="answer", model="m")
    stored = e.decode(e.encode(entry))
    assert stored == entry
    there = messages.to_messages(t.build([stored]))[1]
    assert [part.part_kind for part in there.parts] == ["builtin-tool-call", "builtin-tool-return", "file", "text"]
    back = there.parts[0]
    assert isinstance(back, m.NativeToolCallPart)
    assert (back.tool_name, back.args, back.tool_call_id, back.provider_details) == (
        "web_search",
        {"q": "x"},
        "srv_1",
        {"a": 1},
    )
    file = there.parts[2]
    assert isinstance(file, m.FilePart)
    assert (file.content.data, file.id, file.provider_name) == (b"png", "f", "google")


def test_what_is_no_json_in_what_a_provider_attached_does_no_harm() -> None:
    details = {"logprob": float("-inf"), "raw": b"\xff", "thing": object, "surrogate": "\ud800"}
    part = messages.from_part(m.TextPart("hi", provider_name="x", provider_details=details))
    e.decode(e.encode(e.AssistantMessage(id="a", at=0, parts=(part,), stop="answer", model="m")))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(None, ""), ("", ""), ('{"a": 1', '{"a": 1'), ({"b": 1, "a": [2]}, '{"a":[2],"b":1}'), ("\ud800", "\ufffd")],
)
def test_arguments_are_kept_as_text(arguments: Any, text: str) -> None:
    assert messages.arguments_text(arguments) == text


# --- drafts


def test_a_draft_grows_and_becomes() -> None:
    draft = Draft()
    draft.apply(Begun(0, e.Thinking("h")))
    draft.apply(Grew(0, "m"))
    draft.apply(Begun(1, e.Text("a")))
    draft.apply(Grew(1, "b"))
    draft.apply(Begun(2, e.ToolCall("c", "t", "{")))
    assert draft.parts() == (e.Thinking("hm"), e.Text("ab"), e.ToolCall("c", "t", "{"))
    draft.apply(Grew(2, "}"))
    draft.apply(Became(0, e.Thinking("hm", "signed")))
    draft.apply(Grew(7, "of nothing"))
    assert draft.parts() == (e.Thinking("hm", "signed"), e.Text("ab"), e.ToolCall("c", "t", "{}"))
    assert draft.text() == "ab"


# --- when it is tried again


def _failure(kind: Any = "overloaded", retry_after: int | None = None) -> Failure:
    return Failure(kind, "x", retry_after)


def test_waits_double_up_to_a_cap_and_end() -> None:
    policy = RetryPolicy(retries=8)
    waits = [retry_at(policy, _failure(), attempt, 0, 0.5) for attempt in range(1, 10)]
    assert [wait and wait // 100_000 for wait in waits] == [20, 40, 80, 160, 320, 600, 600, 600, None]


def test_a_provider_s_own_wait_is_kept_and_spread_only_upward() -> None:
    early = retry_at(RetryPolicy(), _failure(retry_after=30 * SECOND), 1, 5, 0)
    late = retry_at(RetryPolicy(), _failure(retry_after=30 * SECOND), 1, 5, 0.999)
    assert early == 5 + 30 * SECOND
    assert late is not None
    assert early < late < early + 2 * SECOND


def test_what_cannot_succeed_later_and_what_takes_too_long_is_not_tried_again() -> None:
    assert retry_at(RetryPolicy(), _failure("credentials"), 1, 0, 0) is None
    assert retry_at(RetryPolicy(), _failure("overflow"), 1, 0, 0) is None
    assert retry_at(RetryPolicy(), _failure("rate_limit", 3601 * SECOND), 1, 0, 0) is None
    assert retry_at(RetryPolicy(retries=0), _failure(), 1, 0, 0) is None


@given(
    st.integers(1, 200),
    st.integers(0, 2**50),
    st.floats(0, 1, exclude_max=True),
    st.none() | st.integers(0, 3600 * SECOND),
)
def test_a_deadline_is_never_early_and_never_far(attempt: int, now: int, chance: float, asked: int | None) -> None:
    policy = RetryPolicy(retries=200)
    found = retry_at(policy, _failure(retry_after=asked), attempt, now, chance)
    assert found is not None
    assert found - now >= max(asked or 0, policy.base // 2)
    assert found - now <= (asked or 0) + policy.cap * 1.5
