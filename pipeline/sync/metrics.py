"""Metrics of a lake as a Prometheus text file, for the textfile collector of the node exporter.

The file itself is the memory of its counts and of each command's last run: it outlives what a run can lose, such as the
lake. Without the file they begin at zero.
Ages are left to the query: `time() - scanlake_watermark_timestamp_seconds`. Units are seconds and bytes.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from pipeline import __version__
from pipeline.lake.ledger.folder import require_own_file
from pipeline.lake.storage.atomic_files import lock_file, write_file
from pipeline.sync.run_result import SYNC

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pipeline.settings.settings import Settings
    from pipeline.sync.run_result import RunResult

_WORLD_READABLE: Final = 0o644
_WORLD_SEARCHABLE: Final = 0o755
_FAILURES: Final = "scanlake_consecutive_failures"
Samples = dict[tuple[str, str], float]
"""Values by metric and value of its label, which is empty for a metric without one."""


class Metric(Struct, frozen=True):
    """A metric: its name, its meaning, and the path of its value in a run's figures, or of its values by `label`."""

    name: str
    help: str
    path: str
    label: str = ""

    def update(self, samples: Samples, figures: Mapping[str, Any]) -> None:
        """Change its samples by the figures of a run: those that the run does not know stay, None deletes one."""
        *parts, key = self.path.split(".")
        for part in parts:
            figures = figures.get(part) or {}
        if key in figures:
            for own, value in figures[key].items() if self.label else [("", figures[key])]:
                former = samples.pop((self.name, own), 0.0)
                if value is not None:
                    number = datetime.fromisoformat(value).timestamp() if isinstance(value, str) else float(value)
                    samples[self.name, own] = number + (former if self.name.endswith("_total") else 0.0)


METRICS: Final = (
    Metric("scanlake_last_success_timestamp_seconds", "End of the last successful run.", "run.succeeded", "command"),
    Metric("scanlake_last_run_timestamp_seconds", "End of the last run, successful or not.", "run.ended", "command"),
    Metric("scanlake_last_run_exit_code", "Exit code of the last run.", "run.code", "command"),
    Metric("scanlake_last_run_duration_seconds", "Duration of the last sync.", "run.seconds"),
    Metric(_FAILURES, "Failed syncs since the last successful one.", "run.failures"),
    Metric("scanlake_runs_total", "Syncs by exit code.", "run.codes", "exit_code"),
    Metric("scanlake_run_seconds_total", "Duration of all syncs.", "run.seconds"),
    Metric(
        "scanlake_watermark_timestamp_seconds",
        "Everything updated before this instant is in the lake.",
        "lake.watermark",
    ),
    Metric("scanlake_files", "Files in the lake.", "lake.files"),
    Metric("scanlake_deleted_files", "Files that the service no longer has.", "lake.deleted_files"),
    Metric("scanlake_rejects", "Documents and files that are currently rejected.", "lake.rejects"),
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
    Metric("scanlake_lake_content_bytes", "Size of the lake by content.", "lake.size.contents", "content"),
    Metric(
        "scanlake_lake_year_bytes",
        "Estimated growth in a year, at the rate of the last 90 days at most.",
        "lake.size.year_bytes",
    ),
    Metric("scanlake_disk_free_bytes", "Free space on the disk of the lake.", "run.free_bytes"),
    Metric(
        "scanlake_last_verify_timestamp_seconds", "Last comparison with the service's full list.", "lake.verified_at"
    ),
    Metric("scanlake_last_verify_consistent", "1 if that comparison found no difference.", "lake.verified_consistent"),
    Metric("scanlake_files_fetched_total", "Files that successful runs fetched.", "files_stored"),
    Metric("scanlake_requests_total", "API calls of successful runs.", "run.requests", "kind"),
    Metric("scanlake_retries_total", "Retries of successful runs.", "retries"),
    Metric("scanlake_throttled_total", "Responses with status 429 to successful runs.", "delta.throttled"),
    Metric(
        "scanlake_learned_requests_per_second",
        "Learned rate limit of the service; absent if none was met.",
        "lake.rate",
    ),
    Metric("scanlake_learned_concurrency", "Concurrency learned from the service.", "lake.concurrency"),
)


def require_metrics_file(settings: Settings) -> None:
    """Raise `SettingsError` if `metrics_file` is in a lake, a link, or a file that is no metrics of scanlake."""
    if settings.metrics_file is not None:
        name = f"metrics_file {settings.metrics_file}"
        require_own_file(settings.metrics_file, name, settings.lake, b"# HELP scanlake_")


def write_metrics(path: Path, labels: Mapping[str, str], result: RunResult, free_bytes: int | None) -> None:
    """Write the metrics after a run to the file atomically, with `free_bytes` of the lake's disk. Raises `OSError`."""
    if not path.parent.is_dir():  # another user's exporter reads it, whatever the umask is
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(_WORLD_SEARCHABLE)
    with lock_file(path.parent, blocking=True):  # of two runs that end together none is lost
        samples = _read_samples(path, labels)
        figures = _collect_figures(result, samples.get((_FAILURES, ""), 0), free_bytes)
        for metric in METRICS:
            metric.update(samples, figures)
        write_file(path, render_prometheus(samples, labels), mode=_WORLD_READABLE, durable=False)


def _collect_figures(result: RunResult, failures: float, free_bytes: int | None) -> Mapping[str, Any]:
    """Return the figures of a run: `run`, and of a successful sync the object that --json prints."""
    ended = {result.command: result.ended_at.timestamp()}
    run: dict[str, Any] = {"free_bytes": free_bytes, "ended": ended, "code": {result.command: result.code}}
    if result.is_done:
        run["succeeded"] = ended
    if result.command == SYNC:
        run |= {"seconds": result.seconds, "codes": {str(int(result.code)): 1}}
        run["failures"] = 0 if result.is_done else failures + result.has_failed
    if result.command != SYNC or not result.is_done:
        return {"run": run}
    calls = [part.get("requests") or {} for part in (result.result, result.result.get("verify") or {})]
    run["requests"] = {kind: sum(int(counts.get(kind) or 0) for counts in calls) for kind in ("list", "detail")}
    return {**result.result, "run": run}


def _read_samples(path: Path, labels: Mapping[str, str]) -> Samples:
    """Return the samples that the file has with these labels; none without the file."""
    if not path.is_file():
        return {}
    begin = re.escape(_format_labels(labels).removesuffix("}"))
    sample = re.compile(rf'^(scanlake_\w+){begin}(?:,\w+="(\w+)")?\}} ([-+.e\d]+)$', re.MULTILINE)
    lines = sample.findall(path.read_text(encoding="utf-8", errors="replace"))
    return {(name, own): float(value) for name, own, value in lines}


def render_prometheus(samples: Samples, labels: Mapping[str, str]) -> str:
    """Return the metrics of a lake in Prometheus' text format, each with the labels."""
    lines = ["# HELP scanlake_build_info The version of scanlake.", "# TYPE scanlake_build_info gauge"]
    lines.append(f"scanlake_build_info{_format_labels({**labels, 'version': __version__})} 1")
    for metric in METRICS:
        if values := sorted((own, value) for (name, own), value in samples.items() if name == metric.name):
            kind = "counter" if metric.name.endswith("_total") else "gauge"
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {kind}"]
        for own, value in values:
            own_labels = {**labels, **({metric.label: own} if metric.label else {})}
            number = int(value) if value == int(value) else value
            lines.append(f"{metric.name}{_format_labels(own_labels)} {number!r}")
    return "\n".join(lines) + "\n"


def _format_labels(labels: Mapping[str, str]) -> str:
    escaped = (
        (name, value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')) for name, value in labels.items()
    )
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}" if labels else ""
