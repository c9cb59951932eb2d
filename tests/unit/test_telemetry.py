"""What operators are told: counts and durations, and spans of turns that can be found from anywhere."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from perdure.errors import NotSupported
from perdure.records.ids import instant_of, new_id
from perdure.records.instants import now
from perdure.records.sessions import SYSTEM, Limits
from perdure.rules import commands as c
from perdure.store.sqlite import SqliteStore
from perdure.telemetry import exposition, traces
from perdure.telemetry.instruments import OTHER, SERIES, Counter, Gauge, Histogram, is_recording, recording
from perdure.telemetry.metrics import ALL
from perdure.telemetry.observer import observe
from perdure.telemetry.process import observed
from perdure.telemetry.traces import Span, SpanId, of_turn, parse

CALLER = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture
def counting() -> Iterator[None]:
    recording(True)
    yield
    recording(False)


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    traces.install(exporter=exporter)
    yield exporter
    traces.uninstall()


def values() -> dict[tuple[str, tuple[str, ...]], float]:
    """What Prometheus would read: samples by name and values of labels."""
    families = text_string_to_metric_families(exposition.render().decode())
    return {(each.name, tuple(each.labels.values())): each.value for family in families for each in family.samples}


class Since:
    """How much samples have grown since this was made: instruments are the process's, and other tests count too."""

    def __init__(self) -> None:
        self._before = values()

    def __getitem__(self, key: tuple[str, tuple[str, ...]]) -> float:
        return values().get(key, 0.0) - self._before.get(key, 0.0)


# --- instruments


def test_nothing_is_counted_before_it_is_wanted() -> None:
    counter, histogram = Counter("a_total", "A", "kind"), Histogram("b", "B", bounds=(1.0,))
    counter.add("x")
    histogram.observe(1.0)
    assert counter.samples() == []
    assert list(histogram.samples()) == []


def test_a_counter_counts_by_labels(counting: None) -> None:
    counter = Counter("a_total", "A", "kind")
    counter.add("x")
    counter.add("x", by=2)
    counter.add("y")
    assert dict(counter.samples()) == {("x",): 3, ("y",): 1}
    assert Counter("b_total", "B").samples() == [((), 0.0)]


def test_labels_are_bounded(counting: None) -> None:
    counter, histogram = Counter("a_total", "A", "kind"), Histogram("b", "B", "kind", bounds=(1.0,))
    for number in range(SERIES + 7):
        counter.add(str(number))
        histogram.observe(0.0, str(number))
    counter.add("0")
    assert len(counter.samples()) == SERIES + 1
    assert dict(counter.samples())[OTHER,] == 7
    assert dict(counter.samples())["0",] == 2
    assert {labels: counts[-1] for labels, counts, _ in histogram.samples()}[OTHER,] == 7


def test_a_histogram_has_each_value_in_its_bucket(counting: None) -> None:
    histogram = Histogram("b", "B", bounds=(1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    assert list(histogram.samples()) == [((), [2, 4, 5], 14.0)]


def test_a_gauge_is_the_sum_of_what_its_sources_say() -> None:
    gauge = Gauge("c", "C")
    first, second = gauge.follow(lambda: 2), gauge.follow(lambda: 3)
    assert gauge.samples() == [((), 5.0)]
    first()
    first()
    assert gauge.samples() == [((), 3.0)]
    second()
    assert gauge.samples() == []


# --- Prometheus


def test_what_is_shown_is_what_prometheus_reads(counting: None) -> None:
    names = {name for name, _ in values()}
    assert {"perdure_commits_total", "process_cpu_seconds_total"} <= names


def test_the_guide_lists_all_metrics() -> None:
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "monitor.md").read_text("utf-8")
    rows = re.findall(r"^\| `(perdure_\w+)` \| ([^|]*) \| ([^|]*) \|$", text, re.M)
    told = [(name, tuple(re.findall(r"`(\w+)`", labels)), meaning.lower()) for name, labels, meaning in rows]
    assert told == [(each.name, each.labels, each.meaning.lower()) for each in ALL]


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "find_spec", lambda _: None)
    assert not exposition.install()
    with pytest.raises(NotSupported, match=r"perdure\[metrics\]"):
        exposition.render()


def test_nothing_is_loaded_before_it_is_needed() -> None:
    code = (
        "import sys; from perdure.telemetry import exposition, metrics, observer, traces; assert exposition.install();"
        "metrics.COMMITS.add(); print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True).stdout
    assert not [name for name in loaded.split() if name.startswith(("prometheus_client", "opentelemetry"))]


# --- commits


class World:
    """A store whose commits are observed, and a session in it."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.session = new_id()
        self.turn = new_id()
        self.run = new_id()

    async def create(self, *, resumes: bool = False) -> None:
        await self.store.apply(
            c.CreateSession(
                session_id=self.session,
                environment="demo/development",
                agent="observed",
                deployment=new_id(),
                host="inline",
                limits=Limits(),
                turn=c.NewTurn(self.turn, b"[]"),
                permit=c.Permit("worker", self.run),
                resumes=resumes,
            )
        )

    async def complete(self) -> None:
        await self.store.apply(
            c.CompleteTurn(session_id=self.session, fence=1, turn=1, response_json=None, result_json=b"null")
        )

    async def enqueue(self) -> None:
        turn = c.NewTurn(new_id(), b"[]")
        await self.store.apply(c.Enqueue(session_id=self.session, turn=turn, permit=c.Permit("worker")))

    async def cancel(self) -> None:
        await self.store.apply(c.Cancel(session_id=self.session, control_id=new_id(), issuer=SYSTEM))


@pytest.fixture
async def world(tmp_path: Path) -> Any:
    store = SqliteStore(tmp_path)
    await store.open()
    yield World(store)
    await store.close()


@pytest.fixture
def watched(world: World) -> World:
    """The same, with somebody who counts."""
    world.store.subscribe(observe)
    return world


async def test_turns_are_counted_with_their_outcomes(watched: World, counting: None) -> None:
    since = Since()
    await watched.create()
    await watched.complete()
    await watched.enqueue()
    await watched.enqueue()
    await watched.cancel()
    assert since["perdure_sessions_created_total", ("observed",)] == 1
    assert since["perdure_turns_admitted_total", ("observed",)] == 3
    assert since["perdure_turns_total", ("observed", "completed")] == 1
    assert since["perdure_turns_total", ("observed", "cancelled")] == 2
    # The one that only waited has no length.
    assert since["perdure_turn_seconds_count", ("observed", "cancelled")] == 1
    assert since["perdure_turn_queue_seconds_count", ("observed",)] == 2
    assert since["perdure_runs_started_total", ("inline", "initial")] == 1
    assert since["perdure_sessions_ended_total", ("cancelled",)] == 1


async def test_a_lost_run_is_counted_and_its_turn_is_interrupted(watched: World, counting: None) -> None:
    since = Since()
    await watched.create()
    await watched.store.apply(
        c.RunLost(
            session_id=watched.session, fence=1, worker="another", run_id=watched.run, reason="gone", hold_id=new_id()
        )
    )
    assert since["perdure_turns_total", ("observed", "interrupted")] == 1
    assert since["perdure_runs_ended_total", ("inline", "process_lost")] == 1


async def test_an_adoption_is_counted(watched: World, counting: None) -> None:
    since = Since()
    await watched.create()
    await watched.store.apply(c.AdoptRun(session_id=watched.session, fence=1, worker="another", run_id=watched.run))
    assert since["perdure_runs_adopted_total", ()] == 1


async def test_commits_are_counted_with_what_shared_them(watched: World, counting: None) -> None:
    since = Since()
    await watched.create()
    assert since["perdure_commits_total", ()] == 1
    assert since["perdure_commit_commands_sum", ()] == 1
    assert since["perdure_commit_seconds_sum", ()] > 0


# --- a process


async def test_a_process_counts_while_it_runs(world: World) -> None:
    async with observed(world.store.subscribe, works=True, awake=lambda: 3, watchers=lambda: 4):
        since = Since()
        await world.create()
        assert since["perdure_sessions_created_total", ("observed",)] == 1
        assert values()["perdure_sessions_awake", ()] == 3
        assert values()["perdure_watchers", ()] == 4
    await world.complete()
    assert since["perdure_turns_total", ("observed", "completed")] == 0
    assert ("perdure_watchers", ()) not in values()


async def test_a_process_without_the_extras_is_not_observed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "find_spec", lambda _: None)
    subscribed: list[object] = []

    def subscribe(listener: object) -> Callable[[], None]:
        subscribed.append(listener)
        return lambda: None

    async with observed(subscribe, works=True, awake=lambda: 0, watchers=lambda: 0):
        assert not subscribed
        assert not is_recording()


# --- spans


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def turns(spans: InMemorySpanExporter) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == "turn"]


async def test_a_turn_s_span_is_found_by_the_turn_s_id(watched: World, spans: InMemorySpanExporter) -> None:
    await watched.create()
    await watched.complete()
    (span,) = turns(spans)
    own = of_turn(watched.turn)
    assert span.context is not None
    assert (span.context.trace_id, span.context.span_id, span.parent) == (own.trace, own.span, None)
    told = attributes(span)
    assert told["perdure.session.id"] == watched.session
    assert told["perdure.turn.id"] == watched.turn
    assert told["perdure.turn.number"] == 1
    assert told["perdure.turn.outcome"] == "completed"
    assert told["perdure.agent"] == "observed"
    assert told["perdure.queue_seconds"] >= 0
    assert [event.name for event in span.events] == ["started"]
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.start_time <= span.events[0].timestamp <= span.end_time
    assert span.status.is_ok


async def test_a_turn_that_fails_is_an_error(watched: World, spans: InMemorySpanExporter) -> None:
    await watched.create()
    await watched.store.apply(c.FailTurn(session_id=watched.session, fence=1, turn=1, error_json=b"{}"))
    (span,) = turns(spans)
    assert attributes(span)["perdure.turn.outcome"] == "failed"
    assert not span.status.is_ok


async def test_a_turn_that_runs_here_is_in_its_caller_s_trace(watched: World, spans: InMemorySpanExporter) -> None:
    made, caller = traces.tracer(), parse(CALLER)
    assert made is not None
    assert caller is not None
    await watched.create()
    made.request(Span("POST", now(), now(), {}, parent=caller, kind="SERVER"), watched.turn)
    await watched.complete()
    (turn,) = turns(spans)
    (request,) = [span for span in spans.get_finished_spans() if span.name == "POST"]
    assert request.context is not None
    assert turn.parent is not None
    assert request.context.trace_id == caller.trace
    assert request.links == ()
    assert (turn.parent.trace_id, turn.parent.span_id) == (caller.trace, caller.span)


async def test_a_turn_that_runs_elsewhere_is_pointed_at() -> None:
    exporter, caller, turn = InMemorySpanExporter(), parse(CALLER), new_id()
    made = traces.install(works=False, exporter=exporter)
    assert made is not None
    made.request(Span("POST", now(), now(), {}, parent=caller, kind="SERVER"), turn)
    traces.uninstall()
    (request,) = exporter.get_finished_spans()
    (link,) = request.links
    own = of_turn(turn)
    assert (link.context.trace_id, link.context.span_id) == (own.trace, own.span)
    assert traces.tracer() is None


@pytest.mark.parametrize(
    "header",
    [
        None,
        b"",
        b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
        b"00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        b"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        b"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        b"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        b"\xff\x00nonsense",
    ],
)
def test_what_is_no_traceparent_names_no_caller(header: bytes | None) -> None:
    assert parse(header) is None


def test_a_traceparent_names_the_caller() -> None:
    assert parse(CALLER) == SpanId(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, True)
    unsampled = parse(CALLER[:-1] + b"0")
    assert unsampled is not None
    assert not unsampled.sampled
    assert parse(CALLER.replace(b"00-", b"01-", 1) + b"-later") == parse(CALLER)


async def test_steps_are_counted_and_their_spans_are_within_the_turn_s(
    watched: World, counting: None, spans: InMemorySpanExporter
) -> None:
    since = Since()
    await watched.create(resumes=True)
    worker = {"session_id": watched.session, "fence": 1, "turn": 1}
    for name in ("good", "bad"):
        await watched.store.apply(c.BeginStep(name=name, replay="safe", request=b"", **worker))
    for name, status in (("good", "completed"), ("bad", "failed")):
        await watched.store.apply(c.EndStep(name=name, status=status, outcome_json=b"{}", **worker))  # type: ignore[arg-type]
    await watched.complete()
    (turn,) = turns(spans)
    steps = {
        str((span.attributes or {})["perdure.step"]): span for span in spans.get_finished_spans() if span.name == "step"
    }
    assert set(steps) == {"good", "bad"}
    for span in steps.values():
        assert span.parent is not None
        assert (span.parent.span_id, span.context.trace_id) == (turn.context.span_id, turn.context.trace_id)
        assert (span.start_time or 0) <= (span.end_time or 0)
    assert not steps["bad"].status.is_ok
    assert since["perdure_steps_total", ("observed", "completed")] == 1
    assert since["perdure_steps_total", ("observed", "failed")] == 1
    assert since["perdure_step_seconds_count", ("observed", "completed")] == 1


async def test_commits_have_spans(watched: World, spans: InMemorySpanExporter) -> None:
    await watched.create()
    (span,) = [span for span in spans.get_finished_spans() if span.name == "commit"]
    assert attributes(span) == {"perdure.commands": 1}


async def test_what_the_caller_does_not_sample_is_not_kept(watched: World, spans: InMemorySpanExporter) -> None:
    made = traces.tracer()
    assert made is not None
    made.request(Span("POST", now(), now(), {}, parent=parse(CALLER[:-1] + b"0")), watched.turn)
    await watched.create()
    await watched.complete()
    assert not turns(spans)


def test_spans_are_made_where_the_environment_says_so() -> None:
    assert not traces.wanted({})
    assert traces.wanted({ENDPOINT: "http://127.0.0.1:4318"})
    assert not traces.wanted({ENDPOINT: "http://127.0.0.1:4318", "OTEL_SDK_DISABLED": "TRUE"})
    assert not traces.wanted({ENDPOINT: ""})


def test_spans_that_are_wanted_and_cannot_be_made_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:4318")
    monkeypatch.setattr(traces, "wanted", lambda: True)
    monkeypatch.setattr(traces, "find_spec", lambda _: None)
    with pytest.raises(NotSupported, match=r"perdure\[telemetry\]"):
        traces.install()


def test_a_collector_that_is_away_keeps_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    away = threading.Event()
    monkeypatch.setattr(traces, "PATIENCE", 0.05)
    made = traces.install(exporter=InMemorySpanExporter())
    assert made is not None
    monkeypatch.setattr(made._provider, "shutdown", away.wait)
    traces.uninstall()
    assert "could not be sent" in caplog.text
    away.set()


def test_trace_ids_are_spread_as_samplers_expect() -> None:
    """A sampler takes the lower 64 bits for a random number; those of a UUIDv7 begin with two that are always one."""
    high = sum(of_turn(new_id()).trace >> 63 & 1 for _ in range(400))
    assert 120 < high < 280


def test_an_id_tells_when_it_was_made() -> None:
    assert abs(instant_of(new_id()) - now()) < 60_000_000
