"""The check of a report folder: with scanlake, and with the commands that the folder itself names."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.errors import ExitCode, SettingsError
from pipeline.output.findings import Severity
from pipeline.reports.folder_check import read_folder_manifest
from pipeline.reports.manifest import format_csv, format_workbook, render_page
from pipeline.reports.pdf_reader import PdfReader, Unread
from pipeline.reports.proof_times import find_time_problems
from pipeline.reports.signing import sign
from tests.findings import checked_folder, folder_problems, lines_of
from tests.reports.report_harness import drop_line, edit_file, make_key, replace_file, truncate
from tests.rows import every

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pipeline.reports.models import Manifest
    from tests.processes import Answer
    from tests.reports.report_harness import Scene


def _tell_otherwise(names: str, **change: Any) -> Callable[[Path], None]:
    """Return what changes the first file in some of the folder's texts, with the sums made again."""

    def change_first_file(out: Path) -> None:
        manifest = _read_manifest(out)
        first, *rest = manifest.files
        changed = manifest.model_copy(update={"files": (first.model_copy(update=change), *rest)})
        contents = {
            "json": ("manifest.json", changed.model_dump_json().encode()),
            "csv": ("manifest.csv", format_csv(changed.files)),
            "xlsx": ("manifest.xlsx", format_workbook(changed.files) or b""),
            "html": ("index.html", render_page(changed).encode()),
        }
        for name in names.split():
            replace_file(out, *contents[name])

    return change_first_file


@every(
    ("damage", "problem"),
    [
        (lambda out: truncate(out / "report-0001.pdf"), "report-0001.pdf: the content was changed"),
        (lambda out: (out / "report-0002.pdf").unlink(), "report-0002.pdf: missing"),
        (lambda out: truncate(out / "manifest.csv"), "manifest.csv: the content was changed"),
        (lambda out: truncate(out / "index.html"), "index.html: the content was changed"),
        (lambda out: replace_file(out, "report-0001.pdf", b"%PDF-1.4 %%EOF"), "report-0001.pdf: cannot be opened"),
        (lambda out: replace_file(out, "manifest.csv", b"file_id,pdf\n"), "manifest.csv: does not match"),
        (lambda out: drop_line(out, "report-0002.pdf"), "SHA256SUMS and manifest.json disagree"),
        (lambda out: replace_file(out, "manifest.json", b"{"), "manifest.json: cannot be read"),
        (
            lambda out: edit_file(out / "SHA256SUMS", lambda sums: sums + b"\n"),
            "SHA256SUMS, line 9: not a checksum of a file of this folder",
        ),
        (_tell_otherwise("csv", reference="X-4711"), "manifest.csv: does not match manifest.json"),
        (_tell_otherwise("csv", state="failed"), "manifest.csv: does not match manifest.json"),
        (_tell_otherwise("xlsx", reference="X-4711"), "manifest.xlsx: does not match manifest.json"),
        (lambda out: replace_file(out, "manifest.xlsx", b"PK"), "manifest.xlsx: does not match manifest.json"),
        (lambda out: shutil.copy(out / "report-0001.pdf", out / "Extra.PDF"), "Extra.PDF: unknown file"),
        (_tell_otherwise("html", reference="X-4711"), "index.html: does not match manifest.json"),
        (_tell_otherwise("html", confirmed_after_at="2020-01-01T00:00:00Z"), "index.html: does not match manifest"),
        (
            _tell_otherwise("json csv xlsx html", reference="X-4711", file_id=4711),
            "its pages and manifest.json disagree about file 4711",
        ),
        (_tell_otherwise("json csv xlsx html", bytes=7), "is in no PDF and has no reason"),
        (_tell_otherwise("json csv xlsx html", on_pages=None), "manifest.json has 9 of its files on its pages"),
        (_tell_otherwise("json csv xlsx html", on_pages=False), "is delivered, but not on the pages of its PDF"),
        (
            _tell_otherwise("json csv xlsx html", changed_since_selection=True),
            "its counts differ from its entries",
        ),
    ],
)
def test_a_change_is_found(finished_folder: Path, tmp_path: Path, damage: Callable[[Path], None], problem: str) -> None:
    """Every change is named, and so is what contradicts itself although its sums were made again."""
    out = shutil.copytree(finished_folder, tmp_path / str(len(list(tmp_path.iterdir()))))
    (out / "notes.txt").write_text("mine")
    damage(out)
    check = checked_folder(out)
    assert check.most_severe == ExitCode.DAMAGE
    assert any(problem in line for line in lines_of(check.findings)), check.findings
    assert "notes.txt: unknown file" in lines_of(check.findings, Severity.WARNING)


def _read_manifest(out: Path) -> Manifest:
    manifest = read_folder_manifest(out)
    assert manifest is not None
    return manifest


def test_nothing_outside_of_the_folder_is_read(copied_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest that names a file elsewhere, and a link in place of a page, are found without a look at the target."""
    read: list[Path] = []

    def record(_: PdfReader, path: Path, __: Any) -> Unread:
        read.append(path)
        return Unread.SKIPPED

    monkeypatch.setattr(PdfReader, "read", record)
    shutil.copy(copied_folder / "report-0001.pdf", copied_folder.with_name("other.pdf"))
    manifest = _read_manifest(copied_folder)
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
    older = _read_manifest(copied_folder).model_copy(update={"scanlake": "0.0.9"})
    replace_file(copied_folder, "manifest.json", older.model_dump_json().encode())
    replace_file(copied_folder, "index.html", b"<table></table>")
    found = checked_folder(copied_folder).findings
    assert lines_of(found) == []
    warning = "index.html: made by scanlake 0.0.9, so not compared with manifest.json"
    assert lines_of(found, Severity.WARNING) == [warning]


def test_pages_that_are_not_looked_at_are_named(copied_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limits of the reader pages are not compared: that is said, and is no damage."""
    monkeypatch.setattr(PdfReader, "read", lambda *_: Unread.SKIPPED)
    found = checked_folder(copied_folder).findings
    names = [f"report-{number:04}.pdf" for number in (1, 2, 3)]
    assert (lines_of(found), lines_of(found, Severity.WARNING)) == ([], [f"{name}: not looked at" for name in names])
    assert found[-1].problem.endswith("; 0 of 3 PDFs were read")


def test_the_command_verifies(copied_folder: Path, tmp_path: Path, main: Callable[..., Answer]) -> None:
    """`check --report` exits 0 for an unchanged folder, 9 for a damaged one, 2 for one without a job."""
    check = checked_folder(copied_folder)
    assert (lines_of(check.findings), lines_of(check.findings, Severity.WARNING)) == ([], [])
    assert check.findings[-1].problem == "25 files, 3 PDFs, 0 files named as failed; 3 of 3 PDFs were read"
    answer = main("check", "--report", str(copied_folder))
    assert (answer.code, "job " in answer.out) == (ExitCode.OK, True)
    truncate(copied_folder / "report-0001.pdf")
    answer = main("check", "--report", str(copied_folder), "--json")
    assert answer.code == ExitCode.DAMAGE
    errors = [item for item in answer.json["findings"] if item["severity"] == "error"]
    assert [(item["subject"], item["problem"]) for item in errors] == [("report-0001.pdf", "the content was changed")]
    assert main("check", "--report", str(tmp_path)).code == ExitCode.USAGE


def test_lost_and_found_is_no_unknown_file(copied_folder: Path) -> None:
    """The folder `lost+found` of a volume, whose root a job may use, is nothing that a manifest has to name."""
    (copied_folder / "lost+found").mkdir()
    assert lines_of(checked_folder(copied_folder).findings, Severity.WARNING) == []


async def test_signatures(scene: Scene, tmp_path: Path) -> None:
    """An Ed25519 key signs the checksums; other content, another key and a missing signature are found.

    The commands of VERIFY.txt check content and signature with system tools alone, and find every change.
    """
    for name in ("key", "other"):
        make_key(tmp_path / name)
        (tmp_path / f"{name}s").write_text(f"signer {(tmp_path / f'{name}.pub').read_text()}")
    await scene.run(sign=partial(sign, tmp_path / "key"))
    out = scene.out
    shutil.copy(tmp_path / "keys", tmp_path / "allowed_signers")
    text = (out / "VERIFY.txt").read_text()
    commands = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    names = ["sha256sum", "ssh-keygen", "ssh-keygen", "ls", "tail", "find"]
    assert [command.split()[0] for command in commands] == names

    def run(commands: list[str]) -> list[subprocess.CompletedProcess[bytes]]:
        return [subprocess.run(["bash", "-c", each], cwd=out, capture_output=True, check=False) for each in commands]

    def run_commands() -> list[bool]:
        return [each.returncode == 0 for each in run(commands[:3])]

    listed, files, pdfs = (each.stdout.split() for each in run(commands[3:]))
    assert (listed, files, pdfs) == ([b"SHA256SUMS", b"SHA256SUMS.sig"], [b"25"], [b"3"])
    assert "counts the selected files: 25. The third counts the PDFs: 3." in text
    assert "25 of the selected files are in these PDFs" in text
    assert run_commands() == [True, True, True]
    page = (out / "index.html").read_text()
    assert "VERIFY.txt says how to check this folder" in page
    assert "Deletions in the service are known up to: never verified." in page
    assert folder_problems(out) == []
    assert _name_signer(out).startswith("SHA256:")
    assert _name_signer(out, tmp_path / "keys") == "signer"
    assert "by an allowed signer" in folder_problems(out, tmp_path / "others")[0]
    with pytest.raises(SettingsError, match="no such file"):
        checked_folder(out, tmp_path / "nobody")
    (out / "added.pdf").write_bytes(b"%PDF-1.4")
    listed, _, pdfs = (each.stdout.split() for each in run(commands[3:]))
    assert (b"added.pdf" in listed, pdfs) == (True, [b"4"])
    (out / "added.pdf").unlink()
    replace_file(out, "report-0001.pdf", b"%PDF-1.4 other %%EOF")
    assert run_commands() == [True, False, False], "sums made again are not signed"
    assert any("not a signature of this content" in line for line in folder_problems(out))
    truncate(out / "VERIFY.txt")
    assert run_commands() == [False, False, False]
    assert "VERIFY.txt: the content was changed" in folder_problems(out)
    (out / "SHA256SUMS.sig").unlink()
    assert any("SHA256SUMS.sig: missing" in line for line in folder_problems(out)), "its manifest says signed"
    (tmp_path / "bad").write_text("no key")
    for name, says in (("nokey", "no such key"), ("bad", "cannot sign")):
        with pytest.raises(SettingsError, match=says):
            sign(tmp_path / name, b"")


def _name_signer(out: Path, allowed_signers: Path | None = None) -> str:
    [found] = [item for item in checked_folder(out, allowed_signers).findings if item.subject == "SHA256SUMS.sig"]
    return found.problem.removeprefix("signed by ")


_FAR = 60_480_000


@every(
    ("change", "problems"),
    [
        ({}, []),
        ({"clock_seconds_ahead": 59.0}, []),
        ({"clock_seconds_ahead": 61.0}, ["the clock of the machine was 61 s behind the service's when the job ended"]),
        (
            {"clock_seconds_ahead": -90.0},
            ["the clock of the machine was 90 s ahead of the service's when the job ended"],
        ),
        (
            {"watermark": "2199-01-01T00:00:00Z"},
            ["begin of the job {begun_at} is before watermark 2199-01-01T00:00:00Z"],
        ),
        (
            {"deletions_known_at": "2199-01-01T00:00:00Z"},
            ["begin of the job {begun_at} is before last verify 2199-01-01T00:00:00Z"],
        ),
        (
            {"written_at": "2019-01-01T00:00:00Z"},
            [
                "end of the job 2019-01-01T00:00:00Z is before begin of the job {begun_at}",
                "end of the job 2019-01-01T00:00:00Z is before second confirmation {confirmed_after_at}",
            ],
        ),
        (
            {"begun_at": "2199-01-01T00:00:00Z"},
            [
                "end of the job {written_at} is before begin of the job 2199-01-01T00:00:00Z",
                "first confirmation {confirmed_before_at} is before begin of the job 2199-01-01T00:00:00Z",
            ],
        ),
    ],
)
def test_times_that_contradict_each_other_are_named(
    finished_folder: Path, change: dict[str, Any], problems: list[str]
) -> None:
    """Each kind is named once: against the service's clock, its watermark, and the order of the steps."""
    manifest = _read_manifest(finished_folder)
    times = dict(manifest) | dict(manifest.files[0])
    assert find_time_problems(manifest.model_copy(update=change)) == [text.format(**times) for text in problems]


async def test_a_wrong_clock_of_the_machine_is_named(scene: Scene) -> None:
    """A service whose Date is 700 days ahead: run and check name it with exit code 4, and the job stays complete."""
    scene.emulator.set_quirks(date_skew_seconds=float(_FAR))
    for _ in range(2):
        answer = await scene.report("--json")
        assert answer.code == ExitCode.REJECTS, answer
        [problem] = answer.json["time_problems"]
        assert re.search(r"was 60,\d{3},\d{3} s behind the service's", problem)
    assert answer.json["was_complete"]
    checked = checked_folder(scene.out)
    assert checked.most_severe == ExitCode.REJECTS
    assert any("s behind the service's" in line for line in lines_of(checked.findings, Severity.WARNING))
    shown = await scene.report()
    assert "\ntimes: the clock of the machine was 60," in shown.out
