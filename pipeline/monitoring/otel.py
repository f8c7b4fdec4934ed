"""The same metrics by OpenTelemetry (OTLP over HTTP): needs the extra `otel` and the setting otel_endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import structlog

from pipeline.errors import SettingsError
from pipeline.monitoring.metrics import METRICS
from pipeline.version import __version__

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

    from pipeline.monitoring.run_history import RunStats
    from pipeline.settings import Settings

_TIMEOUT_SECONDS: Final = 5
_log = structlog.get_logger()


def check_otel_installed(settings: Settings) -> None:
    """Raise `SettingsError` if an endpoint is set and the extra is not installed."""
    if settings.otel_endpoint is not None and not _is_installed:
        raise SettingsError(
            "otel_endpoint is set, but OpenTelemetry is not installed.",
            hint="Run `pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http`, or remove otel_endpoint.",
        )


def export_metrics(endpoint: str, stats: RunStats, labels: Mapping[str, str]) -> bool:
    """Send the metrics once; return whether the endpoint accepted them. A failure is logged."""
    url = f"{endpoint.removesuffix('/v1/metrics')}/v1/metrics"
    exporter = OTLPMetricExporter(endpoint=url, timeout=_TIMEOUT_SECONDS)
    accepted: list[bool] = []
    export = exporter.export

    def export_and_note(*args: Any, **kwargs: Any) -> Any:
        result = export(*args, **kwargs)
        accepted.append(result.name == "SUCCESS")
        return result

    exporter.export = export_and_note
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=float("inf"))
    resource = Resource.create({"service.name": "scanlake", "service.version": __version__})
    provider = MeterProvider(metric_readers=[reader], resource=resource, shutdown_on_exit=False)
    try:
        _observe(provider.get_meter("scanlake"), stats, labels)
        provider.force_flush(_TIMEOUT_SECONDS * 1000)
    finally:
        provider.shutdown(_TIMEOUT_SECONDS * 1000)
    is_accepted = bool(accepted) and all(accepted)
    if not is_accepted:
        _log.warning("telemetry.send_failed", endpoint=endpoint)
    return is_accepted


def _observe(meter: Any, stats: RunStats, labels: Mapping[str, str]) -> None:
    for metric in METRICS:
        values = [Observation(value, {**labels, **own}) for own, value in metric.samples(stats)]
        name = metric.name.removesuffix("_total").replace("scanlake_", "scanlake.", 1)
        create = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
        create(name, callbacks=[lambda _options, values=values: values], description=metric.help)
