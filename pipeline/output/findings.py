"""What a check finds: one type for settings, service, lake, images, published copies and report folders."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from pipeline.errors import ExitCode, most_severe
from pipeline.output.formatting import pluralize
from pipeline.output.redaction import to_one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pipeline.errors import ScanlakeError

_MAX_LISTED_IDS: Final = 1_000
_MAX_PRINTED_IDS: Final = 10
_MARK_WIDTH: Final = 10
_AREA_WIDTH: Final = 9


class Severity(StrEnum):
    """How a finding ends. A warning stops no run; only an error can be repaired."""

    OK = "ok"
    SKIPPED = "skipped"
    WARNING = "warning"
    REPAIRED = "repaired"
    ERROR = "error"


class Finding(Struct, frozen=True):
    """Result of one check: what was checked, in which area, and what a person does about it.

    `repair` is what `scanlake repair` does about it, or has done. `files` counts the affected files of the service;
    `file_ids` are the first 1,000. `exit_code` is that of a command that finds it.
    """

    severity: Severity
    area: str
    subject: str
    problem: str
    hint: str = ""
    repair: str = ""
    files: int = 0
    file_ids: tuple[int, ...] = ()
    exit_code: ExitCode = ExitCode.OK


def ok(area: str, subject: str, problem: str) -> Finding:
    """Return a finding without a problem; `problem` is what was seen."""
    return Finding(Severity.OK, area, subject, problem)


def skipped(area: str, subject: str, problem: str, hint: str, code: ExitCode = ExitCode.OK) -> Finding:
    """Return a finding for a check that could not be made."""
    return Finding(Severity.SKIPPED, area, subject, problem, hint, exit_code=code)


def warning(area: str, subject: str, problem: str, hint: str, code: ExitCode = ExitCode.OK) -> Finding:
    """Return a finding for a problem that stops no run."""
    return Finding(Severity.WARNING, area, subject, problem, hint, exit_code=code)


def error(area: str, subject: str, problem: str, hint: str, code: ExitCode = ExitCode.DAMAGE) -> Finding:
    """Return a finding for a problem that stops runs, or for damage that `scanlake repair` cannot repair."""
    return Finding(Severity.ERROR, area, subject, problem, hint, exit_code=code)


def damage(subject: str, problem: str, repair: str, file_ids: Iterable[int] = ()) -> Finding:
    """Return a finding for a file of the lake that differs from what was written."""
    finding = error("lake", subject, problem, "Run `scanlake repair`.")
    ids = sorted(file_ids)
    return replace(finding, repair=repair, files=len(ids), file_ids=tuple(ids[:_MAX_LISTED_IDS]))


def from_error(area: str, subject: str, failure: ScanlakeError) -> Finding:
    """Return the finding for an exception."""
    return error(area, subject, failure.message.rstrip("."), failure.hint, failure.exit_code)


class CheckResult(Struct, frozen=True):
    """Findings in the order of the checks, and how many there are of each severity."""

    counts: dict[Severity, int]
    findings: tuple[Finding, ...]

    @property
    def most_severe(self) -> ExitCode:
        """The most severe exit code of the findings."""
        return most_severe(item.exit_code for item in self.findings)

    def summarize(self) -> str:
        """Return the counts as text, the severest first."""
        counts = {severity: self.counts.get(severity, 0) for severity in reversed(Severity)}
        errors = pluralize(counts.pop(Severity.ERROR), "error")
        return ", ".join([errors, *(f"{count:,} {severity}" for severity, count in counts.items() if count)])


def collect(findings: Iterable[Finding]) -> CheckResult:
    """Return the result of checks."""
    findings = tuple(findings)
    return CheckResult(dict(Counter(item.severity for item in findings)), findings)


def format_finding(finding: Finding) -> str:
    """Return the lines of a finding: what was found, the affected files, and what helps."""
    mark = finding.severity.upper() if finding.severity is Severity.ERROR else finding.severity
    text = f"{mark:{_MARK_WIDTH}}{finding.area:{_AREA_WIDTH}} " + to_one_line(f"{finding.subject}: {finding.problem}")
    lines = [f"repair: {finding.repair}" if finding.repair else finding.hint]
    if finding.files:
        more = ", ..." if finding.files > _MAX_PRINTED_IDS else ""
        ids = ", ".join(map(str, finding.file_ids[:_MAX_PRINTED_IDS]))
        lines.insert(0, f"{pluralize(finding.files, 'file')}: {ids}{more}")
    return "".join(
        f"{line}\n" for line in [text, *(f"{'':{_MARK_WIDTH}}{to_one_line(line)}" for line in lines if line)]
    )
