"""The same metrics by OpenTelemetry (OTLP over HTTP), where the extra `otel` is installed and an endpoint is set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import structlog

from pipeline import __version__
from pipeline.errors import SettingsError
from pipeline.watching.metrics import METRICS

try:  # the extra `otel`
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.metrics import Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource

    _is_installed = True
except ImportError:
    _is_installed = False

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pipeline.settings import Settings
    from pipeline.watching.record import Record

_SECONDS: Final = 5
_log = structlog.get_logger()


def refuse_without_extra(settings: Settings) -> None:
    """Raise `SettingsError` when an endpoint is set and the extra is not installed: before a run, not after it."""
    if settings.otel_endpoint is not None and not _is_installed:
        raise SettingsError(
            "otel_endpoint is set, but OpenTelemetry is not installed.",
            remedy="Run `pip install 'scanlake[otel]'`, or take otel_endpoint out of the settings.",
        )


def send_telemetry(endpoint: str, record: Record, labels: Mapping[str, str]) -> bool:
    """Send the record's metrics once. False, and a warning in the log, where nobody took them."""
    exporter = OTLPMetricExporter(endpoint=f"{endpoint.removesuffix('/v1/metrics')}/v1/metrics", timeout=_SECONDS)
    taken: list[bool] = []
    export = exporter.export

    def noted(*arguments: Any, **more: Any) -> Any:
        result = export(*arguments, **more)
        taken.append(result.name == "SUCCESS")
        return result

    exporter.export = noted
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=float("inf"))
    resource = Resource.create({"service.name": "scanlake", "service.version": __version__})
    provider = MeterProvider(metric_readers=[reader], resource=resource, shutdown_on_exit=False)
    try:
        _observe(provider.get_meter("scanlake"), record, labels)
        provider.force_flush(_SECONDS * 1000)
    finally:
        provider.shutdown(_SECONDS * 1000)
    if not taken or not all(taken):
        _log.warning("telemetry.unsent", endpoint=endpoint)
    return bool(taken) and all(taken)


def _observe(meter: Any, record: Record, labels: Mapping[str, str]) -> None:
    for metric in METRICS:
        values = [Observation(value, {**labels, **own}) for own, value in metric.samples(record)]
        name = metric.name.removesuffix("_total").replace("scanlake_", "scanlake.", 1)
        make = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
        make(name, callbacks=[lambda _options, values=values: values], description=metric.help)
