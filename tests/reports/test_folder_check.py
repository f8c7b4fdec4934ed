"""The check of a report folder: with scanlake, and with the commands that the folder itself names."""

from __future__ import annotations

import shutil
import subprocess
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.errors import ExitCode, SettingsError
from pipeline.findings import Severity
from pipeline.reports import folder_check
from pipeline.reports.folder_check import check_report_folder, read_folder_manifest
from pipeline.reports.index_page import render_page
from pipeline.reports.manifest import format_csv
from pipeline.reports.page_text import PageFindings, read_pages
from pipeline.reports.signing import sign
from tests.findings import folder_problems, lines_of
from tests.reports.report_harness import drop_line, make_key, replace_file, truncate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.processes import Answer
    from tests.reports.report_harness import Scene


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda out: truncate(out / "report-0001.pdf"), "report-0001.pdf: the content was changed"),
        (lambda out: (out / "report-0002.pdf").unlink(), "report-0002.pdf: missing"),
        (lambda out: truncate(out / "manifest.csv"), "manifest.csv: the content was changed"),
        (lambda out: truncate(out / "index.html"), "index.html: the content was changed"),
        (lambda out: replace_file(out, "report-0001.pdf", b"%PDF-1.4 hello"), "report-0001.pdf: not a complete PDF"),
        (lambda out: replace_file(out, "manifest.csv", b"file_id,pdf\n"), "manifest.csv: does not match"),
        (lambda out: drop_line(out, "report-0002.pdf"), "SHA256SUMS and manifest.json disagree"),
    ],
)
def test_a_change_is_found(copied_folder: Path, damage: Callable[[Path], None], problem: str) -> None:
    """An unchanged folder verifies without lake and service; every change is named."""
    out = copied_folder
    check = check_report_folder(out)
    assert (folder_problems(out), lines_of(check.findings, Severity.WARNING)) == ([], [])
    assert "25 files, 3 PDFs, 0 files named as failed" in check.findings[-1].problem
    (out / "notes.txt").write_text("mine")
    damage(out)
    check = check_report_folder(out)
    assert check.most_severe == ExitCode.DAMAGE
    assert any(problem in line for line in lines_of(check.findings)), check.findings
    assert "notes.txt: unknown file" in lines_of(check.findings, Severity.WARNING)


@pytest.mark.parametrize(
    ("names", "change", "problem"),
    [
        ("csv", {"reference": "X-4711"}, "manifest.csv: does not match manifest.json"),
        ("csv", {"state": "failed"}, "manifest.csv: does not match manifest.json"),
        ("html", {"reference": "X-4711"}, "index.html: does not match manifest.json"),
        ("html", {"confirmed_after_at": "2020-01-01T00:00:00Z"}, "index.html: does not match manifest.json"),
        (
            "json csv html",
            {"reference": "X-4711", "file_id": 4711},
            "its pages and manifest.json disagree about file 4711",
        ),
        ("json csv html", {"bytes": 7}, "is in no PDF and has no reason"),
        (
            "json csv html",
            {"on_pages": None},
            "report-0001.pdf: manifest.json has 9 of its files on its pages",
        ),
        ("json csv html", {"changed_since_selection": True}, "manifest.json: its counts are not those of its entries"),
    ],
)
def test_what_says_the_same_says_the_same(
    copied_folder: Path, names: str, change: dict[str, Any], problem: str
) -> None:
    """Manifests, page, checksums and PDFs that contradict each other are found, even if the sums were made again."""
    changed = read_folder_manifest(copied_folder)
    assert changed is not None
    first, *rest = changed.files
    changed = changed.model_copy(update={"files": (first.model_copy(update=change), *rest)})
    contents = {
        "json": changed.model_dump_json(),
        "csv": format_csv(changed.files).decode(),
        "html": render_page(changed),
    }
    for name in names.split():
        file = "index.html" if name == "html" else f"manifest.{name}"
        replace_file(copied_folder, file, contents[name].encode())
    assert any(problem in line for line in folder_problems(copied_folder)), folder_problems(copied_folder)


def test_nothing_outside_of_the_folder_is_read(copied_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest that names a file elsewhere, and a link in place of a page, are found without a look at the target."""
    read: list[Path] = []

    def record(path: Path, files: Any) -> PageFindings:
        read.append(path)
        return read_pages(path, files)

    monkeypatch.setattr(folder_check, "read_pages", record)
    shutil.copy(copied_folder / "report-0001.pdf", copied_folder.with_name("other.pdf"))
    manifest = read_folder_manifest(copied_folder)
    assert manifest is not None
    first, *rest = manifest.pdfs
    moved = manifest.model_copy(update={"pdfs": (first.model_copy(update={"pdf": "../other.pdf"}), *rest)})
    replace_file(copied_folder, "manifest.json", moved.model_dump_json().encode())
    page = copied_folder.with_name("page.html")
    page.write_text(render_page(moved))
    (copied_folder / "index.html").unlink()
    (copied_folder / "index.html").symlink_to(page)
    problems = folder_problems(copied_folder)
    assert "../other.pdf: SHA256SUMS and manifest.json disagree" in problems
    assert {"index.html: missing", "index.html: does not match manifest.json"} <= set(problems)
    assert {path.parent for path in read} == {copied_folder}


def test_a_page_of_another_version_is_not_compared(copied_folder: Path) -> None:
    """The page of another scanlake may look otherwise: that is said, and is no damage."""
    manifest = read_folder_manifest(copied_folder)
    assert manifest is not None
    older = manifest.model_copy(update={"scanlake": "0.0.9"})
    replace_file(copied_folder, "manifest.json", older.model_dump_json().encode())
    replace_file(copied_folder, "index.html", b"<table></table>")
    found = check_report_folder(copied_folder).findings
    assert lines_of(found) == []
    assert lines_of(found, Severity.WARNING) == [
        "index.html: made by scanlake 0.0.9, so not compared with manifest.json"
    ]


def test_the_command_verifies(copied_folder: Path, tmp_path: Path, main: Callable[..., Answer]) -> None:
    """`check --report` exits 0 for an unchanged folder, 9 for a damaged one, 2 for one without a job."""
    answer = main("check", "--report", str(copied_folder))
    assert (answer.code, "job " in answer.out) == (ExitCode.OK, True)
    truncate(copied_folder / "report-0001.pdf")
    answer = main("check", "--report", str(copied_folder), "--json")
    assert answer.code == ExitCode.DAMAGE
    errors = [item for item in answer.json["findings"] if item["severity"] == "error"]
    assert [(item["subject"], item["problem"]) for item in errors] == [("report-0001.pdf", "the content was changed")]
    assert main("check", "--report", str(tmp_path)).code == ExitCode.USAGE


async def test_a_folder_says_how_it_is_checked(scene: Scene, tmp_path: Path) -> None:
    """The commands of VERIFY.txt check content and signature with system tools alone, and find every change."""
    make_key(tmp_path / "key")
    (tmp_path / "allowed_signers").write_text(f"signer {(tmp_path / 'key.pub').read_text()}")
    await scene.run(sign=partial(sign, tmp_path / "key"))
    text = (scene.out / "VERIFY.txt").read_text()
    commands = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    assert [command.split()[0] for command in commands] == ["sha256sum", "ssh-keygen", "ssh-keygen"]

    def run_commands() -> list[int]:
        shell = ("bash", "-c")
        return [
            subprocess.run([*shell, command], cwd=scene.out, capture_output=True, check=False).returncode
            for command in commands
        ]

    assert run_commands() == [0, 0, 0]
    page = (scene.out / "index.html").read_text()
    assert "VERIFY.txt says how to check this folder" in page
    assert "Deletions in the service are known up to: never verified." in page
    assert folder_problems(scene.out) == []
    replace_file(scene.out, "report-0001.pdf", b"%PDF-1.4 other %%EOF")
    assert [bool(code) for code in run_commands()] == [False, True, True], "sums made again are not signed"
    truncate(scene.out / "VERIFY.txt")
    assert [bool(code) for code in run_commands()] == [True, True, True]
    assert "VERIFY.txt: the content was changed" in folder_problems(scene.out)


async def test_signatures(scene: Scene, tmp_path: Path) -> None:
    """An Ed25519 key signs the checksums; other content, another key and a missing signature are found."""
    for name in ("key", "other"):
        make_key(tmp_path / name)
        (tmp_path / f"{name}s").write_text(f"auditor@x {(tmp_path / f'{name}.pub').read_text()}")
    await scene.run(sign=partial(sign, tmp_path / "key"))
    out = scene.out
    assert folder_problems(out) == []
    assert _name_signer(out).startswith("SHA256:")
    assert _name_signer(out, tmp_path / "keys") == "auditor@x"
    assert "by an allowed signer" in folder_problems(out, tmp_path / "others")[0]
    drop_line(out, "nothing")
    with (out / "SHA256SUMS").open("a") as file:
        file.write("\n")
    assert any("not a signature of this content" in line for line in folder_problems(out))
    (out / "SHA256SUMS.sig").unlink()
    assert any("missing" in line for line in folder_problems(out, tmp_path / "keys"))
    with pytest.raises(SettingsError, match="no such key"):
        sign(tmp_path / "nokey", b"")
    (tmp_path / "bad").write_text("no key")
    with pytest.raises(SettingsError, match="cannot sign"):
        sign(tmp_path / "bad", b"")


def _name_signer(out: Path, allowed_signers: Path | None = None) -> str:
    [found] = [item for item in check_report_folder(out, allowed_signers).findings if item.subject == "SHA256SUMS.sig"]
    return found.problem.removeprefix("signed by ")
