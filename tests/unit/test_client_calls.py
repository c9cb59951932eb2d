from __future__ import annotations

import asyncio
import inspect
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import client_fakes as fake
import httpx2
import pytest
from client_fakes import ASK, DEPLOYMENT, HOLD, RUN, SESSION, TURN, Script, answer, failure

from perdure import errors
from perdure.client import aio, sync
from perdure.client.failures import NotUnderstood
from perdure.client.retry import Retry
from perdure.errors import PerdureError
from perdure.records.content import JsonPart, TextPart
from perdure.records.ids import check_id

Make = Callable[..., Any]
TEXT = [{"type": "text", "text": "hello"}]


@pytest.fixture(params=["sync", "async"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Make a client of either kind; both have the same face."""
    loop = asyncio.new_event_loop()
    clients: list[Any] = []

    def make(script: Any, **settings: Any) -> Any:
        if request.param == "sync":
            clients.append(fake.sync_client(script, **settings))
        else:
            clients.append(fake.Blocking(fake.async_client(script, **settings), loop))
        return clients[-1]

    yield make
    for client in clients:
        client.close()
    loop.close()


# --- what is asked ---

READS: list[tuple[Callable[[Any], Any], str, Any]] = [
    (lambda c: c.server(), "/v1/server", {"version": "1", "instance_id": RUN, "mode": "dev"}),
    (lambda c: c.agents.list(), "/v1/agents", {"agents": [fake.agent()]}),
    (lambda c: c.agents.get("assistant"), "/v1/agents/assistant", fake.agent()),
    (lambda c: c.agents["assistant"].get(), "/v1/agents/assistant", fake.agent()),
    (lambda c: c.events(), "/v1/events", fake.feed_page("c1", fake.event(1))),
    (lambda c: c.events(after="c1", limit=9), "/v1/events?after=c1&limit=9", fake.feed_page("c2")),
    (lambda c: c.deployments.list(limit=2), "/v1/deployments?limit=2", {"deployments": [fake.deployment()]}),
    (lambda c: c.deployments.get(DEPLOYMENT), f"/v1/deployments/{DEPLOYMENT}", fake.deployment()),
    (lambda c: c.sessions.list(agent="a", key="k", limit=9), "/v1/sessions?agent=a&key=k&limit=9", {"sessions": []}),
    (
        lambda c: c.sessions.list(status=["open", "closing"]),
        "/v1/sessions?status=open&status=closing",
        {"sessions": []},
    ),
    (lambda c: c.session(SESSION).get(), f"/v1/sessions/{SESSION}", fake.session()),
    (lambda c: c.session(SESSION).turns(after=3), f"/v1/sessions/{SESSION}/turns?after=3", {"turns": [fake.turn()]}),
    (lambda c: c.session(SESSION).turn(TURN).get(), f"/v1/sessions/{SESSION}/turns/{TURN}", fake.turn()),
    (lambda c: c.session(SESSION).asks(status="pending"), f"/v1/sessions/{SESSION}/asks?status=pending", {"asks": []}),
    (lambda c: c.session(SESSION).ask(ASK).get(), f"/v1/sessions/{SESSION}/asks/{ASK}", fake.ask()),
    (
        lambda c: c.session(SESSION).events(after=7, limit=10),
        f"/v1/sessions/{SESSION}/events?after=7&limit=10",
        {"events": [fake.event(8)], "next_after": 8, "has_more": False, "retained_after": 0},
    ),
    (lambda c: c.session(SESSION).runs(), f"/v1/sessions/{SESSION}/runs?after=0", {"runs": []}),
    (
        lambda c: c.session(SESSION).logs(RUN, offset=5),
        f"/v1/sessions/{SESSION}/runs/{RUN}/logs?offset=5",
        {"data": "x", "next_offset": 6, "eof": True},
    ),
]


@pytest.mark.parametrize(("ask", "target", "document"), READS)
def test_reads_go_where_the_api_says(make: Make, ask: Callable[[Any], Any], target: str, document: Any) -> None:
    script = Script(answer(document))
    result = ask(make(script))
    scope = {} if target == "/v1/server" else {"project": "demo", "environment": "development"}
    wanted = httpx2.URL(f"{fake.URL}{target}").copy_merge_params(scope)
    assert script.requests[0].method == "GET"
    assert script.requests[0].url.path == wanted.path
    assert sorted(script.requests[0].url.params.multi_items()) == sorted(wanted.params.multi_items())
    if not isinstance(result, list):
        assert result.document() == document


WRITES: list[tuple[Callable[[Any], Any], str, dict[str, Any], Any]] = [
    (
        lambda c: c.agents["assistant"].create_session(text="hello", key="user:ada"),
        "/v1/agents/assistant/sessions",
        {"input": TEXT, "key": "user:ada"},
        fake.receipt(),
    ),
    (
        lambda c: c.agents["assistant"].create_session(),
        "/v1/agents/assistant/sessions",
        {},
        fake.receipt(turn_id=None, sequence=None),
    ),
    (
        lambda c: c.agents["assistant"].get_or_create("user:ada", input="hello"),
        "/v1/agents/assistant/sessions/get-or-create",
        {"key": "user:ada", "input": TEXT},
        fake.receipt(created=False),
    ),
    (lambda c: c.session(SESSION).enqueue("hello"), "/enqueue", {"input": TEXT}, fake.receipt(created=False)),
    (
        lambda c: c.session(SESSION).send(text="hello"),
        "/send",
        {"input": TEXT},
        {"kind": "messaged", "session_id": SESSION, "turn_id": TURN, "message_id": RUN},
    ),
    (lambda c: c.session(SESSION).interrupt(reason="why"), "/interrupt", {"reason": "why"}, fake.control()),
    (lambda c: c.session(SESSION).resume(HOLD), "/resume", {"hold_id": HOLD}, fake.control()),
    (lambda c: c.session(SESSION).close(), "/close", {}, fake.control()),
    (lambda c: c.session(SESSION).cancel(), "/cancel", {}, fake.control()),
    (
        lambda c: c.session(SESSION).turn(TURN).send("hello"),
        f"/turns/{TURN}/messages",
        {"input": TEXT},
        {"session_id": SESSION, "turn_id": TURN, "message_id": RUN, "status": "admitted"},
    ),
]


@pytest.mark.parametrize(("ask", "path", "body", "document"), WRITES)
def test_writes_say_what_was_given_and_carry_a_key(
    make: Make, ask: Callable[[Any], Any], path: str, body: dict[str, Any], document: Any
) -> None:
    script = Script(answer(document))
    assert ask(make(script)).document() == document
    request = script.requests[0]
    assert (request.method, request.headers["content-type"]) == ("POST", "application/json")
    assert request.url.path == (path if path.startswith("/v1") else f"/v1/sessions/{SESSION}{path}")
    sent = script.bodies[0]
    check_id(sent.pop("idempotency_key"), "made key")
    assert sent == body


def test_an_answer_to_a_question_carries_a_response_id(make: Make) -> None:
    script = Script(answer(fake.ask()), answer(fake.ask()))
    question = make(script).session(SESSION).ask(ASK)
    question.answer(None)
    question.answer({"selected": []}, response_id="mine")
    assert script.requests[0].url.path == f"/v1/sessions/{SESSION}/asks/{ASK}/answer"
    check_id(script.bodies[0]["response_id"], "made response id")
    assert script.bodies[0]["answer"] is None
    assert script.bodies[1] == {"answer": {"selected": []}, "response_id": "mine"}


def test_a_deployment_is_the_archive_itself(make: Make, tmp_path: Any) -> None:
    script = Script(*(answer(fake.deployment(), 201) for _ in range(3)))
    client = make(script)
    archive = tmp_path / "project.tar.gz"
    archive.write_bytes(b"as it is")
    client.deploy(b"bytes", idempotency_key="mine")
    client.deploy(archive)
    client.deploy(str(archive), promote=False)
    assert [request.content for request in script.requests] == [b"bytes", b"as it is", b"as it is"]
    assert script.requests[0].headers["idempotency-key"] == "mine"
    check_id(script.requests[1].headers["idempotency-key"], "made key")
    assert [request.url.params.get("promote") for request in script.requests] == [None, None, "false"]


def test_a_folder_is_packed_and_what_must_not_be_deployed_is_refused(make: Make, tmp_path: Any) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "assistant.py").write_text("import perdure\n")
    script = Script(answer(fake.deployment(), 201))
    client = make(script)
    client.deploy(tmp_path)
    assert script.requests[0].content.startswith(b"\x1f\x8b")
    with pytest.raises(errors.ProjectError):
        client.deploy(tmp_path / "nowhere")


def test_promote(make: Make) -> None:
    script = Script(answer(fake.deployment()))
    make(script).deployments.promote(DEPLOYMENT)
    assert script.requests[0].method == "POST"
    assert script.requests[0].url.path == f"/v1/deployments/{DEPLOYMENT}/promote"


def test_the_scope_and_the_key_go_with_every_request(make: Make) -> None:
    script = Script(answer(fake.session()), answer(fake.control()))
    client = make(script, api_key="prd_sk_x", project="shop", environment="staging")
    client.session(SESSION).get()
    client.session(SESSION).close()
    for request in script.requests:
        assert dict(request.url.params) == {"project": "shop", "environment": "staging"}
        assert request.headers["authorization"] == "Bearer prd_sk_x"


def test_without_a_key_none_is_sent(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_API_KEY", raising=False)
    script = Script(answer(fake.session()))
    make(script).session(SESSION).get()
    assert "authorization" not in script.requests[0].headers


def test_the_environment_names_the_server_and_the_key(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_API_URL", "https://perdure.example/base/")
    monkeypatch.setenv("PERDURE_API_KEY", "prd_sk_env")
    script = Script(answer(fake.session()), answer(fake.session()))
    make(script, url=None).session(SESSION).get()
    assert str(script.requests[0].url).startswith(f"https://perdure.example/base/v1/sessions/{SESSION}?")
    assert script.requests[0].headers["authorization"] == "Bearer prd_sk_env"
    make(script, url="http://given:1", api_key="given").session(SESSION).get()
    assert script.requests[1].url.host == "given"
    assert script.requests[1].headers["authorization"] == "Bearer given"


@pytest.mark.parametrize(
    "url", ["127.0.0.1:7373", "ftp://x", "http://", "http://x?y=1", "/path", "http://x:port", "http://x:99999"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(errors.BadRequest, match="write http://HOST:PORT"):
        sync.Client(url)


def test_a_key_that_cannot_be_a_header_is_refused() -> None:
    with pytest.raises(errors.BadRequest, match="API key"):
        sync.Client(fake.URL, "two\nlines")


@pytest.mark.parametrize("bad", ["", "..", "a/b", SESSION.upper(), "%2e%2e", "01890a5d-ac96-474b-bcce-b302099a8057"])
def test_ids_that_are_none_are_refused_before_anything_is_sent(make: Make, bad: str) -> None:
    script = Script()
    client = make(script)
    for ask in (
        lambda: client.session(bad).get(),
        lambda: client.session(SESSION).turn(bad).get(),
        lambda: client.session(SESSION).ask(bad).get(),
        lambda: client.session(SESSION).logs(bad),
        lambda: client.deployments.get(bad),
        lambda: next(client.session(bad).watch()),
    ):
        with pytest.raises(errors.InvalidId):
            ask()
    with pytest.raises(errors.AgentNotFound):
        client.agents["../x"].create_session()
    assert script.requests == []


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ("hello", TEXT),
        ("", [{"type": "text", "text": ""}]),
        (TextPart("hello"), TEXT),
        (JsonPart({"a": [1, None]}), [{"type": "json", "value": {"a": [1, None]}}]),
        (["hello", {"type": "json", "value": 1}], [*TEXT, {"type": "json", "value": 1}]),
        ("cut \ud83d", [{"type": "text", "text": "cut \ufffd"}]),
        ("nul \0", [{"type": "text", "text": "nul \0"}]),
    ],
)
def test_inputs_become_parts(make: Make, given: Any, parts: Any) -> None:
    script = Script(answer(fake.receipt()))
    make(script).session(SESSION).enqueue(given)
    assert script.bodies[0]["input"] == parts


def test_parts_of_a_turn_can_be_sent_again(make: Make) -> None:
    script = Script(answer(fake.turn()), answer(fake.receipt()))
    handle = make(script).session(SESSION)
    handle.enqueue(handle.turn(TURN).get().input)
    assert json.loads(script.requests[1].content)["input"] == fake.turn()["input"]


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"input": JsonPart({"x": math.nan})}, errors.NotJson),
        ({"input": JsonPart(object())}, errors.NotJson),
        ({"input": 7}, errors.InvalidContent),
        ({"input": [b"bytes"]}, errors.InvalidContent),
        ({"text": "a", "input": "b"}, errors.InvalidContent),
        ({}, errors.InvalidContent),
    ],
)
def test_inputs_that_are_none_are_refused_before_anything_is_sent(
    make: Make, given: dict[str, Any], kind: type[PerdureError]
) -> None:
    script = Script()
    with pytest.raises(kind):
        make(script).session(SESSION).enqueue(**given)
    assert script.requests == []


def test_a_session_is_found_by_its_key(make: Make) -> None:
    script = Script(answer({"sessions": [fake.session()]}), answer({"sessions": []}))
    agent = make(script).agents["assistant"]
    assert agent.session("user:ada").id == SESSION
    with pytest.raises(errors.SessionNotFound, match="user:bob"):
        agent.session("user:bob")


# --- pages ---


def test_iterators_ask_for_every_page(make: Make) -> None:
    def page(*seqs: int, more: bool) -> httpx2.Response:
        events = [fake.event(seq) for seq in seqs]
        return answer({"events": events, "next_after": seqs[-1], "has_more": more, "retained_after": 0})

    script = Script(
        page(1, 2, more=True),
        page(3, more=False),
        answer({"turns": [fake.turn()], "next_after": 1}),
        answer({"turns": [fake.turn(sequence=2)]}),
        answer({"sessions": [fake.session()], "next_cursor": "abc"}),
        answer({"sessions": [fake.session(agent="other")]}),
    )
    client = make(script)
    assert [event.seq for event in client.session(SESSION).iter_events()] == [1, 2, 3]
    assert [turn.sequence for turn in client.session(SESSION).iter_turns()] == [1, 2]
    assert [session.agent for session in client.sessions.iter(status="open")] == ["assistant", "other"]
    asked = [dict(request.url.params) for request in script.requests]
    assert [params.get("after") for params in asked[:4]] == ["0", "2", "0", "1"]
    assert [params.get("cursor") for params in asked[4:]] == [None, "abc"]
    assert {params["status"] for params in asked[4:]} == {"open"}


# --- what goes wrong ---


@pytest.mark.parametrize("code", sorted(errors.by_code()))
def test_every_code_is_raised_as_its_class(make: Make, code: str) -> None:
    kind = errors.by_code()[code]
    script = Script(*(failure(code, kind.status, {"session_id": SESSION}) for _ in range(4)))
    with pytest.raises(kind) as caught:
        make(script).session(SESSION).get()
    assert type(caught.value) is kind
    assert (caught.value.code, caught.value.status) == (code, kind.status)
    assert caught.value.message == str(caught.value) == "What happened."
    assert caught.value.details == {"session_id": SESSION, "request_id": RUN}


def test_a_code_of_a_newer_server_keeps_its_code_and_status(make: Make) -> None:
    with pytest.raises(PerdureError) as caught:
        make(Script(failure("of_tomorrow", 418))).session(SESSION).get()
    assert (caught.value.code, caught.value.status) == ("of_tomorrow", 418)
    assert (PerdureError.code, PerdureError.status) == ("internal_error", 500)


@pytest.mark.parametrize(
    ("status", "body", "kind", "text"),
    [
        (404, "<html>", NotUnderstood, "answers HTTP 404, and not in the way of a Perdure server"),
        (401, "no", errors.AuthenticationRequired, "HTTP 401"),
        (200, "<html>", NotUnderstood, "not understood"),
        (200, '{"id": 3}', NotUnderstood, "fields of Session"),
        (302, "", NotUnderstood, "HTTP 302"),
    ],
)
def test_answers_that_are_not_perdures_are_told_as_such(
    make: Make, status: int, body: str, kind: type[PerdureError], text: str
) -> None:
    script = Script(httpx2.Response(status, text=body))
    with pytest.raises(kind, match=text):
        make(script).session(SESSION).get()
    assert script.done()


def test_where_nobody_listens_the_address_and_the_way_out_are_named(make: Make) -> None:
    script = Script(*(httpx2.ConnectError("[Errno 111] Connection refused") for _ in range(4)))
    with pytest.raises(errors.Unavailable) as caught:
        make(script).session(SESSION).enqueue("x")
    assert "http://127.0.0.1:7373 ([Errno 111] Connection refused)" in caught.value.message
    assert "perdure dev" in caught.value.message
    assert "Nothing was changed" in caught.value.message


def test_a_write_whose_answer_was_lost_is_sent_again_with_the_same_key(make: Make) -> None:
    lost = httpx2.RemoteProtocolError("Server disconnected without sending a response.")
    script = Script(lost, httpx2.ReadTimeout("slow"), failure("unavailable", 503), answer(fake.receipt()))
    assert make(script).session(SESSION).enqueue("x").turn_id == TURN
    assert len(script.requests) == 4
    assert len({request.content for request in script.requests}) == 1


def test_what_was_perhaps_done_is_told_with_the_key_that_tells(make: Make) -> None:
    script = Script(*(httpx2.ReadError("reset") for _ in range(4)))
    with pytest.raises(errors.Unavailable, match=r"may have been carried out.*key mine") as caught:
        make(script).session(SESSION).enqueue("x", idempotency_key="mine")
    assert caught.value.details == {"idempotency_key": "mine"}


def test_a_read_whose_answer_was_lost_changed_nothing(make: Make) -> None:
    with pytest.raises(errors.Unavailable, match="Nothing was changed"):
        make(Script(*(httpx2.ReadError("reset") for _ in range(4)))).session(SESSION).get()


@pytest.mark.parametrize("attempts", [1, 3])
def test_retries_are_bounded(make: Make, attempts: int) -> None:
    script = Script(*(failure("unavailable", 503) for _ in range(attempts)))
    with pytest.raises(errors.Unavailable):
        make(script, retry=Retry(attempts=attempts, first=0.0)).session(SESSION).close()
    assert script.done()


@pytest.mark.parametrize(("code", "status"), [("session_not_open", 409), ("internal_error", 500), ("not_found", 404)])
def test_what_would_fail_again_is_not_sent_again(make: Make, code: str, status: int) -> None:
    script = Script(failure(code, status))
    with pytest.raises(PerdureError):
        make(script).session(SESSION).close()
    assert len(script.requests) == 1


def test_waits_between_attempts_double_up_to_a_bound_and_differ() -> None:
    retry = Retry(first=0.1, longest=2.0)
    for failures, whole in [(1, 0.1), (2, 0.2), (3, 0.4), (6, 2.0), (5000, 2.0)]:
        waits = [retry.delay(failures) for _ in range(200)]
        assert whole / 2 <= min(waits) < max(waits) <= whole


def test_a_server_that_says_when_is_not_asked_before() -> None:
    retry = Retry(first=0.1, heeded=5.0)
    for told, least in [(3, 3.0), (60, 5.0), (0, 0.0), ("soon", 0.0)]:
        failure = errors.Unavailable("Stopping.", {"retry_after_seconds": told})
        waits = [retry.delay(1, failure) for _ in range(200)]
        assert least + 0.05 <= min(waits) < max(waits) <= least + 0.1


def test_retry_after_is_waited_for(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    async def wait(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(sync.time, "sleep", waited.append)
    monkeypatch.setattr(aio.asyncio, "sleep", wait)
    told = failure("unavailable", 503)
    told.headers["Retry-After"] = "4"
    proxy = httpx2.Response(503, text="Service Unavailable", headers={"Retry-After": "6"})
    dated = httpx2.Response(503, text="", headers={"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"})
    script = Script(told, proxy, dated, answer(fake.receipt()))
    assert make(script).session(SESSION).enqueue(text="x").turn_id == TURN
    assert waited == [4.0, 6.0, 0.0]
    assert len({request.content for request in script.requests}) == 1


# --- both clients are one ---


def _surface(module: Any, prefix: str) -> dict[str, Any]:
    found = {}
    for name, kind in inspect.getmembers(module, inspect.isclass):
        if kind.__module__ == module.__name__:
            for method, function in inspect.getmembers(kind, inspect.isfunction):
                plain = method.replace("__a", "__", 1) if method in ("__aenter__", "__aexit__") else method
                names = [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]
                found[f"{name.removeprefix(prefix)}.{plain}"] = (names, function.__doc__)
    return found


def test_both_clients_have_the_same_surface_and_say_the_same_of_it() -> None:
    assert _surface(sync, "nothing") == _surface(aio, "Async")
