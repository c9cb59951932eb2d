"""What Prometheus reads. Needs the extra `perdure[metrics]`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from perdure.errors import NotSupported
from perdure.telemetry.instruments import Counter, Gauge, Histogram, Instrument, recording
from perdure.telemetry.metrics import ALL

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def install() -> bool:
    """Begin to record if there is what can show it; returns whether there is."""
    if find_spec("prometheus_client") is None:
        return False
    recording(True)
    return True


def render() -> bytes:
    """Return all metrics of this process as text; raises `NotSupported` without the extra."""
    if find_spec("prometheus_client") is None:
        raise NotSupported("This server was installed without metrics: pip install 'perdure[metrics]'.")
    from prometheus_client import generate_latest

    return generate_latest(_registry())


@cache
def _registry() -> CollectorRegistry:
    from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    registry.register(_Ours())
    return registry


class _Ours:
    """Gives the registry our instruments as they are when it asks."""

    def collect(self) -> Iterator[Metric]:
        return (_family(instrument) for instrument in ALL)


def _family(instrument: Instrument) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    name, meaning, labels = instrument.name, instrument.meaning, instrument.labels
    if isinstance(instrument, Counter):
        counter = CounterMetricFamily(name, meaning, labels=labels)
        for values, value in instrument.samples():
            counter.add_metric(values, value)
        return counter
    if isinstance(instrument, Gauge):
        gauge = GaugeMetricFamily(name, meaning, labels=labels)
        for values, value in instrument.samples():
            gauge.add_metric(values, value)
        return gauge
    assert isinstance(instrument, Histogram)
    histogram = HistogramMetricFamily(name, meaning, labels=labels)
    ends = [*(str(bound) for bound in instrument.bounds), "+Inf"]
    for values, counts, total in instrument.samples():
        histogram.add_metric(values, list(zip(ends, counts, strict=True)), total)
    return histogram
