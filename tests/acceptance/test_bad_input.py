"""What bad input gets: from clients, from handlers, from projects. Nothing of it breaks a session or the server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from dev_parts import Dev, answer_text, copy_project, ended, log_of, texts, until

from perdure.client.aio import AsyncClient
from perdure.errors import ContentTooLarge, PerdureError
from perdure.records.ids import new_id

HOSTS = pytest.mark.parametrize("agent", ["inline", "process"])
INPUT = [{"type": "text", "text": "count"}]


@pytest.fixture
async def plain(shared: Dev) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=shared.url, timeout=30) as http:
        yield http


def code(reply: httpx2.Response) -> tuple[int, str]:
    assert set(reply.json()) == {"error"}
    return reply.status_code, reply.json()["error"]["code"]


def as_stored(value: Any) -> int:
    """Return how many bytes a value has as canonical JSON."""
    return len(json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode())


# --- from clients


async def test_what_is_not_there(plain: httpx2.AsyncClient, client: AsyncClient) -> None:
    nobody, receipt = new_id(), await client.agents["bare"].create_session()
    session = f"/v1/sessions/{receipt.session_id}"
    asked: list[tuple[str, Any, str]] = [
        ("/v1/agents/nobody", None, "agent_not_found"),
        ("/v1/agents/nobody/sessions", {"input": INPUT}, "agent_not_found"),
        (f"/v1/sessions/{nobody}", None, "session_not_found"),
        (f"/v1/sessions/{nobody}/enqueue", {"input": INPUT}, "session_not_found"),
        (f"/v1/sessions/{nobody}/interrupt", {}, "session_not_found"),
        (f"/v1/sessions/{nobody}/watch", None, "session_not_found"),
        (f"{session}/turns/{nobody}", None, "turn_not_found"),
        (f"{session}/turns/{nobody}/wait", None, "turn_not_found"),
        (f"{session}/turns/{nobody}/messages", {"input": INPUT}, "turn_not_found"),
        (f"{session}/resume", {"hold_id": nobody}, "hold_not_found"),
        (f"{session}/asks/{nobody}", None, "ask_not_found"),
        (f"{session}/asks/{nobody}/answer", {"answer": "x", "response_id": "r"}, "ask_not_found"),
        (f"{session}/runs/{nobody}/logs", None, "run_not_found"),
        (f"/v1/deployments/{nobody}", None, "deployment_not_found"),
        (f"{session}?environment=nowhere", None, "session_not_found"),
        ("/v1/agents?environment=nowhere", None, "environment_not_found"),
    ]
    for path, body, expected in asked:
        reply = await (plain.get(path) if body is None else plain.post(path, json=body))
        assert code(reply) == (404, expected), path


async def test_the_turn_of_another_session_is_not_there(client: AsyncClient) -> None:
    one, other = [await client.agents["bare"].create_session(text="echo x") for _ in range(2)]
    with pytest.raises(PerdureError) as refused:
        await client.session(one.session_id).turn(str(other.turn_id)).get()
    assert refused.value.code == "turn_not_found"


@pytest.mark.parametrize("way", ["create", "enqueue", "send"])
async def test_an_input_that_is_too_large(plain: httpx2.AsyncClient, client: AsyncClient, way: str) -> None:
    receipt = await client.agents["bare"].create_session()
    session = client.session(receipt.session_id)
    path = "/v1/agents/bare/sessions" if way == "create" else f"/v1/sessions/{session.id}/{way}"
    large = [{"text": "x" * 262_144, "type": "text"}]
    wide = [{"type": "json", "value": ["é" * 131_072]}]
    for parts, size, limit in (
        (large, f"{as_stored(large)} bytes", "262144 bytes"),
        (wide, f"{as_stored(wide)} bytes", "262144 bytes"),
    ):
        reply = await plain.post(path, json={"input": parts})
        assert code(reply) == (413, "content_too_large")
        assert reply.json()["error"]["details"] == {"size": size, "limit": limit}
        assert size in reply.json()["error"]["message"]
    reply = await plain.post(path, json={"input": [{"type": "text", "text": "x"}] * 65})
    assert code(reply) == (400, "invalid_content")
    assert "at most 64 items after validation, not 65" in reply.json()["error"]["message"]
    with pytest.raises(ContentTooLarge):
        await session.enqueue(text="x" * 300_000)
    assert [event.type for event in await log_of(session)] == ["session.created"]
    largest = "echo " + "x" * (262_144 - as_stored([{"text": "echo ", "type": "text"}]))
    done = await ended(session, await session.enqueue(text=largest))
    assert answer_text(done) == largest


@pytest.mark.parametrize(
    "body",
    [
        '{"input": [{"type": "json", "value": NaN}]}',
        '{"input": [{"type": "json", "value": {"deep": [-Infinity]}}]}',
        '{"input": [{"type": "json", "value": 1e999}]}',
        '{"input": [{"type": "text"}]}',
        '{"input": [{"type": "text", "text": "x", "extra": 1}]}',
        '{"input": [{"type": "sound", "value": 1}]}',
        '{"input": "text"}',
        '{"input": null}',
        '{"input": []}',
        '{"input": [7]}',
        '{"inputs": []}',
        '{"input": [{"type": "text", "text": "x"}], "idempotency_key": 7}',
        '{"input": [{"type": "text", "text": "x"}]',
        "[]",
        "",
        "\xff",
    ],
)
async def test_a_body_that_makes_no_sense(plain: httpx2.AsyncClient, client: AsyncClient, body: str) -> None:
    receipt = await client.agents["bare"].create_session()
    path = f"/v1/sessions/{receipt.session_id}/enqueue"
    reply = await plain.post(path, content=body.encode("latin-1"), headers={"content-type": "application/json"})
    assert reply.status_code == 400, reply.text
    assert len(await log_of(client.session(receipt.session_id))) == 1


@HOSTS
async def test_text_that_breaks_other_systems_is_kept(
    plain: httpx2.AsyncClient, client: AsyncClient, agent: str
) -> None:
    """NUL is kept; half of a cut emoji becomes U+FFFD; and the session can be read ever after."""
    written = "echo nul \0 half \ud83d end \udc00 whole 😀 line\u2028 right\u202eleft \x1b[31m"
    kept = written.replace("\ud83d", "\ufffd").replace("\udc00", "\ufffd")
    receipt = await client.agents[agent].create_session()
    session = client.session(receipt.session_id)
    body = json.dumps({"input": [{"type": "text", "text": written}], "idempotency_key": "once"})
    for _ in range(2):
        reply = await plain.post(
            f"/v1/sessions/{session.id}/enqueue", content=body, headers={"content-type": "application/json"}
        )
        assert reply.is_success, reply.text
    turn = await ended(session, reply.json()["turn_id"])
    assert turn.sequence == 1
    assert (turn.result, answer_text(turn)) == (kept, kept)
    assert texts(await log_of(session), turn.id) == [kept]
    watched = [item async for item in session.iter_events()]
    assert watched == await log_of(session)


# --- from handlers


@HOSTS
async def test_what_a_handler_returns_and_is_not_json(client: AsyncClient, agent: str) -> None:
    receipt = await client.agents[agent].create_session()
    session = client.session(receipt.session_id)
    for value, said in {
        "object": "at $ it is a builtins.object",
        "nan": "at $[1].deep it is nan",
        "bytes": "at $ it is a builtins.bytes",
        "keys": "at $ a key is int",
        "set": "at $ it is a builtins.set",
        "long": "does not fit 64 bits",
        "huge": "the limit is 1048576 bytes",
    }.items():
        turn = await ended(session, await session.enqueue(text=f"strange {value}"))
        assert (turn.status, turn.result) == ("failed", None)
        assert turn.error is not None
        assert said in turn.error.message
        assert turn.error.code in ("not_json", "content_too_large")
    for value, result in {"surrogate": "a\ufffdb\0c", "tuple": [1, None], "none": None}.items():
        turn = await ended(session, await session.enqueue(text=f"strange {value}"))
        assert (turn.status, turn.result) == ("completed", result)
    assert (await ended(session, await session.enqueue(text="count"))).result["turns"] == 11
    assert (await session.get()).holds == []


@HOSTS
async def test_output_beyond_the_budget_of_a_turn(client: AsyncClient, agent: str) -> None:
    receipt = await client.agents[agent].create_session(text="big")
    session = client.session(receipt.session_id)
    turn = await ended(session, receipt)
    written, refusal, details = turn.result
    assert (written, refusal) == (40, "content_limit_exceeded")
    assert details["limit"] == 8 * 1024 * 1024 < details["size"]
    assert len(texts(await log_of(session), turn.id)) == 40
    # The next turn has a budget of its own.
    again = await ended(session, await session.enqueue(text="big"))
    assert again.result[0] == 40


@HOSTS
async def test_writes_that_are_refused_do_not_fail_their_turn(client: AsyncClient, agent: str) -> None:
    receipt = await client.agents[agent].create_session(text="write")
    session = client.session(receipt.session_id)
    turn = await ended(session, receipt)
    assert turn.result == ["content_too_large", "not_json", "content_too_large", *["invalid_content"] * 3]
    assert texts(await log_of(session), turn.id) == []


@HOSTS
async def test_what_a_handler_raises(client: AsyncClient, agent: str) -> None:
    """Whatever it is, its turn has ended, and the session goes on in the same process where there still is one."""
    receipt = await client.agents[agent].create_session()
    session = client.session(receipt.session_id)
    for kind, shown in {
        "value": ("ValueError", "on purpose"),
        "empty": ("KeyError", "KeyError"),
        "cancelled": ("CancelledError", "by itself"),
        "generator": ("GeneratorExit", "GeneratorExit"),
        "group": ("BaseExceptionGroup", "many (1 sub-exception)"),
        "surrogate": ("ValueError", "a\ufffdb\0c"),
        "unspeakable": ("Unspeakable", "Unspeakable"),
        "long": ("ValueError", "x" * 1024),
    }.items():
        turn = await ended(session, await session.enqueue(text=f"fail {kind}"))
        assert (turn.status, turn.response) == ("failed", None), kind
        assert turn.error is not None
        assert (turn.error.code, turn.error.type, turn.error.message) == ("handler_failed", *shown)
    assert (await ended(session, await session.enqueue(text="count"))).result["turns"] == 9


@HOSTS
@pytest.mark.parametrize("kind", ["exit", "keyboard"])
async def test_a_handler_that_ends_its_process_ends_nobody_else_s(
    shared: Dev, client: AsyncClient, agent: str, kind: str
) -> None:
    receipt = await client.agents[agent].create_session(text=f"fail {kind}")
    session = client.session(receipt.session_id)
    neighbour = await client.agents[agent].create_session(text="count")
    turn = await ended(session, receipt)
    if agent == "process":
        assert (turn.status, turn.reason) == ("interrupted", "process_lost")
    else:
        assert turn.error is not None
        assert (turn.status, turn.error.code) == ("failed", "handler_failed")
        assert turn.error.type in ("SystemExit", "KeyboardInterrupt")
    done = await ended(session, await session.enqueue(text="count"))
    assert done.status == "completed"
    assert (await ended(client.session(neighbour.session_id), neighbour)).status == "completed"
    assert shared.process is not None
    assert shared.process.poll() is None


@pytest.mark.parametrize(
    ("agent", "kind"),
    [(f"{host}_odd", kind) for host in ("inline", "process") for kind in ("cancelled", "group", "unspeakable")]
    + [("inline_odd", "exit")],
)
async def test_what_an_init_raises(client: AsyncClient, agent: str, kind: str) -> None:
    receipt = await client.agents[agent].create_session(text="count", key=kind)
    session = client.session(receipt.session_id)
    failed = await until(session, "session.init_failed")
    assert failed.data["error"]["code"] == "init_failed"
    (hold,) = (await session.get()).holds
    assert hold.reason == "init_failed"


@pytest.mark.parametrize(
    ("agent", "kind"),
    [("inline", "value"), ("inline", "cancelled"), ("process", "cancelled"), ("inline", "exit")],
)
async def test_what_a_message_handler_raises(client: AsyncClient, agent: str, kind: str) -> None:
    receipt = await client.agents[agent].create_session(text="steered 1")
    session = client.session(receipt.session_id)
    await until(session, "turn.output")
    await session.send(text=f"raise {kind}")
    assert (await until(session, "message.rejected")).data["reason"] == "callback_failed"
    await session.send(text="enough")
    turn = await ended(session, receipt)
    assert turn.error is not None
    assert (turn.status, turn.error.code) == ("failed", "handler_failed")
    assert turn.error.type in ("ValueError", "CancelledError", "SystemExit")
    assert (await ended(session, await session.enqueue(text="count"))).result["turns"] == 2


# --- from projects


async def test_a_project_that_does_not_import_changes_nothing(shared: Dev, tmp_path: Path) -> None:
    project = copy_project(tmp_path / "project")
    shared.cli("deploy", str(project), "--env", "broken")
    async with shared.client("broken") as client:
        receipt = await client.agents["bare"].create_session(text="version")
        session = client.session(receipt.session_id)
        current = (await session.get()).deployment_id
        helper = project / "agents" / "helper.py"
        (project / "agents" / "more.py").write_text("from agents.helper import word\n")
        helper.write_text("def word():\n    return 1\n\n\nword.missing\n")
        said = shared.cli("deploy", str(project), "--env", "broken", code=1)
        assert said.count("\n") == 1
        assert "agents/helper.py, line 5" in said
        assert "AttributeError: 'function' object has no attribute 'missing'" in said
        for source, expected in {
            "import nothing_of_that_name\n": "ModuleNotFoundError: No module named 'nothing_of_that_name'",
            "def word(:\n": "SyntaxError",
            "import os\nos._exit(3)\n": "exit",
            "import sys\nsys.exit(3)\n": "SystemExit",
            "import perdure\nx = perdure.Agent('x', hibernate_after_idle='5m')\n": "needs a template",
            "import perdure\nword = perdure.Agent('bare')\n": "bare",
            "import perdure\nword = perdure.Agent('idle')\n": "has no turn handler",
        }.items():
            helper.write_text(source)
            with pytest.raises(PerdureError) as refused:
                await client.deploy(project)
            assert refused.value.status == 400
            assert expected in refused.value.message, refused.value.message
            assert "helper.py" in refused.value.message
        fresh = await client.agents["bare"].create_session(text="version")
        assert (await client.session(fresh.session_id).get()).deployment_id == current
        assert (await ended(client.session(fresh.session_id), fresh)).result == 1


async def test_a_server_that_has_seen_all_this_is_well(shared: Dev, client: AsyncClient) -> None:
    receipt = await client.agents["process"].create_session(text="count")
    session = client.session(receipt.session_id)
    await until(session, "turn.completed")
    assert not shared.noise
