from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import server_fakes as fake
from starlette.routing import Route

from perdure.api.failures import ErrorEnvelope
from perdure.errors import (
    IdempotencyConflict,
    PerdureError,
    SessionNotFound,
    SessionNotOpen,
    StoreError,
    by_code,
)
from perdure.records.canonical import encode
from perdure.records.ids import check_id
from perdure.records.sessions import Issuer
from perdure.server.openapi import openapi_document
from perdure.server.queries import SessionsQuery, parse_query
from perdure.server.table import OPERATIONS

ENQUEUE = f"/v1/sessions/{fake.SESSION}/enqueue"
INPUT = {"input": [{"type": "text", "text": "hi"}]}
JSON = {"content-type": "application/json"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def ask(service: fake.FakeService, method: str, path: str, **request: Any) -> Any:
    async with fake.client_of(fake.app_of(service)) as client:
        return await client.request(method, path, **request)


def refused(reply: Any, status: int, code: str) -> str:
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code), reply.text
    check_id(reply.headers["x-request-id"], "request id")
    return ErrorEnvelope.model_validate_json(reply.content).error.message


async def test_a_receipt_is_passed_through_byte_for_byte() -> None:
    receipt = b'{"created":false,  "odd":"\\u00e9"}'
    service = fake.FakeService(enqueue=receipt)
    reply = await ask(service, "POST", ENQUEUE + "?environment=staging", json={**INPUT, "idempotency_key": "k"})
    assert (reply.status_code, reply.content) == (200, receipt)
    assert reply.headers["content-type"] == "application/json"
    name, (scope, session_id, content), named = service.calls[0]
    assert (name, session_id, content, named) == ("enqueue", fake.SESSION, INPUT["input"], {"idempotency_key": "k"})
    assert (scope.project, scope.environment, scope.issuer) == ("demo", "staging", Issuer("user", "local"))


@pytest.mark.parametrize(("created", "status"), [(True, 201), (False, 200)])
async def test_creating_says_by_its_status_whether_it_created(created: bool, status: int) -> None:
    receipt = encode({"created": created, "sequence": None, "session_id": fake.SESSION, "turn_id": None})
    service = fake.FakeService(create_session=receipt, get_or_create=receipt)
    reply = await ask(service, "POST", "/v1/agents/assistant/sessions")
    assert (reply.status_code, reply.content) == (status, receipt)
    reply = await ask(service, "POST", "/v1/agents/assistant/sessions/get-or-create", json={"key": "user:ada"})
    assert (reply.status_code, reply.content) == (status, receipt)
    assert service.calls[0][2] == {"input": None, "key": None, "idempotency_key": None}
    assert service.calls[1][2] == {"input": None, "key": "user:ada", "idempotency_key": None}


BODIES: list[tuple[bytes, str, int, str]] = [
    (b"{", "application/json", 400, "invalid_json"),
    (b'{"input":[{"type":"json","value":NaN}]}', "application/json", 400, "invalid_json"),
    (b'{"input":[{"type":"json","value":-Infinity}]}', "application/json", 400, "invalid_json"),
    (b"[" * 100_000, "application/json", 400, "invalid_json"),
    (b"[]", "application/json", 400, "bad_request"),
    (b"null", "application/json", 400, "bad_request"),
    (b"{}", "application/json", 400, "bad_request"),
    (b'{"input":null}', "application/json", 400, "invalid_content"),
    (b'{"input":[]}', "application/json", 400, "invalid_content"),
    (b'{"input":"hi"}', "application/json", 400, "invalid_content"),
    (b'{"input":["hi"]}', "application/json", 400, "invalid_content"),
    (b'{"input":[{"type":"\\ud800"}]}', "application/json", 400, "invalid_content"),
    (b'{"input":[{"type":"text","text":1}]}', "application/json", 400, "invalid_content"),
    (b'{"input":[{"type":"text","text":"a","more":1}]}', "application/json", 400, "invalid_content"),
    (json.dumps({"input": [{"type": "text", "text": ""}] * 65}).encode(), "application/json", 400, "invalid_content"),
    (json.dumps({**INPUT, "extra": 1}).encode(), "application/json", 400, "bad_request"),
    (json.dumps({**INPUT, "\ud800": 1}).encode(), "application/json", 400, "bad_request"),
    (json.dumps({**INPUT, "idempotency_key": None}).encode(), "application/json", 400, "bad_request"),
    (json.dumps({**INPUT, "idempotency_key": 1}).encode(), "application/json", 400, "bad_request"),
    (json.dumps({**INPUT, "idempotency_key": " k"}).encode(), "application/json", 400, "invalid_key"),
    (json.dumps(INPUT).encode(), "text/plain", 415, "unsupported_media_type"),
    (json.dumps(INPUT).encode(), "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
    (json.dumps(INPUT).encode(), "", 415, "unsupported_media_type"),
]


@pytest.mark.parametrize(("body", "media_type", "status", "code"), BODIES)
async def test_bad_bodies_are_refused_and_nothing_is_done(body: bytes, media_type: str, status: int, code: str) -> None:
    service = fake.FakeService()
    headers = {"content-type": media_type} if media_type else {}
    reply = await ask(service, "POST", ENQUEUE, content=body, headers=headers)
    refused(reply, status, code)
    assert service.calls == []


async def test_no_body_is_an_empty_object() -> None:
    service = fake.FakeService(close=b"{}")
    assert (await ask(service, "POST", f"/v1/sessions/{fake.SESSION}/close")).status_code == 200
    refused(await ask(service, "POST", ENQUEUE), 400, "bad_request")


async def test_what_is_wrong_is_named_with_its_place() -> None:
    body = {"input": [{"type": "text", "text": "a"}, {"type": "text"}], "unknown": 1, "idempotency_key": 5}
    reply = await ask(fake.FakeService(), "POST", ENQUEUE, json=body)
    refused(reply, 400, "bad_request")
    places = {each["path"] for each in reply.json()["error"]["details"]["fields"]}
    assert places == {"input.1.text.text", "unknown", "idempotency_key"}


async def test_nan_is_refused_by_name() -> None:
    body = b'{"input":[{"type":"json","value":NaN}]}'
    assert "NaN" in refused(
        await ask(fake.FakeService(), "POST", ENQUEUE, content=body, headers=JSON), 400, "invalid_json"
    )


async def test_half_an_emoji_and_nul_get_in_as_text() -> None:
    service = fake.FakeService(enqueue=fake.RECEIPT)
    body = b'{"input":[{"type":"text","text":"a\\ud83d b\\u0000"}]}'
    assert (await ask(service, "POST", ENQUEUE, content=body, headers=JSON)).status_code == 200
    assert encode(service.calls[0][1][2]) == '[{"text":"a� b\\u0000","type":"text"}]'.encode()


async def test_a_body_in_another_charset_spelling_is_json_all_the_same() -> None:
    service = fake.FakeService(enqueue=fake.RECEIPT)
    headers = {"content-type": "Application/JSON; charset=utf-8"}
    assert (await ask(service, "POST", ENQUEUE, content=json.dumps(INPUT), headers=headers)).status_code == 200


async def test_a_body_that_says_that_it_is_too_large_is_not_read() -> None:
    headers = {**JSON, "content-length": str(1024 * 1024 + 1)}
    reply = await ask(fake.FakeService(), "POST", ENQUEUE, content=_never(), headers=headers)
    message = refused(reply, 413, "content_too_large")
    assert "1048577 bytes" in message
    assert reply.json()["error"]["details"] == {"size": "1048577 bytes", "limit": "1048576 bytes"}


async def _never() -> AsyncIterator[bytes]:
    raise AssertionError("the body was read")
    yield b""


async def test_a_body_of_unknown_length_is_read_to_the_limit_only() -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 65536
            yield b" " * 65536

    refused(await ask(fake.FakeService(), "POST", ENQUEUE, content=endless(), headers=JSON), 413, "content_too_large")
    assert sent <= 1024 * 1024 + 2 * 65536


async def test_an_archive_may_be_larger_than_a_document() -> None:
    service = fake.FakeService(deploy=StoreError("disk full"))
    path, size = "/v1/deployments?promote=false", 2 * 1024 * 1024
    headers = {"content-type": "application/gzip"}
    refused(await ask(service, "POST", path, content=b"z" * size, headers=headers), 503, "store_unavailable")
    assert len(service.calls[0][1][1]) == size
    assert service.calls[0][2] == {"promote": False}
    refused(await ask(service, "POST", path, content=b"{}", headers=JSON), 415, "unsupported_media_type")


QUERIES: list[tuple[str, str, str]] = [
    ("/v1/sessions?nope=1", "bad_request", "nope"),
    ("/v1/sessions?limit=0", "bad_request", "limit"),
    ("/v1/sessions?limit=101", "bad_request", "limit"),
    ("/v1/sessions?limit=+5", "bad_request", "limit"),
    ("/v1/sessions?limit=5.0", "bad_request", "limit"),
    ("/v1/sessions?limit=", "bad_request", "limit"),
    ("/v1/sessions?limit=5&limit=6", "bad_request", "twice"),
    ("/v1/sessions?status=sleeping", "bad_request", "status"),
    ("/v1/sessions?key=%20a", "invalid_key", "white space"),
    ("/v1/sessions?project=Demo", "bad_request", "project"),
    ("/v1/sessions?environment=", "bad_request", "environment"),
    ("/v1/sessions?environment=a%2Fb", "bad_request", "environment"),
    ("/v1/sessions?cursor=zzzz", "invalid_cursor", "cursor"),
    ("/v1/server?project=demo", "bad_request", "project"),
    (f"/v1/sessions/{fake.SESSION}/events?after=-1", "bad_request", "after"),
    (f"/v1/sessions/{fake.SESSION}/events?after=1000000000000000000", "bad_request", "after"),
    (f"/v1/sessions/{fake.SESSION}/events?limit=1001", "bad_request", "limit"),
    (f"/v1/sessions/{fake.SESSION}/turns/{fake.TURN}/wait?timeout=61s", "bad_request", "60s"),
    (f"/v1/sessions/{fake.SESSION}/turns/{fake.TURN}/wait?timeout=5", "invalid_duration", "5"),
    (f"/v1/sessions/{fake.SESSION}/turns/{fake.TURN}/wait?timeout=0s", "invalid_duration", "0s"),
    ("/v1/sessions/not-an-id", "invalid_id", "not-an-id"),
    (f"/v1/sessions/{fake.SESSION.upper()}", "invalid_id", "UUIDv7"),
    (f"/v1/sessions/{fake.SESSION}/turns/1", "invalid_id", "turn_id"),
]


@pytest.mark.parametrize(("path", "code", "said"), QUERIES)
async def test_bad_queries_and_ids_are_refused(path: str, code: str, said: str) -> None:
    service = fake.FakeService()
    assert said in refused(await ask(service, "GET", path), 400, code)
    assert service.calls == []


def test_long_and_short_queries_are_parsed_alike() -> None:
    short = parse_query(SessionsQuery, b"status=open&status=closed&limit=7")
    long = parse_query(SessionsQuery, b"status=open&status=closed&limit=7&key=" + b"x" * 400)
    assert (short.status, short.limit, short.key) == (["open", "closed"], 7, None)
    assert (long.status, long.limit, long.key) == (["open", "closed"], 7, "x" * 400)


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/nope", "/v1/sessions/", "/healthz/", "/v1/agents/a%2Fb"])
async def test_unknown_paths_are_404(path: str) -> None:
    refused(await ask(fake.FakeService(), "GET", path), 404, "not_found")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "GET"])
async def test_wrong_methods_are_405_and_say_what_is_right(method: str) -> None:
    reply = await ask(fake.FakeService(), method, ENQUEUE)
    refused(reply, 405, "method_not_allowed")
    assert reply.headers["allow"] == "POST"


async def test_every_response_has_an_id_of_ours() -> None:
    theirs = {"x-request-id": fake.SESSION}
    service = fake.FakeService(session=fake.view())
    replies = [await ask(service, "GET", f"/v1/sessions/{fake.SESSION}", headers=theirs) for _ in range(2)]
    ids = {check_id(reply.headers["x-request-id"], "request id") for reply in replies}
    assert len(ids) == 2
    assert fake.SESSION not in ids


async def test_an_unexpected_error_tells_nothing_but_where_to_look(caplog: pytest.LogCaptureFixture) -> None:
    service = fake.FakeService(session=RuntimeError("secret /etc/passwd"))
    reply = await ask(service, "GET", f"/v1/sessions/{fake.SESSION}")
    message = refused(reply, 500, "internal_error")
    request_id = reply.headers["x-request-id"]
    assert request_id in message
    assert "secret" not in reply.text
    record = next(each for each in caplog.records if each.levelno == logging.ERROR)
    assert request_id in record.getMessage()
    assert record.exc_info is not None
    assert "secret" in str(record.exc_info[1])


async def test_a_bare_perdure_error_is_unexpected() -> None:
    reply = await ask(fake.FakeService(session=PerdureError("secret")), "GET", f"/v1/sessions/{fake.SESSION}")
    assert "secret" not in refused(reply, 500, "internal_error")


async def test_the_errors_of_rules_keep_their_code_status_and_details() -> None:
    for error in (
        SessionNotFound(fake.SESSION),
        IdempotencyConflict("k\ud800"),
        SessionNotOpen(fake.SESSION, "closing"),
    ):
        reply = await ask(fake.FakeService(enqueue=error), "POST", ENQUEUE, json=INPUT)
        refused(reply, error.status, error.code)
        assert reply.json()["error"].get("details", {}) == error.details


async def test_every_503_says_when_to_ask_again_and_nothing_else_does() -> None:
    for error, seconds in (
        (StoreError("The disk is full."), "2"),
        (StoreError("PostgreSQL does not answer.", {"retry_after_seconds": 7}), "7"),
        (SessionNotFound(fake.SESSION), None),
    ):
        reply = await ask(fake.FakeService(enqueue=error), "POST", ENQUEUE, json=INPUT)
        assert reply.headers.get("retry-after") == seconds
    described = openapi_document(OPERATIONS, "0")
    for path in described["paths"].values():
        for operation in path.values():
            for status, told in operation["responses"].items():
                assert ("Retry-After" in told["headers"]) is (status == "503")
    assert described["components"]["headers"]["RetryAfter"]["required"] is True


async def test_readiness_follows_the_service_and_the_stop() -> None:
    service = fake.FakeService(check_ready=None)
    app = fake.app_of(service)
    async with fake.client_of(app) as client:
        assert (await client.get("/readyz")).json() == {"status": "ready"}
        service.answers["check_ready"] = StoreError("The disk is full.")
        assert "disk is full" in refused(await client.get("/readyz"), 503, "store_unavailable")
        service.answers["check_ready"] = None
        app.state.stopping.begin()
        refused(await client.get("/readyz"), 503, "unavailable")
        assert (await client.get("/healthz")).json() == {"status": "ok"}


async def test_the_server_says_who_it_is() -> None:
    app = fake.app_of(fake.FakeService(), mode="dev")
    async with fake.client_of(app) as client:
        told = (await client.get("/v1/server")).json()
    assert told == {"version": app.state.identity.version, "instance_id": app.state.identity.instance_id, "mode": "dev"}


def test_routes_and_table_are_one() -> None:
    app = fake.app_of(fake.FakeService())
    routed = {route.path for route in app.routes if isinstance(route, Route)}
    assert routed == {operation.path for operation in OPERATIONS} | {"/metrics"}
    assert len({operation.id for operation in OPERATIONS}) == len(OPERATIONS)
    assert len({(operation.method, operation.path) for operation in OPERATIONS}) == len(OPERATIONS)


def test_every_documented_error_is_one_that_clients_know() -> None:
    known = by_code()
    for operation in OPERATIONS:
        for error in operation.all_errors:
            assert known[error.code].status == error.status
