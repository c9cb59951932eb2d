"""Models over the wire: servers on the loopback speak the protocols of Anthropic and OpenAI, well and badly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit import chat_strategies as strategies
from tests.unit.provider_server import (
    Provider,
    Refusal,
    Stream,
    anthropic,
    google,
    openai_chat,
    openai_responses,
    provider,
    sse,
)

from perdure.chat import entries as e
from perdure.chat import transcript as t
from perdure.chat.deltas import Begun, Delta, Draft, Grew
from perdure.chat.failures import ModelFailed
from perdure.chat.models import Generated, Models, Options, generate
from perdure.chat.tools import ToolSchema

SEARCH = ToolSchema("search", "Find it.", {"type": "object", "properties": {"q": {"type": "string"}}})
ARGUMENTS = '{"q": "a ü b"}'


@dataclass(frozen=True)
class Protocol:
    """One protocol: how its models are named, and how it says an answer with a text and a call, or fails."""

    name: str
    model: str
    base: str
    say: Callable[[str, str | None], list[bytes]]
    error: Callable[[str, str], Any]

    def __str__(self) -> str:
        return self.name


def _say_anthropic(text: str, arguments: str | None) -> list[bytes]:
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    if arguments is not None:
        blocks.append({"type": "tool_use", "id": "toolu_1", "name": "search", "input": arguments})
    return anthropic(*blocks, stop="end_turn" if arguments is None else "tool_use")


def _say_chat(text: str, arguments: str | None) -> list[bytes]:
    return openai_chat(text, [] if arguments is None else [("toolu_1", "search", arguments)])


def _say_responses(text: str, arguments: str | None) -> list[bytes]:
    items: list[dict[str, Any]] = []
    if text:
        part = {"type": "output_text", "text": text, "annotations": []}
        items.append({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]})
    if arguments is not None:
        call = {"type": "function_call", "id": "fc_1", "call_id": "toolu_1", "name": "search"}
        items.append({**call, "arguments": arguments, "status": "completed"})
    return openai_responses(*items)


def _say_google(text: str, arguments: str | None) -> list[bytes]:
    return google(text, [] if arguments is None else [("toolu_1", "search", arguments)])


def _google_error(kind: str, message: str) -> Any:
    return {"error": {"code": 400, "status": kind.upper(), "message": message}}


def _anthropic_error(kind: str, message: str) -> Any:
    return {"type": "error", "error": {"type": kind, "message": message}}


def _openai_error(kind: str, message: str) -> Any:
    return {"error": {"type": kind, "code": kind, "message": message, "param": None}}


ANTHROPIC = Protocol("anthropic", "anthropic:claude-opus-5-5", "", _say_anthropic, _anthropic_error)
CHAT = Protocol("chat", "openai-chat:gpt-4o", "/v1", _say_chat, _openai_error)
RESPONSES = Protocol("responses", "openai:gpt-5", "/v1", _say_responses, _openai_error)
GOOGLE = Protocol("google", "google:gemini-2.5-pro", "", _say_google, _google_error)
ALL = [ANTHROPIC, CHAT, RESPONSES, GOOGLE]
PROTOCOLS = pytest.mark.parametrize("protocol", ALL, ids=str)


class Line:
    """A model of a protocol, connected to a provider, and what was heard while it answered."""

    def __init__(self, protocol: Protocol, served: Provider, model: Any) -> None:
        self.protocol, self.served, self._model = protocol, served, model
        self.heard: list[Delta] = []
        self.grown = asyncio.Event()

    def will(self, *answers: Stream | Refusal | Sequence[bytes]) -> None:
        self.served.answers.clear()
        self.served.answers.extend(each if isinstance(each, Stream | Refusal) else Stream(each) for each in answers)

    async def ask(self, *entries: e.Entry, options: Options | None = None) -> Generated:
        self.heard.clear()
        asked = entries or (e.UserMessage(id="u", at=0, content=e.text_content("hello")),)
        return await generate(
            self._model, t.build(asked), tools=[SEARCH], options=options or Options(), listen=self._listen
        )

    async def fails(self, *entries: e.Entry, options: Options | None = None) -> ModelFailed:
        with pytest.raises(ModelFailed) as caught:
            await self.ask(*entries, options=options)
        return caught.value

    def _listen(self, delta: Delta) -> None:
        self.heard.append(delta)
        self.grown.set()

    def draft(self) -> tuple[e.AnswerPart, ...]:
        draft = Draft()
        for delta in self.heard:
            draft.apply(delta)
        return draft.parts()


@asynccontextmanager
async def connected(protocol: Protocol) -> AsyncIterator[Line]:
    models = Models()
    async with provider() as served:
        try:
            model = await models.get(protocol.model, base_url=served.url + protocol.base, api_key="key-1")
            yield Line(protocol, served, model)
        finally:
            await models.close()


def _texts(parts: Sequence[e.AnswerPart]) -> list[str]:
    return [part.text for part in parts if isinstance(part, e.Text)]


def _split(pieces: list[bytes], within: bytes, at: int) -> list[bytes]:
    """Return the pieces up to `at` bytes into the one that holds `within`."""
    for number, piece in enumerate(pieces):
        if (found := piece.find(within)) >= 0:
            return [*pieces[:number], piece[: found + at]]
    raise AssertionError(within)


# --- what goes well


@PROTOCOLS
async def test_text_and_a_call_stream_in(protocol: Protocol) -> None:
    async with connected(protocol) as line:
        line.will(protocol.say("Let me look, José.", ARGUMENTS))
        answer = await line.ask()
    assert _texts(answer.parts) == ["Let me look, José."]
    (call,) = [part for part in answer.parts if isinstance(part, e.ToolCall)]
    assert (call.id, call.tool, json.loads(call.arguments)) == ("toolu_1", "search", {"q": "a ü b"})
    assert answer.stop == "tools"
    assert (answer.usage.input, answer.usage.output, answer.usage.cache_read) in [(140, 25, 40), (100, 25, 40)]
    assert answer.usage.cost is not None
    assert 0 < float(answer.usage.cost) < 1
    assert sum(isinstance(delta, Grew) for delta in line.heard) >= 3, "it came in pieces"
    assert line.draft() == answer.parts


@PROTOCOLS
async def test_an_answer_without_calls_ends_the_round(protocol: Protocol) -> None:
    async with connected(protocol) as line:
        line.will(protocol.say("Done.", None))
        answer = await line.ask()
        (asked,) = line.served.asked
    assert (answer.stop, _texts(answer.parts)) == ("answer", ["Done."])
    assert any("key-1" in value for value in asked.headers.values())
    assert asked.body.get("stream", "stream" in asked.path)
    assert "search" in json.dumps(asked.body["tools"])


@PROTOCOLS
async def test_what_came_goes_back_and_the_provider_takes_it(protocol: Protocol) -> None:
    question = e.UserMessage(id="u", at=0, content=(e.Text("hello"), e.Json({"a": 1}), e.File("image/png", b"png")))
    async with connected(protocol) as line:
        line.will(protocol.say("Looking.", ARGUMENTS), protocol.say("Found.", None))
        first = (await line.ask(question)).entry("a", 1, protocol.model)
        stored = e.decode(e.encode(first))
        result = e.ToolResult(
            id="r", at=2, answers="a", slot=0, call="toolu_1", tool="search", content=e.text_content("42")
        )
        prompt = e.SectionsChange(id="s", at=0, sections={"role": "Be kind."}, whole=True)
        second = await line.ask(prompt, question, stored, result)
        body = json.dumps(line.served.asked[1].body)
    assert _texts(second.parts) == ["Found."]
    for shown in ("Be kind.", "42", "Looking.", "toolu_1", '{\\"a\\":1}', "cG5n"):
        assert shown in body, shown


async def test_a_result_that_is_an_error_is_said_to_be_one() -> None:
    asked = e.AssistantMessage(
        id="a",
        at=0,
        parts=(e.ToolCall("c1", "search", "{}"), e.ToolCall("c2", "search", "{}")),
        stop="tools",
        model="m",
    )
    texts = [("done", "42"), ("failed", "no")]
    results = [
        e.ToolResult(
            id=text, at=0, answers="a", slot=slot, call="", tool="", content=e.text_content(text), outcome=outcome
        )
        for slot, (outcome, text) in enumerate(texts)  # type: ignore[assignment]
    ]
    async with connected(ANTHROPIC) as line:
        line.will(_say_anthropic("Sorry.", None))
        await line.ask(asked, *results)
        blocks = line.served.asked[0].body["messages"][2]["content"]
    assert [block.get("is_error", False) for block in blocks] == [False, True]


async def test_reasoning_goes_back_to_anthropic_with_its_signature() -> None:
    thought = {"type": "thinking", "thinking": "Hm, flights.", "signature": "c2lnbmVk"}
    hidden = {"type": "redacted_thinking", "data": "ZW5jcnlwdGVk"}
    call = {"type": "tool_use", "id": "toolu_1", "name": "search", "input": "{}"}
    begun = [{"type": "content_block_start", "index": 0, "content_block": hidden}, {"type": "content_block_stop"}]
    pieces = anthropic(thought, call, stop="tool_use")
    pieces[2:2] = [sse({**event, "index": 9}, event["type"]) for event in begun]  # type: ignore[arg-type]
    async with connected(ANTHROPIC) as line:
        line.will(pieces, _say_anthropic("Done.", None))
        answer = (await line.ask()).entry("a", 1, ANTHROPIC.model)
        await line.ask(e.decode(e.encode(answer)))
        blocks = line.served.asked[1].body["messages"][1]["content"]
    assert sorted(block["type"] for block in blocks) == ["redacted_thinking", "thinking", "tool_use"]
    assert thought in blocks
    assert hidden in blocks


async def test_encrypted_reasoning_goes_back_to_openai_before_its_call() -> None:
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2VjcmV0"}
    call = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "search", "arguments": "{}"}
    async with connected(RESPONSES) as line:
        line.will(openai_responses(reasoning, {**call, "status": "completed"}), _say_responses("Done.", None))
        answer = (await line.ask()).entry("a", 1, RESPONSES.model)
        await line.ask(e.decode(e.encode(answer)))
        items = line.served.asked[1].body["input"]
    kinds = [item.get("type") for item in items]
    assert kinds[1:] == ["reasoning", "function_call", "function_call_output"]
    assert items[1]["encrypted_content"] == "c2VjcmV0"
    assert items[2]["call_id"] == "call_1"


@PROTOCOLS
@pytest.mark.parametrize("other", ALL, ids=str)
async def test_a_conversation_goes_on_with_another_provider(protocol: Protocol, other: Protocol) -> None:
    async with connected(protocol) as line:
        line.will(protocol.say("Looking.", ARGUMENTS))
        answer = (await line.ask()).entry("a", 1, protocol.model)
    async with connected(other) as line:
        line.will(other.say("Found.", None))
        assert _texts((await line.ask(answer)).parts) == ["Found."]


async def test_limits_and_refusals_are_told_apart() -> None:
    async with connected(ANTHROPIC) as line:
        line.will(anthropic({"type": "text", "text": "Once upon"}, stop="max_tokens"))
        assert (await line.ask()).stop == "length"
        line.will(anthropic({"type": "text", "text": "I"}, stop="refusal"))
        assert (await line.ask()).stop == "refused"
    async with connected(CHAT) as line:
        line.will(openai_chat("Once upon", stop="length"))
        assert (await line.ask()).stop == "length"
        line.will(openai_chat("I", stop="content_filter"))
        assert (await line.ask()).stop == "refused"
    async with connected(GOOGLE) as line:
        line.will(google("Once upon", stop="MAX_TOKENS"))
        assert (await line.ask()).stop == "length"
        line.will(google("I", stop="SAFETY"))
        assert (await line.ask()).stop == "refused"
        line.will(google("I", stop="MALFORMED_FUNCTION_CALL"))
        assert (await line.fails()).failure.kind == "server"
    async with connected(RESPONSES) as line:
        line.will([piece.replace(b"response.completed", b"response.incomplete") for piece in _incomplete()])
        assert (await line.ask()).stop == "length"


def _incomplete() -> list[bytes]:
    part = {"type": "output_text", "text": "Once upon", "annotations": []}
    item = {"type": "message", "id": "m", "role": "assistant", "status": "incomplete", "content": [part]}
    return openai_responses(item, status="incomplete")


@PROTOCOLS
async def test_a_call_with_an_id_that_comes_twice_and_broken_arguments_goes_back(protocol: Protocol) -> None:
    call = e.ToolCall("same", "no such tool", '{"q": ')
    broken = e.AssistantMessage(id="a", at=0, parts=(call, call), stop="tools", model=protocol.model)
    async with connected(protocol) as line:
        line.will(protocol.say("Sorry.", None))
        assert (await line.ask(broken)).stop == "answer"


# --- what goes wrong on the way


@PROTOCOLS
async def test_a_stream_torn_in_the_middle_of_a_character_keeps_what_came(protocol: Protocol) -> None:
    pieces = protocol.say("One two three €.", None)
    async with connected(protocol) as line:
        line.will(Stream(_split(pieces, "€".encode(), 1), end="abort"))
        failed = await line.fails()
    assert failed.failure.kind in ("connection", "malformed")
    assert failed.failure.is_retryable
    assert "One two three €.".startswith(_texts(failed.parts)[0])
    assert len(_texts(failed.parts)[0]) >= 8
    assert failed.generated is not None
    assert failed.generated.stop == "error"


@pytest.mark.parametrize("protocol", [ANTHROPIC, CHAT, RESPONSES], ids=str)
async def test_a_stream_torn_in_the_middle_of_arguments_keeps_what_came(protocol: Protocol) -> None:
    async with connected(protocol) as line:
        line.will(Stream(_split(protocol.say("", ARGUMENTS), b" b", 0), end="abort"))
        failed = await line.fails()
    assert failed.failure.is_retryable
    (call,) = failed.parts
    assert isinstance(call, e.ToolCall)
    assert call.tool == "search"
    assert ARGUMENTS.startswith(call.arguments)
    assert 0 < len(call.arguments) < len(ARGUMENTS)


@PROTOCOLS
async def test_a_stream_that_ends_early_but_cleanly_is_cut_too(protocol: Protocol) -> None:
    pieces = _split(protocol.say("One two three four.", None), b"our.", 0)[:-1]
    async with connected(protocol) as line:
        line.will(pieces)
        failed = await line.fails()
    assert failed.failure.kind == "cut"
    assert "One two three".startswith(_texts(failed.parts)[0][:10])


async def _outcome(line: Line) -> str:
    """Return how an answer ended, or that it failed and may be tried again."""
    try:
        answer = await line.ask()
    except ModelFailed as failed:
        return "again" if failed.failure.is_retryable else failed.failure.kind
    return f"{answer.stop}: {''.join(_texts(answer.parts))}"


@PROTOCOLS
@pytest.mark.parametrize("end", ["close", "abort"])
async def test_every_cut_of_a_stream_is_a_failure_that_may_be_tried_again(protocol: Protocol, end: Any) -> None:
    pieces = protocol.say("One two three.", ARGUMENTS)
    outcomes = []
    async with connected(protocol) as line:
        for count in range(len(pieces)):
            line.will(Stream(pieces[:count], end=end))
            outcomes.append(await _outcome(line))
        line.will(pieces)
        assert await _outcome(line) == "tools: One two three."
    reason = next(number for number, piece in enumerate(pieces) if _states_reason(piece))
    assert set(outcomes[: reason + 1]) == {"again"}
    assert set(outcomes[reason + 1 :]) <= {"again", "tools: One two three."}


def _states_reason(piece: bytes) -> bool:
    marks = (b'"tool_use", "stop_seq', b'"finish_reason": "tool', b"response.completed", b'"finishReason": "STOP"')
    return any(mark in piece for mark in marks)


async def test_a_server_that_never_states_reasons_can_be_trusted() -> None:
    pieces = [piece.replace(b'"finish_reason": "stop"', b'"finish_reason": null') for piece in _say_chat("Hi.", None)]
    async with connected(CHAT) as line:
        line.will(pieces)
        assert (await line.fails()).failure.kind == "cut"
        assert (await line.ask(options=Options(states_reasons=False))).stop == "answer"


NONSENSE = [
    b'event: message_delta\ndata: {"type": "mess\n\n',
    b"data: <html>502 Bad Gateway</html>\n\n",
    b"data: [1, 2]\n\n",
    b"data: \xff\xfe\n\n",
    b": a comment\n\n",
    b'event: hologram\ndata: {"type": "hologram"}\n\n',
    b'event: content_block_delta\ndata: {"type": "content_block_delta", "index": 7, "delta": {}}\n\n',
    b'data: {"choices": [{"delta": 3}]}\n\n',
    b'data: {"type": "response.output_text.delta", "item_id": 3}\n\n',
]


@PROTOCOLS
@pytest.mark.parametrize("piece", NONSENSE)
async def test_events_that_make_no_sense_never_end_a_conversation(protocol: Protocol, piece: bytes) -> None:
    pieces = protocol.say("One two three.", None)
    async with connected(protocol) as line:
        line.will([*pieces[:3], piece, *pieces[3:]])
        assert await _outcome(line) in ("again", "answer: One two three.")
        line.will(pieces)
        assert await _outcome(line) == "answer: One two three."


@PROTOCOLS
async def test_an_event_that_is_no_json_is_a_failure(protocol: Protocol) -> None:
    pieces = protocol.say("One two three.", None)
    kind = json.loads(pieces[2].partition(b"data: ")[2]).get("type", "")
    async with connected(protocol) as line:
        line.will([*pieces[:3], sse("{half an ev", kind or None), *pieces[3:]])
        assert (await line.fails()).failure.kind == "malformed"


@PROTOCOLS
async def test_deltas_are_heard_while_the_provider_is_still_writing(protocol: Protocol) -> None:
    pieces = protocol.say("One two three four.", None)
    gate = asyncio.Event()
    place = len(_split(pieces, b"our.", 0)) - 1
    async with connected(protocol) as line:
        line.will(Stream(pieces, gates={place: gate}))
        answering = asyncio.create_task(line.ask())
        while not any(isinstance(delta, Grew | Begun) and _texts(line.draft()) for delta in line.heard):
            line.grown.clear()
            await line.grown.wait()
        assert not answering.done()
        assert "One two three four.".startswith(_texts(line.draft())[0])
        gate.set()
        assert _texts((await answering).parts) == ["One two three four."]


@PROTOCOLS
async def test_silence_beyond_the_timeout_is_a_failure(protocol: Protocol) -> None:
    pieces = protocol.say("One two three four.", None)
    async with connected(protocol) as line:
        line.will(Stream(_split(pieces, b"our.", 0)[:-1], end="hang"))
        failed = await line.fails(options=Options(timeout=0.3))
    assert failed.failure.kind == "timeout"
    assert _texts(failed.parts)


@PROTOCOLS
async def test_a_cancelled_call_lets_go_of_the_connection(protocol: Protocol) -> None:
    pieces = protocol.say("One two three four.", None)
    async with connected(protocol) as line:
        line.will(Stream(pieces, gates={len(pieces) - 1: asyncio.Event()}, end="hang"))
        answering = asyncio.create_task(line.ask())
        await line.grown.wait()
        answering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answering
        assert _texts(line.draft())


async def test_nobody_at_the_address_is_a_failure_that_may_be_tried_again() -> None:
    async with connected(ANTHROPIC) as line, provider() as gone:
        line.will(_say_anthropic("x", None))
        models = Models()
        address = gone.url
    model = await models.get("anthropic:claude-opus-5-5", base_url=address, api_key="k")
    with pytest.raises(ModelFailed) as caught:
        await generate(model, t.build([]))
    await models.close()
    assert (caught.value.failure.kind, caught.value.generated) == ("connection", None)


# --- what providers refuse


@PROTOCOLS
async def test_a_rate_limit_is_told_with_its_wait_and_asked_once(protocol: Protocol) -> None:
    async with connected(protocol) as line:
        line.will(Refusal(429, protocol.error("rate_limit_error", "slow down"), {"retry-after": "7"}))
        failed = await line.fails()
        assert len(line.served.asked) == 1, "nobody retries behind our back"
    assert (failed.failure.kind, failed.failure.retry_after, failed.failure.status) == ("rate_limit", 7_000_000, 429)


@PROTOCOLS
@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (529, "overloaded", True),
        (503, "server", True),
        (500, "server", True),
        (502, "server", True),
        (408, "server", True),
        (401, "credentials", False),
        (403, "credentials", False),
        (404, "not_found", False),
        (400, "rejected", False),
        (402, "quota", False),
        (413, "overflow", False),
    ],
)
async def test_statuses_mean_what_they_mean(protocol: Protocol, status: int, kind: str, retryable: bool) -> None:
    async with connected(protocol) as line:
        line.will(Refusal(status, protocol.error("some_error", "no")))
        failed = await line.fails()
    assert (failed.failure.kind, failed.failure.is_retryable) == (kind, retryable)


async def test_a_context_that_is_too_long_is_told_apart() -> None:
    async with connected(ANTHROPIC) as line:
        words = "prompt is too long: 213462 tokens > 200000 maximum"
        line.will(Refusal(400, _anthropic_error("invalid_request_error", words)))
        assert (await line.fails()).failure.kind == "overflow"
    async with connected(GOOGLE) as line:
        words = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."
        line.will(Refusal(400, _google_error("invalid_argument", words)))
        assert (await line.fails()).failure.kind == "overflow"
    for protocol in (CHAT, RESPONSES):
        async with connected(protocol) as line:
            line.will(Refusal(400, _openai_error("context_length_exceeded", "too long")))
            assert (await line.fails()).failure.kind == "overflow"


async def test_an_error_inside_a_stream_means_the_same_as_before_it() -> None:
    overloaded = sse(_anthropic_error("overloaded_error", "Overloaded"), "error")
    async with connected(ANTHROPIC) as line:
        line.will([*_say_anthropic("One two three.", None)[:5], overloaded])
        failed = await line.fails()
        assert (failed.failure.kind, bool(_texts(failed.parts))) == ("overloaded", True)
    async with connected(CHAT) as line:
        error = sse(_openai_error("server_error", "The server had an error"))
        line.will([*_say_chat("One two three.", None)[:3], error])
        failed = await line.fails()
        assert failed.failure.is_retryable
        assert _texts(failed.parts)
    async with connected(RESPONSES) as line:
        error = sse({"type": "error", "code": "rate_limit_exceeded", "message": "slow", "param": None}, "error")
        line.will([*_say_responses("One two three.", None)[:4], error])
        failed = await line.fails()
        assert failed.failure.kind in ("rate_limit", "malformed")
        assert failed.failure.is_retryable


# --- whatever happened before


@given(st.lists(strategies.transcripts, min_size=1, max_size=6))
@settings(max_examples=15, deadline=None)
def test_whatever_happened_every_provider_takes_the_request(transcripts: list[list[e.Entry]]) -> None:
    asyncio.run(_all_are_taken(transcripts))


async def _all_are_taken(transcripts: list[list[e.Entry]]) -> None:
    for protocol in ALL:
        async with connected(protocol) as line:
            line.will(protocol.say("Fine.", None))
            for entries in transcripts:
                assert _texts((await line.ask(*[e.decode(e.encode(entry)) for entry in entries])).parts) == ["Fine."]
