"""Spans for OpenTelemetry, made when they have ended. Needs the extra `perdure[telemetry]`.

Where spans go is said by OpenTelemetry's own environment variables: without `OTEL_EXPORTER_OTLP_ENDPOINT` (or the one
for traces) there are none.

The ids of a turn's span are made from the turn's id alone, so that a server that accepts an input can point at the
span of a turn that another machine will run. A turn that is run by the process that accepted it goes into the caller's
trace, when the caller has sent a `traceparent`.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from perdure.errors import NotSupported

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import SpanContext

Attributes: TypeAlias = Mapping[str, str | int | float | bool]

log = logging.getLogger("perdure.telemetry")

PATIENCE: Final = 3.0
"""Seconds for which a process that ends waits for the collector."""
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_TRACEPARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)
_CALLERS: Final = 10_000
_NANOS: Final = 1_000


class SpanId(msgspec.Struct, frozen=True):
    """Which span is meant, wherever it was made."""

    trace: int
    span: int
    sampled: bool = True


def parse(traceparent: bytes | None) -> SpanId | None:
    """Return the caller that a `traceparent` header names; None when there is none that can be understood."""
    match = _TRACEPARENT.fullmatch((traceparent or b"").decode("latin-1"))
    return None if match is None else SpanId(int(match[1], 16), int(match[2], 16), bool(int(match[3], 16) & 1))


def of_turn(turn_id: str) -> SpanId:
    """Return the span that a turn has in a trace of its own."""
    # Not the id itself: samplers take the second half of a trace's id for a random number.
    digest = hashlib.sha256(turn_id.encode()).digest()
    return SpanId(int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:24], "big"))


class Span(msgspec.Struct, frozen=True):
    """A span that has ended; `start`, `end` and the instants of `events` in microseconds since 1970."""

    name: str
    start: int
    end: int
    attributes: Attributes
    parent: SpanId | None = None
    links: tuple[SpanId, ...] = ()
    events: tuple[tuple[str, int], ...] = ()
    error: str | None = None
    kind: str = "INTERNAL"


class Tracer:
    """Makes spans. `works` says that this process runs turns itself. Used on one event loop."""

    def __init__(self, provider: TracerProvider, ids: Any, *, works: bool) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("perdure")
        self._ids = ids
        self._works = works
        self._callers: OrderedDict[str, SpanId] = OrderedDict()

    def request(self, span: Span, turn_id: str | None) -> None:
        """Make the span of a request, which may have been the cause of a turn."""
        if turn_id is not None and self._works and span.parent is not None:
            self._callers[turn_id] = span.parent
            while len(self._callers) > _CALLERS:
                self._callers.popitem(last=False)
        elif turn_id is not None:
            span = msgspec.structs.replace(span, links=(of_turn(turn_id),))
        self.make(span)

    def turn(self, span: Span, turn_id: str) -> None:
        """Make the span of a turn that has ended."""
        caller = self._callers.pop(turn_id, None)
        self.make(msgspec.structs.replace(span, parent=caller), of_turn(turn_id))

    def step(self, span: Span, turn_id: str) -> None:
        """Make the span of a step that has ended, within its turn's."""
        turn, caller = of_turn(turn_id), self._callers.get(turn_id)
        # A turn that has a caller is in that one's trace.
        parent = turn if caller is None else SpanId(caller.trace, turn.span, caller.sampled)
        self.make(msgspec.structs.replace(span, parent=parent))

    def make(self, span: Span, own: SpanId | None = None) -> None:
        """Make a span, with ids of chance or those that are given."""
        from opentelemetry.context import Context
        from opentelemetry.trace import Link, NonRecordingSpan, SpanKind, Status, StatusCode, set_span_in_context

        context = Context()
        if span.parent is not None:
            context = set_span_in_context(NonRecordingSpan(_context(span.parent)), context)
        links = [Link(_context(each)) for each in span.links]
        self._ids.following = own
        made = self._tracer.start_span(
            span.name, context, SpanKind[span.kind], span.attributes, links, span.start * _NANOS
        )
        self._ids.following = None
        for event, at in span.events:
            made.add_event(event, timestamp=at * _NANOS)
        if span.error is not None:
            made.set_status(Status(StatusCode.ERROR, span.error))
        made.end(span.end * _NANOS)

    def close(self) -> None:
        """Send what was not sent yet; a collector that is away is waited for a few seconds."""
        # The exporter would wait for longer than whoever stops us does; its thread ends with the process.
        sending = threading.Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        sending.join(PATIENCE)
        if sending.is_alive():
            log.warning("the last spans could not be sent within %g s and are lost", PATIENCE)


_tracer: Tracer | None = None


def tracer() -> Tracer | None:
    """Return what makes spans, None while nobody wants them."""
    return _tracer


def wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment says where spans are to go."""
    disabled = environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    return not disabled and any(environ.get(name) for name in _ENDPOINTS)


def install(*, works: bool = True, exporter: SpanExporter | None = None) -> Tracer | None:
    """Begin to make spans if they are wanted, or if there is an `exporter` for them; `uninstall` ends it.

    Raises `NotSupported` when spans are wanted and the extra is not installed.
    """
    global _tracer
    if exporter is None and not wanted():
        return None
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
        raise NotSupported(
            "The environment asks for traces (OTEL_EXPORTER_OTLP_ENDPOINT), and this installation cannot make them. "
            "Nothing was started: pip install 'perdure[telemetry]', or set OTEL_SDK_DISABLED=true."
        )
    _tracer = _make_tracer(works, exporter)
    return _tracer


def uninstall() -> None:
    """Make no more spans, and send those that are left."""
    global _tracer
    if _tracer is not None:
        _tracer.close()
    _tracer = None


def _make_tracer(works: bool, exporter: SpanExporter | None) -> Tracer:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    class Ids(RandomIdGenerator):
        """Ids of chance, but for a span whose ids are known."""

        following: SpanId | None = None

        def generate_trace_id(self) -> int:
            return self.following.trace if self.following else super().generate_trace_id()

        def generate_span_id(self) -> int:
            return self.following.span if self.following else super().generate_span_id()

    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "perdure"}
    ids = Ids()
    provider = TracerProvider(resource=Resource.create(named), id_generator=ids, shutdown_on_exit=False)
    if exporter is not None:
        provider.add_span_processor(SimpleSpanProcessor(exporter))
    else:
        provider.add_span_processor(BatchSpanProcessor(_otlp()))
    return Tracer(provider, ids, works=works)


def _otlp() -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _context(of: SpanId) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(of.trace, of.span, is_remote=True, trace_flags=TraceFlags(of.sampled))
