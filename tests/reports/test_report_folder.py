"""The manifest, the page and the verification of a report folder."""

from __future__ import annotations

import asyncio
import base64
import csv
import hashlib
import io
import json
import re
import shutil
import subprocess
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.csv_rows import escape_formula
from pipeline.emulator import Emulator, Quirks
from pipeline.errors import SettingsError, StorageError
from pipeline.findings import Severity
from pipeline.formatting import escape_control_characters
from pipeline.reports.folder import JobFolder
from pipeline.reports.folder_check import check_report_folder
from pipeline.reports.index_page import render_page
from pipeline.reports.manifest import format_csv
from pipeline.reports.models import Manifest, ManifestCounts, ManifestDeletions, ManifestFile
from pipeline.reports.signing import sign
from tests.findings import folder_problems, lines_of
from tests.pages.page_lakes import ParsedPage
from tests.processes import ended, ran, started
from tests.reports.report_harness import (
    EVERY_FILE,
    SEED,
    Selection,
    check_folder,
    read_manifest,
    run_report,
    sync_lists,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HOSTILE = "=cmd|'/C calc'!A0<script>alert(\"1\")</script>"


async def make_folder(tmp_path: Path, *, files: int = 120, selection: Selection = EVERY_FILE, **options: Any) -> Path:
    """Return the folder of a finished job."""
    async with Emulator(files, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        await run_report(emulator, tmp_path / "lake", tmp_path / "out", selection, **options)
    return tmp_path / "out"


@pytest.fixture(scope="module")
def finished_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished job without its lake; tests change only copies of it."""
    folder = tmp_path_factory.mktemp("finished_folder")
    out = asyncio.run(make_folder(folder))
    shutil.rmtree(folder / "lake")
    return out


async def test_the_manifest_has_selection_and_options(tmp_path: Path) -> None:
    """The manifest has selection, options, snapshot, watermark and deletions, but no URL of a report."""
    async with Emulator(120, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        await run_report(emulator, tmp_path / "lake", tmp_path / "out", template=7, timezone="Europe/Berlin")
        secrets = list(emulator.reports.by_secret)
    manifest = read_manifest(tmp_path / "out")
    assert manifest["selection"] == {"kind": "where", "group_by": None, "per_file": False, "sql": "TRUE"}
    assert (manifest["settings"]["template"], manifest["settings"]["timezone"]) == (7, "Europe/Berlin")
    assert manifest["snapshot"] == 1
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", manifest["watermark"])
    assert manifest["deletions"] == {"known_up_to": None, "deleted_files_in_lake": 0, "selected": []}
    assert manifest["counts"]["files"] == manifest["counts"]["delivered"] == 120
    with (tmp_path / "out" / "manifest.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [int(row["file_id"]) for row in rows] == [file["file_id"] for file in manifest["files"]]
    text = "".join(path.read_text() for path in (tmp_path / "out").iterdir() if path.suffix != ".pdf")
    assert not [secret for secret in secrets if secret in text]


async def test_files_that_cannot_be_ordered_are_named_before_the_first_order(tmp_path: Path) -> None:
    """Unknown and deleted ids are printed first and fail in the manifest, with exit 4."""
    async with Emulator(40, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        process = await started(emulator, tmp_path / "lake", "sync")
        assert (await ended(process))[0] == 0
        deleted = emulator.world.keys()[3]
        emulator.world.delete([deleted])
        assert (await ran(emulator, tmp_path / "lake", "verify"))[0] == 0
        (tmp_path / "ids").write_text(f"file_id\n{emulator.world.keys()[0]}\n\n{deleted}\n# more\n424242\n424242\n")
        command = ("report", "--ids", str(tmp_path / "ids"))
        plan = await ran(emulator, tmp_path / "lake", *command, "--dry-run")
        assert plan[0] == 4, plan
        assert "1 file in 1 PDF" in plan[1]
        assert emulator.counts["report"] == 0
        code, _, err = await ran(emulator, tmp_path / "lake", *command, "--out", str(tmp_path / "out"), "-v")
        assert code == 4
        before_orders, ordered, _ = err.partition("report.ordered")
        assert ordered
        assert f"not ordered: {deleted}: deleted in the service" in before_orders
        assert "not ordered: 424242: not in the lake" in before_orders
        manifest = read_manifest(tmp_path / "out")
        assert manifest["deletions"]["selected"] == [deleted]
        assert manifest["deletions"]["known_up_to"]
        assert len(check_folder(tmp_path / "out")) == 1
        unknown = ("report", "--reference", "NOPE", "--out", str(tmp_path / "none"))
        code, _, err = await ran(emulator, tmp_path / "lake", *unknown)
        assert (code, "no file with this reference" in err) == (2, True)


async def test_groups_are_never_mixed(tmp_path: Path) -> None:
    """With --group-by each PDF has the files of one group, and its name begins with the group."""
    out = await make_folder(tmp_path, files=250, selection=Selection("where", sql="TRUE", group_by="closed"))
    manifest = read_manifest(out)
    by_pdf: dict[str, set[str]] = {}
    for file in manifest["files"]:
        by_pdf.setdefault(file["pdf"], set()).add(file["group"])
    assert all(len(groups) == 1 for groups in by_pdf.values())
    assert all(name.startswith(next(iter(groups))) for name, groups in by_pdf.items())
    assert len(check_folder(out)) == 250


def _truncate(path: Path) -> None:
    content = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(content[:-9])


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda out: _truncate(out / "report-0001.pdf"), "report-0001.pdf: the content was changed"),
        (lambda out: (out / "report-0002.pdf").unlink(), "report-0002.pdf: missing"),
        (lambda out: _truncate(out / "manifest.csv"), "manifest.csv: the content was changed"),
        (lambda out: _truncate(out / "index.html"), "index.html: the content was changed"),
        (
            lambda out: _replace_file(out, "report-0001.pdf", b"%PDF-1.4 hello"),
            "report-0001.pdf: not a complete PDF",
        ),
        (
            lambda out: _replace_file(out, "manifest.csv", b"file_id,pdf\n"),
            "manifest.csv: does not match",
        ),
        (lambda out: _drop_line(out, "report-0002.pdf"), "SHA256SUMS and manifest.json disagree"),
    ],
)
def test_a_change_is_found(tmp_path: Path, finished_folder: Path, damage: Callable[[Path], None], problem: str) -> None:
    """An unchanged folder verifies without lake and service; every change is named."""
    out = tmp_path / "out"
    shutil.copytree(finished_folder, out)
    check = check_report_folder(out)
    assert (folder_problems(out), lines_of(check.findings, Severity.WARNING), check.signed) == ([], [], False)
    assert "120 files, 2 PDFs, 0 files named as failed" in check.findings[-1].problem
    (out / "notes.txt").write_text("mine")
    damage(out)
    check = check_report_folder(out)
    assert not check.is_intact
    assert any(problem in line for line in lines_of(check.findings)), check.findings
    assert "notes.txt: unknown file" in lines_of(check.findings, Severity.WARNING)


def _replace_file(out: Path, name: str, content: bytes) -> None:
    """Change a file and its checksum."""
    for path in (out / name, out / "SHA256SUMS"):
        path.chmod(0o644)
    (out / name).write_bytes(content)
    sums = subprocess.run(["sha256sum", name], cwd=out, capture_output=True, check=True, text=True).stdout
    _drop_line(out, name)
    with (out / "SHA256SUMS").open("a") as file:
        file.write(sums)


def _drop_line(out: Path, name: str) -> None:
    sums = out / "SHA256SUMS"
    sums.chmod(0o644)
    sums.write_text(
        "".join(line for line in sums.read_text().splitlines(keepends=True) if not line.endswith(f" {name}\n"))
    )


async def test_checksums_exist_only_while_they_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that fails at any file of the manifest leaves correct checksums or none; the next run completes them."""
    async with Emulator(120, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        await run_report(emulator, tmp_path / "lake", tmp_path / "out")
        for steps in range(6):
            with monkeypatch.context() as patch:
                patch.setattr(JobFolder, "write", _failing_after(steps, JobFolder.write))
                with suppress(StorageError):
                    await run_report(emulator, tmp_path / "lake", tmp_path / "out")
            if (tmp_path / "out" / "SHA256SUMS").exists():
                check_folder(tmp_path / "out")
        await run_report(emulator, tmp_path / "lake", tmp_path / "out")
        assert len(check_folder(tmp_path / "out")) == 120


def _failing_after(steps: int, real: Callable[..., None]) -> Callable[..., None]:
    left = iter(range(steps))

    def fail_or_call(*arguments: Any, **options: Any) -> None:
        if next(left, None) is None:
            raise StorageError("no space")
        real(*arguments, **options)

    return fail_or_call


async def test_the_command_verifies(tmp_path: Path) -> None:
    """`check --report` exits 0 for an unchanged folder, 9 for a damaged one, 2 for one without a job."""
    async with Emulator(30, seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        await run_report(emulator, tmp_path / "lake", tmp_path / "out")
        command = ("check", "--report", str(tmp_path / "out"))
        code, out, _ = await ran(emulator, tmp_path / "nowhere", *command)
        assert (code, "job " in out) == (0, True)
        _truncate(tmp_path / "out" / "report-0001.pdf")
        code, out, _ = await ran(emulator, tmp_path / "nowhere", *command, "--json")
        assert code == 9
        errors = [item for item in json.loads(out)["findings"] if item["severity"] == "error"]
        assert [(item["subject"], item["problem"]) for item in errors] == [
            ("report-0001.pdf", "the content was changed")
        ]
        code, _, _ = await ran(emulator, tmp_path / "nowhere", "check", "--report", str(tmp_path))
        assert code == 2


async def test_a_finished_job_is_left_as_it_is(tmp_path: Path) -> None:
    """A second run of a finished job calls nobody and changes no byte; a signed folder is never changed unasked."""
    _make_key(tmp_path / "key")
    signer, lake, out = partial(sign, tmp_path / "key"), tmp_path / "lake", tmp_path / "out"

    def content() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in out.iterdir() if not path.name.startswith(".")}

    async with Emulator(30, seed=SEED) as emulator:
        await sync_lists(emulator, lake)
        first = await run_report(emulator, lake, out)
        unsigned, requests = content(), emulator.requests
        again = await run_report(emulator, lake, out)
        assert (first.was_complete, again.was_complete) == (False, True)
        assert (content(), emulator.requests) == (unsigned, requests)
        assert any("missing" in line for line in folder_problems(out, tmp_path / "keys"))
        await run_report(emulator, lake, out, sign=signer)
        signed = content()
        assert {name: signed[name] for name in unsigned} == unsigned, "the signature is all that was added"
        assert check_report_folder(out).signed
        assert folder_problems(out) == []
        await run_report(emulator, lake, out)
        assert content() == signed
        _truncate(out / "report-0001.pdf")
        damaged = content()
        with pytest.raises(SettingsError, match="is signed, and this run would change it"):
            await run_report(emulator, lake, out)
        assert content() == damaged
        repaired = await run_report(emulator, lake, out, sign=signer)
        assert not repaired.was_complete
        assert folder_problems(out) == []
    (out / "SHA256SUMS.sig").unlink()
    assert any("SHA256SUMS.sig: missing" in line for line in folder_problems(out)), "its manifest says signed"


async def test_signatures(tmp_path: Path) -> None:
    """An Ed25519 key signs the checksums; other content, another key and a missing signature are found."""
    for name in ("key", "other"):
        _make_key(tmp_path / name)
    out = await make_folder(tmp_path, sign=partial(sign, tmp_path / "key"))
    for name in ("key", "other"):
        (tmp_path / f"{name}s").write_text(f"auditor@x {(tmp_path / f'{name}.pub').read_text()}")
    assert folder_problems(out) == []
    assert _name_signer(out).startswith("SHA256:")
    assert _name_signer(out, tmp_path / "keys") == "auditor@x"
    assert "by an allowed signer" in folder_problems(out, tmp_path / "others")[0]
    _drop_line(out, "nothing")
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


def _make_key(path: Path) -> None:
    key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"{path.name}@x", "-f", str(path)]
    subprocess.run(key, check=True)


async def test_names_from_the_service_are_not_used(tmp_path: Path) -> None:
    """A hostile Content-Disposition has no effect: names are made of scanlake's own ids."""
    async with Emulator(30, seed=SEED, quirks=Quirks(report_disposition="traversal")) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        await run_report(emulator, tmp_path / "lake", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").glob("*.pdf")] == ["report-0001.pdf"]


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
        deletions=ManifestDeletions(known_up_to=None, deleted_files_in_lake=0, selected=()),
        counts=ManifestCounts(files=1, delivered=0, failed=1, pdfs=0, orders=0, unknown_orders=0),
    )  # fmt: skip


def read_policy(page: ParsedPage) -> str:
    """Return the policy as a browser reads it: attribute values are unescaped."""
    (policy,) = [
        attributes["content"]
        for tag, attributes in page.tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy is not None
    return policy


def test_texts_of_files_are_harmless() -> None:
    """The page escapes every text and loads nothing; no cell of the CSV is a formula."""
    manifest = make_manifest(HOSTILE)
    page = render_page(manifest)
    read = ParsedPage(page)
    assert [tag for tag, _ in read.tags].count("script") == page.count("<script>") == 1
    assert "&lt;script&gt;" in page
    assert read.text.count(HOSTILE) >= 5
    assert not re.search(r"(src|href)=|https?://|@import|url\(", page)
    assert read_policy(read).startswith("default-src 'none'; ")
    row = next(csv.DictReader(format_csv(manifest.files).decode().splitlines()))
    assert row["reference"] == f"'{HOSTILE}"


def test_controls_in_texts_are_escaped_where_they_are_shown() -> None:
    """Page and CSV show controls by their numbers; manifest.json has the exact text, and the id is everywhere."""
    text = "A\0B\x1b[2JC\u202eD\x7f\x9b"
    manifest = make_manifest(text)
    page, content = render_page(manifest), format_csv(manifest.files).decode()
    shown = "A\\x00B\\x1b[2JC\\u202eD\\x7f\\x9b"
    assert ParsedPage(page).text.count(shown) >= 5
    row = next(csv.DictReader(content.splitlines()))
    assert (row["file_id"], row["reference"], row["group"]) == ("7", shown, shown)
    assert not re.search(r"[^\n\t\x20-\x7e\u2000-\u2027]", page + content)
    assert Manifest.model_validate_json(manifest.model_dump_json()).files[0].reference == text


async def test_line_ends_in_references_make_no_rows(tmp_path: Path) -> None:
    """References with line ends, controls and formulas are one row each in manifest.csv, and the folder passes."""
    references = ("ABC123\r", "A\rB", "A\nB", "A\r\n=B", "\n=1+1", "\u2028", "A\x85B", '"', ",", "+1")
    async with Emulator(len(references), seed=SEED) as emulator:
        await sync_lists(emulator, tmp_path / "lake")
        await run_report(emulator, tmp_path / "lake", tmp_path / "out")
    manifest = Manifest.model_validate_json((tmp_path / "out" / "manifest.json").read_bytes())
    files = tuple(
        file.model_copy(update={"reference": reference, "group": reference})
        for file, reference in zip(manifest.files, references, strict=True)
    )
    content = format_csv(files)
    rows = list(csv.DictReader(io.StringIO(content.decode(), newline=""), strict=True))
    assert [row["reference"] for row in rows] == [
        escape_formula(escape_control_characters(reference)) for reference in references
    ]
    assert [row["file_id"] for row in rows] == [str(file.file_id) for file in files]
    manifest = manifest.model_copy(update={"files": files})
    _replace_file(tmp_path / "out", "manifest.json", manifest.model_dump_json().encode())
    _replace_file(tmp_path / "out", "manifest.csv", content)
    assert folder_problems(tmp_path / "out") == []


def test_the_page_may_use_only_its_own_style_and_script() -> None:
    """The policy of the page has the hashes of its inline style and script."""
    page = render_page(make_manifest("x"))
    rules = ["default-src 'none'"]
    for tag in ("style", "script"):
        text = page.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        rules.append(f"{tag}-src 'sha256-{digest}'")
    assert read_policy(ParsedPage(page)) == "; ".join(rules)
