"""The metrics of a lake as a Prometheus text file, for the textfile collector of a node's exporter.

Ages are left to whoever asks: `time() - scanlake_horizon_timestamp_seconds`. Units are seconds and bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from pipeline import __version__
from pipeline.watching.places import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pipeline.watching.record import Record


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: how it is called, what it means, and its samples as (labels, value) out of a record."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    samples: Callable[[Record], Iterator[tuple[Mapping[str, str], float]]]


def _one(take: Callable[[Record], Any]) -> Callable[[Record], Iterator[tuple[Mapping[str, str], float]]]:
    """One sample without labels of its own; none where the value is not known."""

    def samples(record: Record) -> Iterator[tuple[Mapping[str, str], float]]:
        value = take(record)
        if value is not None:
            yield {}, float(value)

    return samples


def _each(
    label: str, take: Callable[[Record], Mapping[str, Any]]
) -> Callable[[Record], Iterator[tuple[Mapping[str, str], float]]]:
    def samples(record: Record) -> Iterator[tuple[Mapping[str, str], float]]:
        for key, value in sorted(take(record).items()):
            yield {label: key}, float(value)

    return samples


def _fact(name: str) -> Callable[[Record], Iterator[tuple[Mapping[str, str], float]]]:
    return _one(lambda record: record.lake.get(name))


METRICS: Final = (
    Metric(
        "scanlake_last_success_timestamp_seconds",
        "gauge",
        "When the last run that did its work ended.",
        _one(lambda record: record.last_success),
    ),
    Metric(
        "scanlake_last_run_timestamp_seconds",
        "gauge",
        "When the last run ended, however it did.",
        _one(lambda record: record.last_ended),
    ),
    Metric(
        "scanlake_last_run_exit_code", "gauge", "Exit code of the last run.", _one(lambda record: record.last_code)
    ),
    Metric(
        "scanlake_last_run_duration_seconds",
        "gauge",
        "How long the last run took.",
        _one(lambda record: record.last_seconds),
    ),
    Metric("scanlake_failures_in_a_row", "gauge", "Runs that failed since the last that did not.",
           _one(lambda record: record.failures)),
    Metric("scanlake_runs_total", "counter", "Runs by exit code.", _each("exit_code", lambda record: record.runs)),
    Metric("scanlake_run_seconds_total", "counter", "Time that runs took together.",
           _one(lambda record: record.seconds)),
    Metric("scanlake_horizon_timestamp_seconds", "gauge", "Everything updated before this is in the lake.",
           _fact("horizon")),
    Metric("scanlake_files", "gauge", "Files in the lake.", _fact("files")),
    Metric("scanlake_deleted_files", "gauge", "Files that the service no longer has.", _fact("deleted_files")),
    Metric("scanlake_rejects", "gauge", "Documents and files that could not be taken as they are, now.",
           _fact("rejects")),
    Metric("scanlake_snapshot", "gauge", "Number of the snapshot that readers see.", _fact("snapshot")),
    Metric("scanlake_lake_size_bytes", "gauge", "Size of the lake's folder.", _fact("bytes")),
    Metric("scanlake_last_verify_timestamp_seconds", "gauge", "When the lake was last held against the whole list.",
           _fact("verified_at")),
    Metric("scanlake_last_verify_equal", "gauge", "1 if lake and service were equal then.", _fact("verified_equal")),
    Metric("scanlake_files_fetched_total", "counter", "Files fetched by runs that did their work.",
           _one(lambda record: record.fetched)),
    Metric("scanlake_requests_total", "counter", "Calls of runs that did their work.",
           _each("kind", lambda record: record.requests)),
    Metric("scanlake_retries_total", "counter", "Calls that were repeated by runs that did their work.",
           _one(lambda record: record.retries)),
    Metric("scanlake_throttled_total", "counter", "Answers 429 that runs met which did their work.",
           _one(lambda record: record.throttled)),
    Metric("scanlake_learned_requests_per_second", "gauge", "Rate the service was seen to allow; absent: no limit met.",
           _fact("rate")),
    Metric("scanlake_learned_concurrency", "gauge", "Requests at once that suited the service.", _fact("concurrency")),
)  # fmt: skip


def exposition(record: Record, labels: Mapping[str, str]) -> str:
    """The record in Prometheus' text format, with `labels` on every sample."""
    lines = [
        "# HELP scanlake_build_info The version of scanlake.",
        "# TYPE scanlake_build_info gauge",
        f"scanlake_build_info{_spell_labels({**labels, 'version': __version__})} 1",
    ]
    for metric in METRICS:
        samples = list(metric.samples(record))
        if samples:
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
            lines += [f"{metric.name}{_spell_labels({**labels, **own})} {_spell(value)}" for own, value in samples]
    return "\n".join(lines) + "\n"


def write_metrics(path: Path, record: Record, labels: Mapping[str, str]) -> bool:
    """Let the file hold the metrics, by one rename."""
    return replace_file(path, exposition(record, labels), what="metrics")


def _spell_labels(labels: Mapping[str, str]) -> str:
    escaped = (
        (name, value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')) for name, value in labels.items()
    )
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}" if labels else ""


def _spell(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
