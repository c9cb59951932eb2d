"""Transcripts of all shapes, valid and broken, for the tests of the chat room."""

from __future__ import annotations

from hypothesis import strategies as st

from perdure.chat import entries as e

IDS = [f"entry-{number}" for number in range(12)]
CALL_IDS = ["call_1", "call_2", "toolu_01", "", "with space", "x" * 90, "call_1-2"]
TOOLS = ["search", "pay", "no such tool", "", "ü" * 70]
ARGUMENTS = ["{}", '{"a":1}', "", "[1]", '{"a":', '{"a":NaN}', "null", '{"a":1}{"b":2}']
TEXTS = ["", " ", "\n\t", "hello", "a\x00b", "lone \ud800 surrogate", "<plan>", "x" * 200]

texts = st.sampled_from(TEXTS) | st.text(max_size=20)
payloads = st.none() | st.builds(
    e.Payload,
    provider=st.sampled_from(["anthropic", "openai"]),
    id=st.none() | st.sampled_from(["rs_1", "msg_1"]),
    details=st.none() | st.just({"encrypted": "abc"}),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
text_parts = st.builds(e.Text, texts, payloads)
files = st.builds(e.File, st.just("image/png"), st.binary(max_size=8))
calls = st.builds(e.ToolCall, st.sampled_from(CALL_IDS), st.sampled_from(TOOLS), st.sampled_from(ARGUMENTS), payloads)
thoughts = st.builds(e.Thinking, texts, st.none() | st.sampled_from(["", "signed"]), payloads)
content = st.lists(text_parts | files | st.builds(e.Json, json_values), max_size=3).map(tuple)
ids = st.sampled_from(IDS)
at = st.integers(0, 2**50)

users = st.builds(e.UserMessage, id=ids, at=at, content=content, author=st.none() | texts)
steers = st.builds(e.Steer, id=ids, at=at, content=content, message=st.none() | ids)
answers = st.builds(
    e.AssistantMessage,
    id=ids,
    at=at,
    parts=st.lists(text_parts | thoughts | calls | files, max_size=5).map(tuple),
    stop=st.sampled_from(["answer", "tools", "length", "refused", "aborted", "error", "lost"]),
    model=st.just("anthropic:claude"),
    usage=st.none() | st.builds(e.Usage, input=st.integers(0, 9**9), output=st.integers(0, 9**9)),
)
results = st.builds(
    e.ToolResult,
    id=ids,
    at=at,
    answers=ids,
    slot=st.integers(0, 3),
    call=st.sampled_from(CALL_IDS),
    tool=st.sampled_from(TOOLS),
    content=content,
    outcome=st.sampled_from(["done", "failed", "interrupted", "aborted", "refused", "invalid"]),
    details=st.none() | json_values,
    diagnostics=st.lists(st.builds(e.Diagnostic, st.just("truncated"), texts), max_size=1).map(tuple),
)
summaries = st.builds(e.Summary, id=ids, at=at, text=texts, through=ids)
resets = st.builds(e.Reset, id=ids, at=at, handoff=st.none() | texts)
sections = st.builds(
    e.SectionsChange,
    id=ids,
    at=at,
    sections=st.dictionaries(st.sampled_from(["role", "plan"]), st.none() | texts, max_size=2),
    order=st.sampled_from([(), ("plan", "role"), ("role",)]),
    whole=st.booleans(),
)
others = (
    st.builds(e.Note, id=ids, at=at, text=texts)
    | st.builds(e.Abort, id=ids, at=at)
    | st.builds(e.DocumentChange, id=ids, at=at, document=st.just("plan"), version=st.just(1), base=json_values)
)
entries = users | steers | answers | results | summaries | resets | sections | others
transcripts = st.lists(entries, max_size=14)
