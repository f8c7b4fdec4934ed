"""What checks have found, as lines that tests can compare."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from pipeline.output.findings import Severity
from pipeline.reports.folder_check import check_report_folder
from pipeline.reports.pdf_reader import PdfReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pipeline.output.findings import CheckResult, Finding


def lines_of(findings: Iterable[Finding], severity: Severity = Severity.ERROR) -> list[str]:
    """The findings of a severity, each as subject and problem."""
    return [f"{item.subject}: {item.problem}" for item in findings if item.severity is severity]


def printed_lines(result: Mapping[str, Any], area: str, severity: Severity = Severity.ERROR) -> list[str]:
    """The findings of a severity in the JSON of a command, about one area."""
    found = [item for item in result["findings"] if (item["area"], item["severity"]) == (area, severity)]
    return [f"{item['subject']}: {item['problem']}" for item in found]


def checked_folder(folder: Path, allowed_signers: Path | None = None) -> CheckResult:
    """The check of the folder of a report, as `scanlake check --report` makes it."""
    with closing(PdfReader()) as reader:
        return check_report_folder(folder, reader, allowed_signers)


def folder_problems(folder: Path, allowed_signers: Path | None = None) -> list[str]:
    """What is wrong with the folder of a report."""
    return lines_of(checked_folder(folder, allowed_signers).findings)
