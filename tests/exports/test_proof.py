"""What the folder says of itself, what the page shows, and how a change is found years later."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pipeline.emulator import Emulator, Quirks
from pipeline.errors import SettingsError, StorageError
from pipeline.exports.folder import Folder
from pipeline.exports.manifest import _csv
from pipeline.exports.page import page
from pipeline.exports.proof import prove
from pipeline.exports.signing import sign
from tests.exports.exporting import EVERY, SEED, Wish, check_folder, listed, manifest, reported
from tests.processes import ended, started

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HOSTILE = "=cmd|'/C calc'!A0<script>alert(\"1\")</script>"


async def folder_of(tmp_path: Path, *, files: int = 120, wish: Wish = EVERY, **options: Any) -> Path:
    """A finished job's folder."""
    async with Emulator(files, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        await reported(emulator, tmp_path / "lake", tmp_path / "out", wish, **options)
    return tmp_path / "out"


async def test_the_manifest_says_what_was_selected_and_when(tmp_path: Path) -> None:
    """Selection, settings, snapshot, horizon and deletions stand in it; addresses of reports do not."""
    async with Emulator(120, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        await reported(emulator, tmp_path / "lake", tmp_path / "out", template=7, timezone="Europe/Berlin")
        secrets = list(emulator.reports.made)
    facts = manifest(tmp_path / "out")
    assert facts["selection"] == {"kind": "where", "group_by": None, "sql": "TRUE"}
    assert (facts["settings"]["template"], facts["settings"]["timezone"]) == (7, "Europe/Berlin")
    assert facts["snapshot"] == 2
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", facts["horizon"])
    assert facts["deletions"] == {"known_up_to": None, "deleted_files_in_lake": 0, "selected": []}
    assert facts["counts"]["files"] == facts["counts"]["delivered"] == 120
    with (tmp_path / "out" / "manifest.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [int(row["file_id"]) for row in rows] == [each["file_id"] for each in facts["files"]]
    whole = "".join(path.read_text() for path in (tmp_path / "out").iterdir() if path.suffix != ".pdf")
    assert not [secret for secret in secrets if secret in whole]


async def test_ids_that_cannot_be_ordered_are_named_before_anything_is(tmp_path: Path) -> None:
    """Unknown and deleted ids and references are told first, stand in the manifest as failed, and exit 4."""
    async with Emulator(40, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        process = await started(emulator, tmp_path / "lake", "sync")
        assert (await ended(process))[0] == 0
        gone = emulator.world.keys()[3]
        emulator.world.delete([gone])
        assert (await ended(await started(emulator, tmp_path / "lake", "verify")))[0] == 0
        (tmp_path / "ids").write_text(f"file_id\n{emulator.world.keys()[0]}\n\n{gone}\n# more\n424242\n424242\n")
        command = ("report", "--ids", str(tmp_path / "ids"))
        plan = await ended(await started(emulator, tmp_path / "lake", *command, "--dry-run"))
        assert plan[0] == 4
        assert "1 file in 1 PDF" in plan[1]
        assert emulator.counts["report"] == 0
        code, _, err = await ended(await started(emulator, tmp_path / "lake", *command, "--out", str(tmp_path / "out")))
        assert code == 4
        told, _, _ = err.partition("report.ordered")
        assert f"not ordered: {gone}: deleted at the service" in told
        assert "not ordered: 424242: not in the lake" in told
        facts = manifest(tmp_path / "out")
        assert facts["deletions"]["selected"] == [gone]
        assert facts["deletions"]["known_up_to"]
        assert len(check_folder(tmp_path / "out")) == 1
        nope = ("report", "--reference", "NOPE", "--out", str(tmp_path / "none"))
        code, _, err = await ended(await started(emulator, tmp_path / "lake", *nope))
        assert (code, "no file of this reference" in err) == (2, True)


async def test_groups_are_never_mixed(tmp_path: Path) -> None:
    """With --group-by each PDF holds one group's files, and its name says which."""
    out = await folder_of(
        tmp_path, files=250, wish=Wish("where", sql="TRUE", group_by="closed"), name="{group}-{batch}"
    )
    facts = manifest(out)
    by_pdf: dict[str, set[str]] = {}
    for each in facts["files"]:
        by_pdf.setdefault(each["pdf"], set()).add(each["group"])
    assert all(len(groups) == 1 for groups in by_pdf.values())
    assert all(name.startswith(next(iter(groups))) for name, groups in by_pdf.items())
    assert len(check_folder(out)) == 250


def _cut(path: Path) -> None:
    content = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(content[:-9])


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda out: _cut(out / "report-0001.pdf"), "report-0001.pdf: not as it was written"),
        (lambda out: (out / "report-0002.pdf").unlink(), "report-0002.pdf: missing"),
        (lambda out: _cut(out / "manifest.csv"), "manifest.csv: not as it was written"),
        (lambda out: _cut(out / "index.html"), "index.html: not as it was written"),
        (lambda out: _resum(out, "report-0001.pdf", b"%PDF-1.4 hello"), "report-0001.pdf: no whole PDF"),
        (lambda out: _resum(out, "manifest.csv", b"file_id,pdf\n"), "does not say what manifest.json says"),
        (lambda out: _drop_line(out, "report-0002.pdf"), "SHA256SUMS and manifest.json disagree"),
    ],
)
async def test_a_change_is_found(tmp_path: Path, harm: Callable[[Path], None], says: str) -> None:
    """The whole folder verifies without lake and service; whatever is changed in it is named."""
    out = await folder_of(tmp_path)
    shutil.rmtree(tmp_path / "lake")
    whole = prove(out)
    assert (whole.flaws, whole.foreign, whole.files, whole.pdfs, whole.signed) == ([], [], 120, 2, False)
    (out / "notes.txt").write_text("mine")
    harm(out)
    found = prove(out)
    assert any(says in flaw for flaw in found.flaws), found.flaws
    assert "notes.txt" in found.foreign


def _resum(out: Path, name: str, content: bytes) -> None:
    """Change a file and its sum with it."""
    for each in (out / name, out / "SHA256SUMS"):
        each.chmod(0o644)
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


async def test_sums_are_there_only_while_they_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ends at any step of its proof leaves sums that hold, or none; the next run completes them."""
    async with Emulator(120, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        await reported(emulator, tmp_path / "lake", tmp_path / "out")
        for steps in range(6):
            with monkeypatch.context() as patch:
                patch.setattr(Folder, "land", _failing_after(steps, Folder.land))
                with suppress(StorageError):
                    await reported(emulator, tmp_path / "lake", tmp_path / "out")
            if (tmp_path / "out" / "SHA256SUMS").exists():
                check_folder(tmp_path / "out")
        await reported(emulator, tmp_path / "lake", tmp_path / "out")
        assert len(check_folder(tmp_path / "out")) == 120


def _failing_after(steps: int, real: Callable[..., None]) -> Callable[..., None]:
    left = iter(range(steps))

    def land(*arguments: Any, **options: Any) -> None:
        if next(left, None) is None:
            raise StorageError("no space")
        real(*arguments, **options)

    return land


async def test_the_command_verifies(tmp_path: Path) -> None:
    """`report --verify` exits 0 for a whole folder, 9 for a damaged one, 2 for one that is none."""
    async with Emulator(30, seed=SEED) as emulator:
        await listed(emulator, tmp_path / "lake")
        await reported(emulator, tmp_path / "lake", tmp_path / "out")
        command = ("report", "--verify", str(tmp_path / "out"))
        code, out, _ = await ended(await started(emulator, tmp_path / "nowhere", *command))
        assert (code, "whole: job" in out) == (0, True)
        _cut(tmp_path / "out" / "report-0001.pdf")
        code, out, _ = await ended(await started(emulator, tmp_path / "nowhere", *command, "--json"))
        assert code == 9
        assert json.loads(out)["flaws"] == ["report-0001.pdf: not as it was written"]
        code, _, _ = await ended(await started(emulator, tmp_path / "nowhere", "report", "--verify", str(tmp_path)))
        assert code == 2


async def test_signatures(tmp_path: Path) -> None:
    """An Ed25519 key signs the sums; another content, another key and a missing signature are found."""
    for name in ("key", "other"):
        _make_key(tmp_path / name)
    out = await folder_of(tmp_path, sign=partial(sign, tmp_path / "key"))
    for name in ("key", "other"):
        (tmp_path / f"{name}s").write_text(f"auditor@x {(tmp_path / f'{name}.pub').read_text()}")
    found = prove(out)
    assert found.flaws == []
    assert str(found.signer).startswith("SHA256:")
    assert prove(out, tmp_path / "keys").signer == "auditor@x"
    assert "by one of the signers" in prove(out, tmp_path / "others").flaws[0]
    _drop_line(out, "nothing")
    with (out / "SHA256SUMS").open("a") as file:
        file.write("\n")
    assert any("no signature of this content" in flaw for flaw in prove(out).flaws)
    (out / "SHA256SUMS.sig").unlink()
    assert any("missing" in flaw for flaw in prove(out, tmp_path / "keys").flaws)
    with pytest.raises(SettingsError, match="no such key"):
        sign(tmp_path / "nokey", b"")
    (tmp_path / "bad").write_text("no key")
    with pytest.raises(SettingsError, match="cannot sign"):
        sign(tmp_path / "bad", b"")


def _make_key(path: Path) -> None:
    key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"{path.name}@x", "-f", str(path)]
    subprocess.run(key, check=True)


async def test_a_name_that_the_service_gives_is_not_used(tmp_path: Path) -> None:
    """A hostile Content-Disposition changes nothing: names are made of our own ids."""
    async with Emulator(30, seed=SEED, quirks=Quirks(report_disposition="traversal")) as emulator:
        await listed(emulator, tmp_path / "lake")
        await reported(emulator, tmp_path / "lake", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").glob("*.pdf")] == ["report-0001.pdf"]


def test_texts_of_files_are_harmless() -> None:
    """In the page every text is escaped and nothing comes from outside; in the CSV no cell is a formula."""
    file: dict[str, Any] = {
        "file_id": 7, "reference": HOSTILE, "group": HOSTILE, "state": "failed", "pdf": None, "sha256": None,
        "bytes": None, "ordered_at": None, "delivered_at": None, "reason": f"refused: {HOSTILE}",
    }  # fmt: skip
    counts = {"files": 1, "delivered": 0, "failed": 1, "pdfs": 0}
    facts = {
        "job": HOSTILE, "service": HOSTILE, "snapshot": 1, "horizon": None, "written_at": "now",
        "counts": counts, "files": [file],
    }  # fmt: skip
    shown = page(facts)
    assert shown.count("<script>") == 1
    assert "&lt;script&gt;" in shown
    assert not re.search(r"(src|href)=|https?://|@import|url\(", shown)
    assert "default-src 'none'" in shown
    assert f"'{HOSTILE}" in next(csv.DictReader(_csv([file]).decode().splitlines()))["reference"]
