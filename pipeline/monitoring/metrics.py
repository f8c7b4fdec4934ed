"""Metrics of a lake as a Prometheus text file, for the textfile collector of the node exporter.

Ages are left to the query: `time() - scanlake_watermark_timestamp_seconds`. Units are seconds and bytes.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from pipeline.atomic_files import write_file
from pipeline.lake.lake_folder import require_own_file
from pipeline.logs import log
from pipeline.monitoring.run_history import SYNC
from pipeline.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pipeline.monitoring.run_history import RunResult, RunStats
    from pipeline.settings import Settings

_WORLD_READABLE: Final = 0o644
COMMAND: Final = "command"
LAST_SUCCESS: Final = "scanlake_last_success_timestamp_seconds"
LAST_RUN: Final = "scanlake_last_run_timestamp_seconds"
EXIT_CODE: Final = "scanlake_last_run_exit_code"


class Metric(Struct, frozen=True):
    """A metric: its name, its meaning, and the path of its value in `RunStats`, or of its values by `label`.

    Of one by `COMMAND` the statistics have only the value of syncs.
    """

    name: str
    help: str
    path: str
    label: str = ""

    def read(self, stats: RunStats, by_command: Mapping[str, float]) -> list[tuple[Mapping[str, str], float]]:
        """Return its samples as (labels, value); none for an unknown value. `by_command` has those of `COMMAND`."""
        part, _, key = self.path.partition(".")
        value = getattr(stats, part)
        if key:
            value = value.get(key)
        if self.label == COMMAND:
            value = {**({} if value is None else {SYNC: _to_number(value)}), **by_command}
        if self.label:
            return [({self.label: key}, count) for key, count in sorted(value.items())]
        return [] if value is None else [({}, _to_number(value))]


def _to_number(value: Any) -> float:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    return value.timestamp() if isinstance(value, datetime) else float(value)


METRICS: Final = (
    Metric(LAST_SUCCESS, "End of the last successful run.", "last_success", COMMAND),
    Metric(LAST_RUN, "End of the last run, successful or not.", "last_ended", COMMAND),
    Metric(EXIT_CODE, "Exit code of the last run.", "last_code", COMMAND),
    Metric("scanlake_last_run_duration_seconds", "Duration of the last sync.", "last_seconds"),
    Metric("scanlake_consecutive_failures", "Failed syncs since the last successful one.", "failures"),
    Metric("scanlake_runs_total", "Syncs by exit code.", "runs", "exit_code"),
    Metric("scanlake_run_seconds_total", "Duration of all syncs.", "seconds"),
    Metric(
        "scanlake_watermark_timestamp_seconds",
        "Everything updated before this instant is in the lake.",
        "lake.watermark",
    ),
    Metric("scanlake_files", "Files in the lake.", "lake.files"),
    Metric("scanlake_deleted_files", "Files that the service no longer has.", "lake.deleted_files"),
    Metric("scanlake_rejects", "Documents and files that are rejected at present.", "lake.rejects"),
    Metric("scanlake_snapshot", "Number of the published snapshot.", "lake.snapshot"),
    Metric(
        "scanlake_publish_failures",
        "Failed publishes to object storage since the last successful one.",
        "publish.failures",
    ),
    Metric(
        "scanlake_last_publish_timestamp_seconds", "Last successful publish to object storage.", "publish.published_at"
    ),
    Metric("scanlake_lake_size_bytes", "Size of the lake's folder.", "lake.bytes"),
    Metric("scanlake_disk_free_bytes", "Free space on the disk of the lake.", "lake.disk_free_bytes"),
    Metric(
        "scanlake_last_verify_timestamp_seconds", "Last comparison with the service's full list.", "lake.verified_at"
    ),
    Metric("scanlake_last_verify_consistent", "1 if that comparison found no difference.", "lake.verified_consistent"),
    Metric("scanlake_files_fetched_total", "Files that successful runs fetched.", "fetched"),
    Metric("scanlake_requests_total", "API calls of successful runs.", "requests", "kind"),
    Metric("scanlake_retries_total", "Retries of successful runs.", "retries"),
    Metric("scanlake_throttled_total", "Responses 429 to successful runs.", "throttled"),
    Metric(
        "scanlake_learned_requests_per_second", "Rate limit of the service, as learned; absent: none met.", "lake.rate"
    ),
    Metric("scanlake_learned_concurrency", "Concurrency learned from the service.", "lake.concurrency"),
)


def require_metrics_file(settings: Settings) -> None:
    """Raise `SettingsError` if `metrics_file` is in a lake, a link, or a file that is no metrics of scanlake."""
    if settings.metrics_file is not None:
        name = f"metrics_file {settings.metrics_file}"
        require_own_file(settings.metrics_file, name, settings.lake, b"# HELP scanlake_")


def render_prometheus(
    stats: RunStats, labels: Mapping[str, str], by_command: Mapping[str, Mapping[str, float]] | None = None
) -> str:
    """Return the metrics of a lake in Prometheus' text format, each with the labels.

    `by_command` has the values of commands, by the name of a metric.
    """
    lines = ["# HELP scanlake_build_info The version of scanlake.", "# TYPE scanlake_build_info gauge"]
    lines.append(f"scanlake_build_info{_format_labels({**labels, 'version': __version__})} 1")
    for metric in METRICS:
        values = metric.read(stats, (by_command or {}).get(metric.name, {}))
        if samples := [({**labels, **own}, value) for own, value in values]:
            kind = "counter" if metric.name.endswith("_total") else "gauge"
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {kind}"]
            numbers = [(own, int(value) if value == int(value) else value) for own, value in samples]
            lines += [f"{metric.name}{_format_labels(own)} {value!r}" for own, value in numbers]
    return "\n".join(lines) + "\n"


def write_metrics(path: Path, stats: RunStats, labels: Mapping[str, str], result: RunResult) -> None:
    """Write the metrics after a run to the file atomically; a failure is logged.

    The file itself remembers the last run of each command: it outlives what a run can lose, such as the lake.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        by_command = _read_by_command(path, labels)
        now = {LAST_RUN: result.ended_at.timestamp(), EXIT_CODE: result.code}
        for name, value in (now | {LAST_SUCCESS: now[LAST_RUN]} if result.is_done else now).items():
            by_command.setdefault(name, {})[result.command] = value
        write_file(path, render_prometheus(stats, labels, by_command), mode=_WORLD_READABLE, durable=False)
    except OSError as error:
        log.warning("metrics.write_failed", path=str(path), reason=error.strerror or type(error).__name__)


def _read_by_command(path: Path, labels: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Return the values of commands that the file has, by metric and command; none without the file."""
    values: dict[str, dict[str, float]] = {}
    if path.is_file():
        begin = re.escape(_format_labels({**labels, COMMAND: ""}).removesuffix('"}'))
        sample = re.compile(rf'^(scanlake_last_\w+){begin}(\w+)"}} ([-+.e\d]+)$', re.MULTILINE)
        for name, command, value in sample.findall(path.read_text(encoding="utf-8", errors="replace")):
            values.setdefault(name, {})[command] = float(value)
    return values


def _format_labels(labels: Mapping[str, str]) -> str:
    escaped = (
        (name, value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')) for name, value in labels.items()
    )
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}" if labels else ""
