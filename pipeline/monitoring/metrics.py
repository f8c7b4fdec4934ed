"""Metrics of a lake as a Prometheus text file, for the textfile collector of the node exporter.

Ages are left to the query: `time() - scanlake_watermark_timestamp_seconds`. Units are seconds and bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import structlog

from pipeline import __version__
from pipeline.atomic_files import write_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pipeline.monitoring.run_history import RunStats

    Samples = Iterator[tuple[Mapping[str, str], float]]

_WORLD_READABLE: Final = 0o644
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: its name, its meaning, and its samples as (labels, value)."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    samples: Callable[[RunStats], Samples]


def _gauge_value(get_value: Callable[[RunStats], Any]) -> Callable[[RunStats], Samples]:
    """Return a function that yields one sample without labels, or nothing for an unknown value."""

    def samples(stats: RunStats) -> Samples:
        value = get_value(stats)
        if value is not None:
            yield {}, float(value)

    return samples


def _make_labelled_getter(
    label: str, get_values: Callable[[RunStats], Mapping[str, Any]]
) -> Callable[[RunStats], Samples]:
    def samples(stats: RunStats) -> Samples:
        for key, value in sorted(get_values(stats).items()):
            yield {label: key}, float(value)

    return samples


def _lake_value(name: str) -> Callable[[RunStats], Samples]:
    return _gauge_value(lambda stats: stats.lake.get(name))


METRICS: Final = (
    Metric("scanlake_last_success_timestamp_seconds", "gauge", "End of the last successful run.",
           _gauge_value(lambda stats: stats.last_success)),
    Metric("scanlake_last_run_timestamp_seconds", "gauge", "End of the last run, successful or not.",
           _gauge_value(lambda stats: stats.last_ended)),
    Metric("scanlake_last_run_exit_code", "gauge", "Exit code of the last run.",
           _gauge_value(lambda stats: stats.last_code)),
    Metric("scanlake_last_run_duration_seconds", "gauge", "Duration of the last run.",
           _gauge_value(lambda stats: stats.last_seconds)),
    Metric("scanlake_consecutive_failures", "gauge", "Failed runs since the last successful one.",
           _gauge_value(lambda stats: stats.failures)),
    Metric("scanlake_runs_total", "counter", "Runs by exit code.",
           _make_labelled_getter("exit_code", lambda stats: stats.runs)),
    Metric("scanlake_run_seconds_total", "counter", "Duration of all runs.", _gauge_value(lambda stats: stats.seconds)),
    Metric("scanlake_watermark_timestamp_seconds", "gauge", "Everything updated before this instant is in the lake.",
           _lake_value("watermark")),
    Metric("scanlake_files", "gauge", "Files in the lake.", _lake_value("files")),
    Metric("scanlake_deleted_files", "gauge", "Files that the service no longer has.", _lake_value("deleted_files")),
    Metric("scanlake_rejects", "gauge", "Documents and files that are rejected at present.", _lake_value("rejects")),
    Metric("scanlake_snapshot", "gauge", "Number of the published snapshot.", _lake_value("snapshot")),
    Metric("scanlake_lake_size_bytes", "gauge", "Size of the lake's folder.", _lake_value("bytes")),
    Metric("scanlake_last_verify_timestamp_seconds", "gauge", "Last comparison with the service's full list.",
           _lake_value("verified_at")),
    Metric("scanlake_last_verify_consistent", "gauge", "1 if that comparison found no difference.",
           _lake_value("verified_consistent")),
    Metric("scanlake_files_fetched_total", "counter", "Files that successful runs fetched.",
           _gauge_value(lambda stats: stats.fetched)),
    Metric("scanlake_requests_total", "counter", "API calls of successful runs.",
           _make_labelled_getter("kind", lambda stats: stats.requests)),
    Metric("scanlake_retries_total", "counter", "Retries of successful runs.",
           _gauge_value(lambda stats: stats.retries)),
    Metric("scanlake_throttled_total", "counter", "Responses 429 to successful runs.",
           _gauge_value(lambda stats: stats.throttled)),
    Metric("scanlake_learned_requests_per_second", "gauge", "Rate limit of the service, as learned; absent: none met.",
           _lake_value("rate")),
    Metric("scanlake_learned_concurrency", "gauge", "Concurrency learned from the service.",
           _lake_value("concurrency")),
)  # fmt: skip


def render_prometheus(stats: RunStats, labels: Mapping[str, str]) -> str:
    """Return the metrics in Prometheus' text format, with `labels` on every sample."""
    lines = [
        "# HELP scanlake_build_info The version of scanlake.",
        "# TYPE scanlake_build_info gauge",
        f"scanlake_build_info{_format_labels({**labels, 'version': __version__})} 1",
    ]
    for metric in METRICS:
        samples = list(metric.samples(stats))
        if samples:
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
            lines += [
                f"{metric.name}{_format_labels({**labels, **own})} {_format_value(value)}" for own, value in samples
            ]
    return "\n".join(lines) + "\n"


def write_metrics(path: Path, stats: RunStats, labels: Mapping[str, str]) -> None:
    """Write the metrics to the file; a failure is logged."""
    write_or_warn(path, render_prometheus(stats, labels), subject="metrics")


def write_or_warn(path: Path, text: str, *, subject: str) -> None:
    """Write a file for other programs atomically; on failure log `SUBJECT.write_failed`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, text, mode=_WORLD_READABLE, durable=False)
    except OSError as error:
        _log.warning(f"{subject}.write_failed", path=str(path), reason=error.strerror or type(error).__name__)


def _format_labels(labels: Mapping[str, str]) -> str:
    escaped = (
        (name, value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')) for name, value in labels.items()
    )
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}" if labels else ""


def _format_value(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
