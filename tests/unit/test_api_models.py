from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import server_fakes as fake
from pydantic import ValidationError

from perdure.api import asks, base, content, deployments, events, requests, runs, sessions, turns
from perdure.engine.service import CaughtUp, LiveItem, LogChunk, WatchEnd
from perdure.errors import InvalidId, InvalidKey
from perdure.records.content import encode_content
from perdure.records.definitions import AgentDefinition, ImageDefinition, TemplateDefinition
from perdure.records.sessions import Issuer
from perdure.server import sse, wire
from perdure.store.port import Deployment, EventPage, LiveSlot

TEMPLATE = TemplateDefinition(
    id="assistant", image=ImageDefinition(id="i", base="python:3.12-slim"), memory=2**30, disk=5
)
AGENT = AgentDefinition(
    id="assistant",
    module="agents.assistant",
    file="agents/assistant.py",
    line=7,
    template=TEMPLATE,
    has_init=True,
    close_after_idle=86_400_000_000,
    hibernate_after_idle=300_000_000,
    max_turn_duration=1_500_000,
)
BARE_AGENT = AgentDefinition(id="a", module="a", file="a.py", line=1)
BUILT = Deployment(fake.DEPLOYMENT, "demo/staging", "sha256:0", fake.NOW, "/somewhere", (AGENT, BARE_AGENT))
ANSWERED = fake.ask(
    status="responded", answer_json=b'{"selected":[]}', responder=Issuer("user", "local"), ended_at=fake.NOW
)

DOCUMENTS: list[tuple[type[base.Wire], Any]] = [
    (sessions.Session, wire.session(fake.view())),
    (sessions.Session, wire.session(fake.bare_view())),
    (turns.Turn, wire.turn(fake.turn())),
    (turns.Turn, wire.turn(fake.ended_turn())),
    (asks.Ask, wire.ask(fake.ask(), fake.SESSION)),
    (asks.Ask, wire.ask(fake.ask(control_json=b'{"type":"text"}'), fake.SESSION)),
    (asks.Ask, wire.ask(ANSWERED, fake.SESSION)),
    (runs.Run, wire.run(fake.run())),
    (runs.Run, wire.run(fake.run(ended_at=fake.NOW, end_reason="slept"))),
    (runs.LogPage, wire.log(LogChunk(b"hello", 5, True))),
    (deployments.Agent, wire.agent(AGENT)),
    (deployments.Agent, wire.agent(BARE_AGENT)),
    (deployments.Deployment, wire.deployment(BUILT)),
    (events.Event, msgspec.Raw(wire.event_bytes(fake.event(1)))),
    (events.EventPage, msgspec.Raw(wire.event_page_bytes(EventPage([fake.event(1)], 1, False, 0)))),
    (events.SnapshotData, msgspec.Raw(wire.snapshot_bytes(fake.snapshot_item()))),
]


@pytest.mark.parametrize(("model", "document"), DOCUMENTS)
def test_what_the_server_writes_is_what_the_model_reads_and_writes_again(model: type[base.Wire], document: Any) -> None:
    sent = json.loads(msgspec.json.encode(document))
    assert model.model_validate(sent).document() == sent
    assert set(sent) <= set(model.model_fields)


@pytest.mark.parametrize(
    "model",
    sorted({model for model, _ in DOCUMENTS}, key=lambda model: model.__name__),
    ids=lambda model: model.__name__,
)
def test_every_field_of_a_model_is_written_by_some_document(model: type[base.Wire]) -> None:
    written: set[str] = set()
    for kind, document in DOCUMENTS:
        if kind is model:
            written |= set(json.loads(msgspec.json.encode(document)))
    assert written == set(model.model_fields)


def test_a_newer_server_may_say_more() -> None:
    document = {**json.loads(msgspec.json.encode(wire.run(fake.run()))), "novelty": 1}
    assert runs.Run.model_validate(document).number == 1


def test_instants_keep_their_microseconds_and_six_digits() -> None:
    document = json.loads(msgspec.json.encode(wire.run(fake.run(ended_at=1_796_084_223_000_000))))
    assert document["ended_at"] == "2026-12-01T00:17:03.000000Z"
    assert document["started_at"] == "2026-12-01T00:17:03.123456Z"
    assert runs.Run.model_validate(document).document() == document


def test_a_null_result_is_told_from_an_absent_one() -> None:
    completed = turns.Turn.model_validate(json.loads(msgspec.json.encode(wire.turn(fake.ended_turn()))))
    queued = turns.Turn.model_validate(json.loads(msgspec.json.encode(wire.turn(fake.turn()))))
    assert "result" in completed.model_fields_set
    assert "result" not in queued.model_fields_set
    assert completed.result is queued.result is None


@pytest.mark.parametrize("field", ["input", "key", "idempotency_key"])
def test_null_is_not_absent_in_a_request(field: str) -> None:
    assert requests.CreateSession.model_validate({}).input is None
    with pytest.raises(ValidationError, match="leave the field out"):
        requests.CreateSession.model_validate({field: None})


@pytest.mark.parametrize("key", ["", " a", "a\n", "\ud800", "a\0b", "é" * 257])
def test_keys_that_are_not_keys_are_refused(key: str) -> None:
    with pytest.raises(InvalidKey):
        requests.Enqueue.model_validate({"input": [{"type": "text", "text": "x"}], "idempotency_key": key})
    with pytest.raises(InvalidKey):
        requests.GetOrCreateSession.model_validate({"key": key})
    with pytest.raises(InvalidKey):
        requests.AnswerAsk.model_validate({"answer": 1, "response_id": key})


def test_a_hold_id_is_an_id() -> None:
    assert requests.Resume.model_validate({"hold_id": fake.HOLD}).hold_id == fake.HOLD
    with pytest.raises(InvalidId):
        requests.Resume.model_validate({"hold_id": fake.HOLD.upper()})


def test_content_of_a_response_can_be_an_input() -> None:
    said = [content.TextPart(type="text", text="a"), content.JsonPart(type="json", value={"b": 1})]
    assert content.text_of(said) == "a"
    assert content.text_of(None) == ""
    assert encode_content(content.as_input(said)) == b'[{"text":"a","type":"text"},{"type":"json","value":{"b":1}}]'
    assert encode_content(content.as_input(said[0])) == b'[{"text":"a","type":"text"}]'
    assert encode_content(content.as_input("plain")) == b'[{"text":"plain","type":"text"}]'


def test_frames_carry_an_id_exactly_when_they_are_durable() -> None:
    assert sse.frame(CaughtUp(7)) == b'event: caught_up\ndata: {"cursor":7}\n\n'
    assert sse.frame(WatchEnd(7)) == b'event: end\ndata: {"cursor":7}\n\n'
    assert sse.frame(LiveItem("", None)) == b'event: live\ndata: {"turn_id":null,"slot":"","content":null}\n\n'
    live = sse.frame(LiveItem("draft", LiveSlot(fake.TURN, fake.CONTENT, fake.NOW)))
    assert live.startswith(b"event: live\ndata: {")
    assert b"id:" not in live.replace(b'_id":', b"")
    from perdure.engine.service import EventItem

    lines = sse.frame(EventItem(fake.event(3))).split(b"\n")
    assert lines[0] == b"id: 3"
    assert lines[1] == b"event: turn.output"
    assert lines[2].startswith(b"data: {")


@pytest.mark.parametrize("model", [events.LiveData, events.CursorData])
def test_markers_are_what_the_models_say(model: type[base.Wire]) -> None:
    items = [LiveItem("draft", LiveSlot(fake.TURN, fake.CONTENT, fake.NOW)), LiveItem("", None)]
    for item in items if model is events.LiveData else [CaughtUp(1), WatchEnd(2)]:
        data = sse.frame(item).split(b"data: ")[1].strip()
        assert model.model_validate_json(data).document() == json.loads(data)


@pytest.mark.parametrize("text", ["aé", "a€", "a😀", "😀😀"])
def test_a_log_is_never_cut_within_a_character(text: str) -> None:
    data, read, offset = text.encode(), "", 0
    for size in range(1, len(data) + 1):
        part = wire.log(LogChunk(data[offset:size], size, size == len(data)))
        read, offset = read + part["data"], part["next_offset"]
        assert "�" not in read
    assert (read, offset) == (text, len(data))


def test_a_log_that_ends_within_a_character_is_told_to_its_end() -> None:
    assert wire.log(LogChunk(b"a\xe2\x82", 3, True)) == {"data": "a�", "next_offset": 3, "eof": True}
    assert wire.log(LogChunk(b"\xff\xfe\x80\x80", 4, False))["next_offset"] == 4
