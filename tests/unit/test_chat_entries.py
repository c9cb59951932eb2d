"""Transcript entries: stored and read back as they were, bounded, and refused when they are not ours to read."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from tests.unit import chat_strategies as strategies

from perdure.chat import entries as e
from perdure.chat.errors import EntryInvalid, EntryTooNew
from perdure.errors import ContentTooLarge, NotJson

ANSWER = e.AssistantMessage(
    id="a",
    at=7,
    turn=2,
    parts=(
        e.Thinking("hm", "sig==", e.Payload(provider="anthropic", id="rs_1", details={"blob": "é"})),
        e.Text("Hello", e.Payload(provider="openai", id="msg_1")),
        e.ToolCall("toolu_1", "search", '{"a": 1'),
        e.File("image/png", b"\x89PNG\xff"),
        e.Opaque("builtin-tool-call", {"anything": [1, None]}),
    ),
    stop="tools",
    model="anthropic:claude",
    origin=e.Origin(model="claude-1", provider="anthropic", response="msg_9", details={"container": {"id": 1}}),
    usage=e.Usage(input=10, output=3, cache_read=4, details={"reasoning": 2}, cost="0.00012"),
)


def test_an_answer_comes_back_as_it_was() -> None:
    assert e.decode(e.encode(ANSWER)) == ANSWER
    assert [call.id for call in ANSWER.calls] == ["toolu_1"]
    assert ANSWER.text == "Hello"
    assert ANSWER.usage is not None
    assert ANSWER.usage.total == 13


@given(strategies.entries)
def test_every_entry_has_one_form(entry: e.Entry) -> None:
    data = e.encode(entry)
    read = e.decode(data)
    assert type(read) is type(entry)
    assert e.encode(read) == data
    assert json.loads(data) == msgspec.json.decode(data), "any JSON reader can read it"


def test_lone_surrogates_are_replaced_and_nul_is_kept() -> None:
    read = e.decode(e.encode(e.Note(id="n", at=0, text="a\ud800b\x00c")))
    assert isinstance(read, e.Note)
    assert read.text == "a\ufffdb\x00c"


def test_defaults_take_no_room() -> None:
    assert e.encode(e.Abort(id="x", at=1)) == b'{"entry":{"at":1,"id":"x","kind":"abort"},"v":1}'


def test_what_json_does_not_have_is_refused_with_its_path() -> None:
    result = e.ToolResult(
        id="r", at=0, answers="a", slot=0, call="c", tool="t", content=(), details={"price": float("nan")}
    )
    with pytest.raises(NotJson, match=r"\$\.details\.price"):
        e.encode(result)


def test_too_many_parts_and_too_many_bytes_are_refused() -> None:
    with pytest.raises(ContentTooLarge, match="1025 parts"):
        e.encode(e.UserMessage(id="u", at=0, content=(e.Text("x"),) * 1025))
    with pytest.raises(ContentTooLarge, match="8388608 bytes"):
        e.encode(e.UserMessage(id="u", at=0, content=(e.File("a/b", bytes(e.ENTRY_BYTES)),)))


def test_a_newer_format_is_refused_whatever_is_in_it() -> None:
    with pytest.raises(EntryTooNew, match="format 2; this Perdure reads formats up to 1"):
        e.decode(b'{"entry":{"kind":"hologram","at":"soon"},"v":2}')


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b'{"v":1}',
        b'{"v":0,"entry":{}}',
        b'{"entry":{"kind":"hologram","id":"x","at":1},"v":1}',
        b'{"entry":{"kind":"note","id":"x","at":1},"v":1}',
        b'{"entry":{"kind":"note","id":"x","at":1,"text":"t","unknown":1},"v":1}',
        b'{"entry":{"kind":"note","id":"x","at":"1","text":"t"},"v":1}',
        b'{"entry":' + b"[" * 100_000 + b',"v":1}',
    ],
)
def test_damage_is_refused(data: bytes) -> None:
    with pytest.raises(EntryInvalid):
        e.decode(data)
