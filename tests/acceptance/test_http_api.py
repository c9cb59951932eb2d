"""The API over HTTP with everything real behind it: what a user does, and what bad input gets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from http_parts import Served, served

from perdure.records.ids import new_id

AGENTS = r"""
import asyncio
import logging
import perdure

echo = perdure.Agent("echo")
asker = perdure.Agent("asker")
steered = perdure.Agent("steered")

@echo.turn
async def echo_turn(turn, ctx):
    logging.getLogger("echo").warning("working on %d grüße", turn.sequence)
    await turn.output.write("one moment")
    await turn.respond("done")
    part = turn.input[0]
    return part.text if hasattr(part, "text") else part.value

@asker.turn
async def asker_turn(turn, ctx):
    options = [{"id": "y", "label": "Yes", "value": True}, {"id": "n", "label": "No", "value": False}]
    answer = await turn.ask("Shall I?", {"type": "choice", "options": options})
    return answer.value

@steered.turn
async def steered_turn(turn, ctx):
    said = asyncio.get_running_loop().create_future()

    async def hear(message):
        said.set_result(message.content[0].text)

    await turn.on_message(hear)
    return await said
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Served]:
    source = tmp_path / "project" / "agents"
    source.mkdir(parents=True)
    (source / "all.py").write_text(AGENTS)
    async with served(tmp_path) as server:
        await server.deploy(tmp_path / "project")
        yield server


def text(said: str) -> dict[str, Any]:
    return {"input": [{"type": "text", "text": said}]}


async def refusal(server: Served, method: str, path: str, body: Any = None) -> tuple[int, str, Any]:
    reply = await server.client.request(method, path, json=body)
    error = reply.json()["error"]
    return reply.status_code, error["code"], error.get("details", {})


async def events_until(server: Served, session_id: str, wanted: str) -> list[Any]:
    """Watch from the beginning until an event of the type comes."""
    found: list[Any] = []
    async with server.client.stream("GET", f"/v1/sessions/{session_id}/watch?after=0") as reply:
        async for line in reply.aiter_lines():
            if line.startswith('data: {"session_id"'):
                found.append(json.loads(line.removeprefix("data: ")))
                if found[-1]["type"] == wanted:
                    return found
    raise AssertionError(f"no {wanted} in {found}")


async def test_a_session_from_its_first_turn_to_its_end(server: Served) -> None:
    made = await server.client.post(
        "/v1/agents/echo/sessions", json={**text("first"), "key": "user:ada", "idempotency_key": "tutorial:1"}
    )
    assert made.status_code == 201
    receipt = made.json()
    assert set(receipt) == {"session_id", "turn_id", "sequence", "created"}
    inside = f"/v1/sessions/{receipt['session_id']}"
    turn = await server.settled(receipt["session_id"], receipt["turn_id"])
    assert (turn["status"], turn["result"], turn["response"]) == (
        "completed",
        "first",
        [{"type": "text", "text": "done"}],
    )
    second = await server.post(f"{inside}/enqueue", text("second"))
    assert (second["sequence"], second["created"]) == (2, False)
    assert (await server.settled(receipt["session_id"], second["turn_id"]))["result"] == "second"
    assert [each["sequence"] for each in (await server.get(f"{inside}/turns"))["turns"]] == [1, 2]
    assert [each["id"] for each in (await server.get("/v1/sessions", key="user:ada"))["sessions"]] == [
        receipt["session_id"]
    ]
    assert (await server.get("/v1/sessions", environment="staging"))["sessions"] == []
    assert (await server.post(f"{inside}/close"))["status"] == "accepted"
    events = await events_until(server, receipt["session_id"], "session.closed")
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert (await server.get(inside))["status"] == "closed"
    assert (await refusal(server, "POST", f"{inside}/enqueue", text("late")))[:2] == (409, "session_not_open")


async def test_the_same_request_gets_the_same_receipt_byte_for_byte(server: Served) -> None:
    create = {**text("first"), "key": "k", "idempotency_key": "a"}
    first = await server.client.post("/v1/agents/echo/sessions", json=create)
    session_id = first.json()["session_id"]
    await server.settled(session_id, first.json()["turn_id"])
    enqueue = {**text("more"), "idempotency_key": "a"}
    second = await server.client.post(f"/v1/sessions/{session_id}/enqueue", json=enqueue)
    await server.settled(session_id, second.json()["turn_id"])
    await server.post(f"/v1/sessions/{session_id}/close")
    again = await server.client.post("/v1/agents/echo/sessions", json=create)
    assert (again.status_code, again.content) == (201, first.content)
    again = await server.client.post(f"/v1/sessions/{session_id}/enqueue", json=enqueue)
    assert (again.status_code, again.content) == (200, second.content)
    other = {**enqueue, **text("else")}
    assert (await refusal(server, "POST", f"/v1/sessions/{session_id}/enqueue", other))[1] == "idempotency_conflict"
    other = {**create, **text("else")}
    assert (await refusal(server, "POST", "/v1/agents/echo/sessions", other))[:2] == (409, "idempotency_conflict")


async def test_get_or_create_again_does_not_enqueue_again(server: Served) -> None:
    path, body = "/v1/agents/echo/sessions/get-or-create", {**text("x"), "key": "k", "idempotency_key": "a"}
    first = await server.client.post(path, json=body)
    assert first.status_code == 201
    again = await server.client.post(path, json=body)
    assert (again.status_code, again.content) == (201, first.content)
    more = {**body, "idempotency_key": "b"}
    second = await server.client.post(path, json=more)
    assert (second.status_code, second.json()["sequence"]) == (200, 2)
    assert (await server.client.post(path, json=more)).content == second.content
    assert (await refusal(server, "POST", path, {**more, **text("y")}))[:2] == (409, "idempotency_conflict")
    session_id = first.json()["session_id"]
    assert len((await server.get(f"/v1/sessions/{session_id}/turns"))["turns"]) == 2


async def test_a_key_in_use_names_its_session(server: Served) -> None:
    made = await server.post("/v1/agents/echo/sessions", {"key": "user:ada"})
    assert made == {"created": True, "sequence": None, "session_id": made["session_id"], "turn_id": None}
    status, code, details = await refusal(server, "POST", "/v1/agents/echo/sessions", {"key": "user:ada"})
    assert (status, code, details) == (409, "session_key_conflict", {"session_id": made["session_id"]})
    found = await server.post("/v1/agents/echo/sessions/get-or-create", {"key": "user:ada"})
    assert found == {**made, "created": False}
    elsewhere = await server.post("/v1/agents/asker/sessions", {"key": "user:ada"})
    assert elsewhere["session_id"] != made["session_id"]


async def test_what_is_not_there_is_404_with_its_code(server: Served) -> None:
    made = await server.post("/v1/agents/echo/sessions", text("x"))
    inside, unknown = f"/v1/sessions/{made['session_id']}", new_id()
    nothing: list[tuple[str, str, Any, str]] = [
        ("POST", "/v1/agents/nobody/sessions", {}, "agent_not_found"),
        ("GET", "/v1/agents/nobody", None, "agent_not_found"),
        ("GET", "/v1/agents?environment=nowhere", None, "environment_not_found"),
        ("GET", f"/v1/sessions/{unknown}", None, "session_not_found"),
        ("GET", f"{inside}?environment=staging", None, "session_not_found"),
        ("POST", f"{inside}/enqueue?environment=staging", text("x"), "session_not_found"),
        ("POST", f"/v1/sessions/{unknown}/enqueue", text("x"), "session_not_found"),
        ("POST", f"/v1/sessions/{unknown}/send", text("x"), "session_not_found"),
        ("POST", f"/v1/sessions/{unknown}/cancel", {}, "session_not_found"),
        ("GET", f"/v1/sessions/{unknown}/watch", None, "session_not_found"),
        ("GET", f"/v1/sessions/{unknown}/events", None, "session_not_found"),
        ("GET", f"{inside}/turns/{unknown}", None, "turn_not_found"),
        ("GET", f"{inside}/turns/{unknown}/wait", None, "turn_not_found"),
        ("POST", f"{inside}/turns/{unknown}/messages", text("x"), "turn_not_found"),
        ("POST", f"{inside}/resume", {"hold_id": unknown}, "hold_not_found"),
        ("GET", f"{inside}/asks/{unknown}", None, "ask_not_found"),
        ("POST", f"{inside}/asks/{unknown}/answer", {"answer": 1, "response_id": "r"}, "ask_not_found"),
        ("GET", f"{inside}/runs/{unknown}/logs", None, "run_not_found"),
        ("GET", f"/v1/deployments/{unknown}", None, "deployment_not_found"),
        ("POST", f"/v1/deployments/{unknown}/promote", None, "deployment_not_found"),
    ]
    for method, path, body, code in nothing:
        assert (await refusal(server, method, path, body))[:2] == (404, code), path


async def test_text_beyond_the_limit_is_refused_with_size_and_limit(server: Served) -> None:
    made = await server.post("/v1/agents/echo/sessions")
    path = f"/v1/sessions/{made['session_id']}/enqueue"
    status, code, details = await refusal(server, "POST", path, text("x" * 262_145))
    assert (status, code, details["limit"]) == (413, "content_too_large", "262144 bytes")
    room = 262_144 - len(b'[{"text":"","type":"text"}]')
    assert (await server.post(path, text("x" * room)))["sequence"] == 1
    assert (await refusal(server, "POST", path, text("x" * (room + 1))))[0] == 413


async def test_odd_text_gets_in_and_out_again(server: Served) -> None:
    made = await server.post("/v1/agents/echo/sessions")
    path = f"/v1/sessions/{made['session_id']}/enqueue"
    body = b'{"input":[{"type":"json","value":{"a":"\\u0000 \\ud83d \\u2028 \\ud83d\\ude00","n":1e3}}]}'
    reply = await server.client.post(path, content=body, headers={"content-type": "application/json"})
    turn = await server.settled(made["session_id"], reply.json()["turn_id"])
    assert turn["result"] == {"a": "\0 � \u2028 😀", "n": 1000}
    for constant in (b"NaN", b"Infinity", b"-Infinity", b"1e999"):
        body = b'{"input":[{"type":"json","value":[%b]}]}' % constant
        reply = await server.client.post(path, content=body, headers={"content-type": "application/json"})
        assert reply.status_code == 400, constant
        assert reply.json()["error"]["code"] in ("invalid_json", "not_json")


async def test_a_question_takes_the_first_answer_that_fits(server: Served) -> None:
    made = await server.post("/v1/agents/asker/sessions", text("x"))
    inside = f"/v1/sessions/{made['session_id']}"
    await events_until(server, made["session_id"], "ask.created")
    asks = (await server.get(f"{inside}/asks", status="pending"))["asks"]
    assert [(each["status"], each["turn_id"]) for each in asks] == [("pending", made["turn_id"])]
    path = f"{inside}/asks/{asks[0]['id']}/answer"
    yes = {"answer": {"selected": [{"id": "y", "value": True}]}, "response_id": "r1"}
    wrong = {"answer": {"selected": [{"id": "y", "value": 1}]}, "response_id": "r0"}
    assert (await refusal(server, "POST", path, wrong))[:2] == (422, "answer_invalid")
    answered = await server.post(path, yes)
    assert (answered["status"], answered["responded_by"]) == ("responded", {"kind": "user", "id": "local"})
    assert await server.post(path, yes) == answered
    assert (await refusal(server, "POST", path, {**yes, "response_id": "r2"}))[:2] == (409, "ask_already_responded")
    assert (await server.settled(made["session_id"], made["turn_id"]))["result"] == yes["answer"]
    assert (await server.get(f"{inside}/asks", status="pending"))["asks"] == []


async def test_a_message_steers_the_running_turn(server: Served) -> None:
    made = await server.post("/v1/agents/steered/sessions", text("x"))
    inside = f"/v1/sessions/{made['session_id']}"
    await events_until(server, made["session_id"], "turn.running")
    reply: dict[str, Any] = {"kind": "enqueued"}
    while reply["kind"] == "enqueued":
        # The handler takes messages a moment after its turn is running; until then `send` enqueues, as it says.
        reply = await server.post(f"{inside}/send", text("left!"))
    assert set(reply) == {"kind", "session_id", "turn_id", "message_id"}
    assert reply["turn_id"] == made["turn_id"]
    assert (await server.settled(made["session_id"], made["turn_id"]))["result"] == "left!"
    path = f"{inside}/turns/{made['turn_id']}/messages"
    assert (await refusal(server, "POST", path, text("late")))[:2] == (409, "message_closed")


async def test_interrupt_holds_and_resume_releases(server: Served) -> None:
    made = await server.post("/v1/agents/asker/sessions", text("x"))
    inside = f"/v1/sessions/{made['session_id']}"
    await events_until(server, made["session_id"], "ask.created")
    receipt = await server.post(f"{inside}/interrupt", {"reason": "let me think"})
    turn = await server.settled(made["session_id"], made["turn_id"])
    assert (turn["status"], turn["reason"]) == ("interrupted", "interrupt")
    holds = (await server.get(inside))["holds"]
    assert [(hold["id"], hold["reason"], hold["message"], hold["issuer"]) for hold in holds] == [
        (receipt["hold_id"], "interrupt", "let me think", {"kind": "user", "id": "local"})
    ]
    assert (await refusal(server, "POST", f"{inside}/send", text("x")))[:2] == (409, "session_held")
    for _ in range(2):
        assert (await server.post(f"{inside}/resume", {"hold_id": receipt["hold_id"]}))["status"] == "accepted"
    assert (await server.get(inside))["holds"] == []
    assert (await server.post(f"{inside}/cancel"))["status"] == "accepted"
    assert (await server.get(inside))["status"] == "cancelled"


async def test_what_a_run_printed_can_be_read_in_pieces(server: Served) -> None:
    made = await server.post("/v1/agents/echo/sessions", text("x"))
    inside = f"/v1/sessions/{made['session_id']}"
    await server.settled(made["session_id"], made["turn_id"])
    runs = (await server.get(f"{inside}/runs"))["runs"]
    assert [(run["number"], run["recovery"]) for run in runs] == [(1, "initial")]
    await server.post(f"{inside}/close")
    await events_until(server, made["session_id"], "session.process_stopped")
    read, offset, eof = "", 0, False
    while not eof:
        page = await server.get(f"{inside}/runs/{runs[0]['id']}/logs", offset=offset, limit=16)
        assert page["next_offset"] > offset or page["eof"]
        read, offset, eof = read + page["data"], page["next_offset"], page["eof"]
    assert "working on 1 grüße" in read


async def test_a_project_that_does_not_import_leaves_the_current_deployment(server: Served, tmp_path: Path) -> None:
    before = (await server.get("/v1/deployments"))["deployments"]
    broken = tmp_path / "broken" / "agents"
    broken.mkdir(parents=True)
    (broken / "bad.py").write_text("import perdure\n\nraise RuntimeError('no such luck')\n")
    from perdure.deploy.archive import pack

    gzip = {"content-type": "application/gzip"}
    reply = await server.client.post("/v1/deployments", content=pack(tmp_path / "broken").data, headers=gzip)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "project_import_failed")
    assert "no such luck" in reply.json()["error"]["message"]
    assert "bad.py" in reply.json()["error"]["message"]
    reply = await server.client.post("/v1/deployments", content=b"not a tar", headers=gzip)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "archive_invalid")
    reply = await server.client.post("/v1/deployments", headers=gzip)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "archive_invalid")
    assert (await server.get("/v1/deployments"))["deployments"] == before
    assert {each["id"] for each in (await server.get("/v1/agents"))["agents"]} == {"echo", "asker", "steered"}
    again = await server.deploy(tmp_path / "project")
    assert again["id"] == before[0]["id"]
