"""The index page of a report folder: what it is for, readable everywhere; and one PDF for each file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pipeline.errors import ExitCode, SettingsError
from pipeline.reports.index_page import render_page
from tests.pages.conftest import browser, chromium
from tests.reports.report_harness import FILES, Selection, check_folder, read_manifest
from tests.reports.test_report_folder import make_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.pages.browser import Tab
    from tests.reports.report_harness import Scene

__all__ = ["browser", "chromium"]


def test_the_page_says_what_the_files_are_for() -> None:
    """The page begins with title, purpose, person and selection; without a title it has the job's id."""
    manifest = make_manifest("job-1").model_copy(
        update={
            "title": "Audit <7>",
            "purpose": "Insurance",
            "requested_by": "J. Doe",
            "selection": {"kind": "where", "sql": "NOT closed"},
        }
    )
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


@pytest.mark.soak
async def test_the_page_on_a_telephone_and_in_the_dark(browser: Tab, tmp_path: Path) -> None:
    """The page keeps the width of a telephone and is dark where the system is; nothing else is fetched."""
    path = tmp_path / "index.html"
    path.write_text(render_page(make_manifest("x" * 300)), encoding="utf-8")
    for width, dark in ((1280, False), (390, False), (390, True)):
        await browser.show(path.as_uri(), width=width, dark=dark)
        assert browser.requests == [path.as_uri()]
        assert browser.complaints == []
        assert await browser.ask("document.documentElement.scrollWidth") == width
        color = await browser.ask("getComputedStyle(document.body).backgroundColor")
        assert (color == "rgb(255, 255, 255)") is not dark


async def test_one_pdf_for_each_file(scene: Scene) -> None:
    """A job per file has one PDF for each, named by its reference; title and purpose are in the manifest for good."""
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


async def test_the_command_refuses_what_does_not_fit(scene: Scene) -> None:
    """--per-file excludes --group-by; the dry run lists one PDF for each file."""
    answer = await scene.report("--per-file", "--group-by", "closed")
    assert (answer.code, "--per-file and --group-by exclude each other" in answer.err) == (ExitCode.USAGE, True)
    answer = await scene.report("--per-file", "--dry-run")
    assert answer.code == ExitCode.OK
    assert f"{FILES} files in {FILES} PDFs" in answer.out
