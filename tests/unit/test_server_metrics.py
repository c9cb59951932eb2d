"""What those who watch a server see of it: `/metrics`, counts of requests, and their spans."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import server_fakes as fake
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from perdure.errors import StoreError
from perdure.server.app import build_health_app
from perdure.server.auth import AuthPolicy, hash_key
from perdure.telemetry import exposition, traces
from perdure.telemetry.instruments import recording
from perdure.telemetry.traces import of_turn, parse

ENQUEUE = f"/v1/sessions/{fake.SESSION}/enqueue"
CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
INPUT = {"input": [{"type": "text", "text": "hi"}]}


@pytest.fixture(autouse=True)
def counting() -> Iterator[None]:
    recording(True)
    yield
    recording(False)


def requests(text: str) -> dict[tuple[str, str], float]:
    """The count of requests, by operation and status."""
    return {
        (sample.labels["operation"], sample.labels["status"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "perdure_http_requests_total"
    }


def grown(before: str, after: str) -> dict[tuple[str, str], float]:
    known = requests(before)
    return {key: value - known.get(key, 0) for key, value in requests(after).items() if value != known.get(key, 0)}


async def test_requests_are_counted_by_operation_and_status() -> None:
    service = fake.FakeService(enqueue=fake.RECEIPT, check_ready=StoreError("The disk is full."))
    before = exposition.render().decode()
    async with fake.client_of(fake.app_of(service)) as client:
        assert (await client.post(ENQUEUE, json=INPUT)).status_code == 200
        await client.post(ENQUEUE, content=b"{", headers={"content-type": "application/json"})
        await client.get("/readyz")
        await client.get("/nowhere")
        shown = await client.get("/metrics")
    assert shown.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    told = grown(before, shown.text)
    assert told == {("enqueue", "200"): 1, ("enqueue", "400"): 1, ("readyz", "503"): 1, ("none", "404"): 1}


async def test_metrics_need_a_key_where_requests_do() -> None:
    app = fake.app_of(fake.FakeService(), keys=[hash_key("secret")])
    async with fake.client_of(app, "http://perdure.example.org") as client:
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/metrics", headers={"authorization": "Bearer secret"})).status_code == 200


async def test_without_keys_metrics_are_for_this_machine() -> None:
    async with fake.client_of(fake.app_of(fake.FakeService()), "http://perdure.example.org") as client:
        assert (await client.get("/metrics")).status_code == 403


async def test_metrics_are_read_and_nothing_else() -> None:
    async with fake.client_of(fake.app_of(fake.FakeService())) as client:
        refused = await client.post("/metrics")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET")
        assert (await client.head("/metrics")).content == b""


async def test_a_worker_shows_its_metrics_to_this_machine_or_to_those_with_a_key() -> None:
    service = fake.FakeService(check_ready=None)
    near = build_health_app(service, AuthPolicy())  # type: ignore[arg-type]
    far = build_health_app(service, AuthPolicy([hash_key("secret")], closed=True))  # type: ignore[arg-type]
    async with fake.client_of(near) as client:
        assert (await client.get("/metrics")).status_code == 200
    async with fake.client_of(far, "http://10.0.0.7:7374") as client:
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/metrics", headers={"authorization": "Bearer secret"})).status_code == 200
        assert (await client.get("/readyz")).status_code == 200


async def test_a_server_without_the_extra_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "find_spec", lambda _: None)
    async with fake.client_of(fake.app_of(fake.FakeService())) as client:
        refused = await client.get("/metrics")
        assert (refused.status_code, refused.json()["error"]["code"]) == (501, "not_supported")


# --- spans


async def test_a_request_that_is_traced_points_at_its_turn() -> None:
    exporter = InMemorySpanExporter()
    traces.install(works=False, exporter=exporter)
    try:
        async with fake.client_of(fake.app_of(fake.FakeService(enqueue=fake.RECEIPT))) as client:
            await client.post(ENQUEUE, json=INPUT, headers={"traceparent": CALLER})
            await client.get("/healthz")
    finally:
        traces.uninstall()
    (span,) = exporter.get_finished_spans()
    caller = parse(CALLER.encode())
    assert caller is not None
    assert span.parent is not None
    assert (span.parent.trace_id, span.parent.span_id) == (caller.trace, caller.span)
    assert dict(span.attributes or {}) == {
        "http.request.method": "POST",
        "http.route": "enqueue",
        "http.response.status_code": 200,
    }
    (link,) = span.links
    assert (link.context.trace_id, link.context.span_id) == (of_turn(fake.TURN).trace, of_turn(fake.TURN).span)


async def test_an_error_of_the_server_s_is_one_in_the_trace() -> None:
    exporter = InMemorySpanExporter()
    traces.install(exporter=exporter)
    try:
        async with fake.client_of(fake.app_of(fake.FakeService(enqueue=StoreError("The disk is full.")))) as client:
            await client.post(ENQUEUE, json=INPUT)
    finally:
        traces.uninstall()
    (span,) = exporter.get_finished_spans()
    assert not span.status.is_ok
    assert span.links == ()
