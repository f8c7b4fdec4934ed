"""The manifest, the page and the verification of a report folder."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.errors import ExitCode, SettingsError, StorageError
from pipeline.output.csv import escape_formula
from pipeline.output.formatting import escape_control_characters
from pipeline.reports.folder import JobFolder
from pipeline.reports.manifest import format_csv, format_workbook, read_sheet, render_page
from pipeline.reports.models import Manifest, ManifestCounts, ManifestFile
from pipeline.reports.signing import sign
from tests.findings import folder_problems
from tests.pages.page_lakes import ParsedPage
from tests.reports.report_harness import (
    FILES,
    Selection,
    check_folder,
    make_key,
    read_manifest,
    replace_file,
    truncate,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.reports.report_harness import Scene

HOSTILE = "=cmd|'/C calc'!A0<script>alert(\"1\")</script>"


def test_the_manifest_has_selection_and_options(finished_folder: Path) -> None:
    """The manifest has selection, options, snapshot, watermark and deletions."""
    manifest = read_manifest(finished_folder)
    assert manifest["selection"] == {"kind": "where", "group_by": None, "per_file": False, "sql": "TRUE"}
    assert (manifest["settings"]["template"], manifest["settings"]["timezone"]) == (7, "Europe/Berlin")
    assert manifest["snapshot"] == 1
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", manifest["watermark"])
    assert manifest["deletions_known_at"] is None
    assert manifest["counts"]["files"] == manifest["counts"]["delivered"] == FILES
    with (finished_folder / "manifest.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [int(row["file_id"]) for row in rows] == [file["file_id"] for file in manifest["files"]]


async def test_files_that_cannot_be_ordered_are_named_before_the_first_order(scene: Scene, tmp_path: Path) -> None:
    """Unknown and deleted ids are printed first and fail in the manifest, with exit 4."""
    emulator, keys = scene.emulator, scene.keys
    emulator.world.delete([keys[3]])
    answer = await scene.command("verify")
    assert answer.code == ExitCode.OK, answer.err
    (tmp_path / "ids").write_text(f"file_id\n{keys[0]}\n\n{keys[3]}\n# more\n424242\n424242\n")
    command = ("report", "--ids", str(tmp_path / "ids"))
    plan = await scene.command(*command, "--dry-run")
    assert plan.code == ExitCode.REJECTS, plan
    assert "1 file in 1 PDF" in plan.out
    assert emulator.counts["report"] == 0
    answer = await scene.command(*command, "--out", str(scene.out), "-v")
    assert answer.code == ExitCode.REJECTS
    before_orders, ordered, _ = answer.err.partition("report.ordered")
    assert ordered
    assert f"not ordered: file {keys[3]}: deleted in the service" in before_orders
    assert "not ordered: file 424242: not in the lake" in before_orders
    manifest = read_manifest(scene.out)
    assert manifest["deletions_known_at"]
    assert len(check_folder(scene.out)) == 1
    answer = await scene.command("report", "--reference", "NOPE", "--out", str(tmp_path / "none"))
    assert (answer.code, "no file with this reference" in answer.err) == (ExitCode.USAGE, True)


async def test_checksums_exist_only_while_they_are_right(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that fails at any file of the manifest leaves correct checksums or none; the next run completes them."""
    await scene.run()
    failures = 0
    for steps in range(6):
        (scene.out / "report-0002.pdf").unlink()
        with monkeypatch.context() as patch:
            patch.setattr(JobFolder, "write", _failing_after(steps, JobFolder.write))
            try:
                await scene.run()
            except StorageError:
                failures += 1
        if (scene.out / "SHA256SUMS").exists():
            check_folder(scene.out)
    assert failures >= 4
    await scene.run()
    assert len(check_folder(scene.out)) == FILES


def _failing_after(steps: int, real: Callable[..., None]) -> Callable[..., None]:
    left = iter(range(steps))

    def fail_or_call(*arguments: Any, **options: Any) -> None:
        if next(left, None) is None:
            raise StorageError("no space")
        real(*arguments, **options)

    return fail_or_call


async def test_a_finished_job_is_left_as_it_is(scene: Scene, tmp_path: Path) -> None:
    """A second run of a finished job calls nobody and changes no byte; a signed folder is never changed unasked.

    No file has the URL of a report.
    """
    make_key(tmp_path / "key")
    signer, out = partial(sign, tmp_path / "key"), scene.out

    def content() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in out.iterdir() if not path.name.startswith(".")}

    first = await scene.run()
    unsigned, requests = content(), scene.emulator.requests
    texts = b"".join(path.read_bytes() for path in out.iterdir() if path.suffix != ".pdf")
    assert not [secret for secret in scene.emulator.reports.by_secret if secret.encode() in texts]
    again = await scene.run()
    assert (first.was_complete, again.was_complete) == (False, True)
    assert (content(), scene.emulator.requests) == (unsigned, requests)
    assert any("missing" in line for line in folder_problems(out, tmp_path / "keys"))
    await scene.run(sign=signer)
    signed = content()
    assert {name: signed[name] for name in unsigned} == unsigned, "the signature is all that was added"
    assert (out / "SHA256SUMS.sig").is_file()
    assert folder_problems(out) == []
    await scene.run()
    assert content() == signed
    truncate(out / "report-0001.pdf")
    damaged = content()
    with pytest.raises(SettingsError, match="is signed, and this run would change it"):
        await scene.run()
    assert content() == damaged
    repaired = await scene.run(sign=signer)
    assert not repaired.was_complete
    assert folder_problems(out) == []


def make_manifest(text: str) -> Manifest:
    """Return the manifest of one failed file, with `text` in every text field."""
    file = ManifestFile(
        file_id=7, reference=text, group=text, state="failed", pdf=None, sha256=None, bytes=None,
        ordered_at=None, delivered_at=None, confirmed_before_at=None, confirmed_after_at=None, on_pages=None,
        reason=f"rejected: {text}",
    )  # fmt: skip
    return Manifest(
        job=text, scanlake="1", service=text, begun_at="now", written_at="now", selection={}, settings={}, snapshot=1,
        watermark=None, pdfs=(), orders=(), files=(file,),
        deletions_known_at=None,
        counts=ManifestCounts(
            files=1, delivered=0, changed_since_selection=0, failed=1, pdfs=0, orders=0, unknown_orders=0
        ),
    )  # fmt: skip


def test_texts_of_files_are_harmless() -> None:
    """The page escapes every text and uses only its own style and script; no cell of the CSV is a formula.

    Page and CSV show controls by their numbers; manifest.json has the exact text, and the id is everywhere.
    """
    manifest = make_manifest(HOSTILE)
    page = render_page(manifest)
    read = ParsedPage(page)
    assert [tag for tag, _ in read.tags].count("script") == page.count("<script>") == 1
    assert "&lt;script&gt;" in page
    assert read.text.count(HOSTILE) >= 5
    assert not re.search(r"(src|href)=|https?://|@import|url\(", page)
    rules = ["default-src 'none'"]
    for tag in ("style", "script"):
        text = page.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        rules.append(f"{tag}-src 'sha256-{digest}'")
    policies = [each["content"] for _, each in read.tags if each.get("http-equiv") == "Content-Security-Policy"]
    assert policies == ["; ".join(rules)]
    row = next(csv.DictReader(format_csv(manifest.files).decode().splitlines()))
    assert row["reference"] == f"'{HOSTILE}"
    text, shown = "A\0B\x1b[2JC\u202eD\x7f\x9b", "A\\x00B\\x1b[2JC\\u202eD\\x7f\\x9b"
    manifest = make_manifest(text)
    page, content = render_page(manifest), format_csv(manifest.files).decode()
    assert ParsedPage(page).text.count(shown) >= 5
    row = next(csv.DictReader(content.splitlines()))
    assert (row["file_id"], row["reference"], row["group"]) == ("7", shown, shown)
    assert not re.search(r"[^\n\t\x20-\x7e\u2000-\u2027]", page + content)
    assert Manifest.model_validate_json(manifest.model_dump_json()).files[0].reference == text


def test_line_ends_in_references_make_no_rows(copied_folder: Path) -> None:
    """References with line ends, controls and formulas are one row each in manifest.csv, and the folder passes."""
    odd = ("ABC123\r", "A\rB", "A\nB", "A\r\n=B", "\n=1+1", "\u2028", "A\x85B", '"', ",", "+1")
    manifest = Manifest.model_validate_json((copied_folder / "manifest.json").read_bytes())
    files = tuple(
        file.model_copy(update={"reference": reference, "group": reference})
        for file, reference in zip(manifest.files, cycle(odd), strict=False)
    )
    content = format_csv(files)
    rows = list(csv.DictReader(io.StringIO(content.decode(), newline=""), strict=True))
    expected = [escape_formula(escape_control_characters(file.reference or "")) for file in files]
    assert [row["reference"] for row in rows] == expected
    assert [row["file_id"] for row in rows] == [str(file.file_id) for file in files]
    manifest = manifest.model_copy(update={"files": files})
    replace_file(copied_folder, "manifest.json", manifest.model_dump_json().encode())
    replace_file(copied_folder, "manifest.csv", content)
    replace_file(copied_folder, "manifest.xlsx", format_workbook(files) or b"")
    problems = folder_problems(copied_folder)
    assert not [line for line in problems if line.startswith("manifest")], problems


def test_the_page_says_what_the_files_are_for() -> None:
    """The page begins with title, purpose, person and selection; without a title it has the job's id."""
    about = {"title": "Audit <7>", "purpose": "Insurance", "requested_by": "J. Doe"}
    manifest = make_manifest("job-1").model_copy(update={**about, "selection": {"kind": "where", "sql": "NOT closed"}})
    page = render_page(manifest)
    assert "<title>Audit &lt;7&gt;</title>" in page
    assert "<h1>Audit &lt;7&gt;</h1>" in page
    facts = {"Purpose": "Insurance", "Requested by": "J. Doe", "Job": "job-1", "Selected by": "NOT closed"}
    for name, text in facts.items():
        assert f"<dt>{name}</dt><dd>{text}</dd>" in page
    page = render_page(make_manifest("job-1"))
    assert "<h1>Reports job-1</h1>" in page
    assert "<dt>" not in page
    selection = {"kind": "reference", "references": ["A", "B"], "group_by": "closed"}
    page = render_page(manifest.model_copy(update={"selection": selection}))
    assert "<dd>references: A, B</dd>" in page
    assert "<dt>Grouped by</dt><dd>closed</dd>" in page


async def test_one_pdf_for_each_file_or_group(scene: Scene, tmp_path: Path) -> None:
    """A job per file has one PDF for each, named by its reference; title and purpose are in the manifest for good.

    With --group-by each PDF has the files of one group, and its name begins with the group.
    """
    answer = await scene.report("--per-file", "--group-by", "closed")
    assert (answer.code, "--per-file and --group-by exclude each other" in answer.err) == (ExitCode.USAGE, True)
    answer = await scene.report("--per-file", "--dry-run")
    assert (answer.code, f"{FILES} files in {FILES} PDFs" in answer.out) == (ExitCode.OK, True)
    selection = Selection("ids", ids=tuple(scene.keys[:6]), per_file=True)
    about: dict[str, Any] = {"title": "Audit", "purpose": "Insurance", "requested_by": "J. Doe"}
    await scene.run(selection, **about)
    manifest = read_manifest(scene.out)
    assert len(check_folder(scene.out)) == 6
    assert {pdf["files"] for pdf in manifest["pdfs"]} == {1}
    assert all(file["pdf"].startswith(f"{file['reference']}-0") for file in manifest["files"])
    assert {name: manifest[name] for name in about} == about
    assert not about.keys() & manifest["settings"].keys()
    with pytest.raises(SettingsError, match="another title"):
        await scene.run(selection, **{**about, "title": "Other"})
    groups = tmp_path / "groups"
    await scene.run(Selection("where", sql="TRUE", group_by="closed"), out=groups)
    files = read_manifest(groups)["files"]
    pdfs = {file["pdf"]: {other["group"] for other in files if other["pdf"] == file["pdf"]} for file in files}
    assert len(pdfs) > 3
    assert all((len(names), pdf.startswith(*names)) == (1, True) for pdf, names in pdfs.items())
    assert len(check_folder(groups)) == FILES


def test_the_workbook_has_ids_as_text(finished_folder: Path) -> None:
    """Each id is a string of its digits, where a spreadsheet would round a number."""
    manifest = Manifest.model_validate_json((finished_folder / "manifest.json").read_bytes())
    sheet = (read_sheet((finished_folder / "manifest.xlsx").read_bytes()) or b"").decode()
    assert len(re.findall("<row ", sheet)) == 1 + len(manifest.files)
    ids = re.findall(r'<c r="A\d+" t="inlineStr"><is><t>(\d+)</t>', sheet)
    assert ids == [str(file.file_id) for file in manifest.files]
    assert max(map(len, ids)) > 15


def test_without_xlsxwriter_there_is_no_workbook(finished_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is optional: without it no workbook is written, and one that is there is not compared."""
    monkeypatch.setattr("pipeline.query.xlsx._LIBRARY", "no_such_library")
    manifest = Manifest.model_validate_json((finished_folder / "manifest.json").read_bytes())
    assert format_workbook(manifest.files) is None
    assert folder_problems(finished_folder) == []
