"""The page: one HTML file without external resources; its policy forbids them, too."""

from __future__ import annotations

from datetime import datetime, timedelta
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from pipeline.dashboard import data_sections, lake_sections
from pipeline.dashboard.html import element, raw_element, to_html
from pipeline.dashboard.lake_sections import UNFINISHED
from pipeline.formatting import (
    format_age,
    format_bytes,
    format_count,
    format_csp_hash,
    format_instant,
    pluralize,
    truncate,
)
from pipeline.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator
    from xml.etree.ElementTree import Element

    from pipeline.dashboard.models import DashboardData

GENERATOR: Final = "scanlake dashboard"
"""The start of the generator field, by which scanlake recognises its own pages."""

POLL_SECONDS: Final = 3
STALE_AFTER: Final = timedelta(days=1)
"""Age of the watermark from which it needs attention."""

_STYLE: Final = files("pipeline.dashboard").joinpath("page.css").read_text(encoding="utf-8")
_SCRIPT: Final = files("pipeline.dashboard").joinpath("page.js").read_text(encoding="utf-8")
_SECTIONS: Final = (
    ("Files and uploads", "activity", data_sections.activity),
    ("Damage", "damage", data_sections.damage),
    ("Open workflow runs", "workflows", data_sections.open_runs),
    ("Fields and forms", "completeness", data_sections.completeness),
    ("Runs", "runs", lake_sections.runs),
    ("Verifications", "verifications", lake_sections.verifications),
    ("Rejects", "rejects", lake_sections.rejects),
    ("Schema drift", "drift", lake_sections.drift),
    ("Deletions", "deletions", lake_sections.deletions),
    ("Snapshots and size", "size", lake_sections.size_and_snapshots),
    ("Reports", "reports", lake_sections.reports),
)


def content_security_policy(*, live: bool) -> str:
    """Return the policy: own style and script only; a live page may also poll its server."""
    connect = "; connect-src 'self'" if live else ""
    return (
        f"default-src 'none'; style-src '{format_csp_hash(_STYLE)}'; script-src '{format_csp_hash(_SCRIPT)}';"
        f" img-src data:{connect}; base-uri 'none'; form-action 'none'"
    )


def render_page(data: DashboardData, version: str | None = None) -> str:
    """Return the page as HTML. With a `version` it is live: it polls /version and reloads when that changes."""
    about = {"lang": "en"}
    if version is not None:
        about |= {"data_version": version, "data_poll_seconds": str(POLL_SECONDS)}
    body = element(
        "body",
        element("a", "Skip to the content", href="#content", class_="skip"),
        _header(data, live=version is not None),
        element("main", *(build(data) for _, _, build in _SECTIONS), id="content"),
        page_footer(),
        page_script(),
    )
    return to_html(element("html", page_head(data.lake, live=version is not None), body, **about))


def page_script() -> Element:
    """Return the script that updates ages, and reloads a live page."""
    return raw_element("script", _SCRIPT)


def page_head(title: str, *, live: bool = False) -> Element:
    """Return the head of a page, with its policy and its style."""
    # `element` would truncate the policy.
    rules = element("meta", http_equiv="Content-Security-Policy")
    rules.set("content", content_security_policy(live=live))
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="generator", content=f"{GENERATOR} {__version__}"),
        rules,
        element("meta", name="referrer", content="no-referrer"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", f"{title}: scanlake"),
        raw_element("style", _STYLE),
    )


def _header(data: DashboardData, *, live: bool) -> Element:
    fresh = data.freshness
    if fresh.watermark is None:
        lead = element("p", "No watermark yet: the first sync has not finished.", class_="lead")
    else:
        text = f"Everything updated before {format_instant(fresh.watermark)} ("
        lead = element("p", text, age_element(fresh.watermark, data.now), ") is in the lake.", class_="lead")
    text = f"Snapshot {fresh.snapshot}, published {format_instant(fresh.published_at)}. "
    text += f"Page created {format_instant(data.now)} ("
    created = element("p", text, age_element(data.now, data.now), ").", class_="soft")
    links = [element("li", element("a", name, href=f"#{key}")) for name, key, _ in _SECTIONS]
    browse = element("p", element("a", "Browse tables and files", href="/browse"), class_="lead") if live else None
    return element(
        "header",
        element("h1", data.lake),
        element("p", f"Files of {data.source}", class_="soft") if data.source else None,
        lead,
        created,
        element("p", "", class_="soft", id="live", role="status") if live else None,
        _verdict(data),
        browse,
        _summary_tiles(data),
        element("nav", element("ul", *links), aria_label="Sections"),
    )


def age_element(at: datetime, now: datetime) -> Element:
    """Return the age of an instant, which grows while the page is open. Both are naive UTC."""
    return element("time", format_age((now - at).total_seconds()), datetime=f"{at:%Y-%m-%dT%H:%M:%SZ}", data_age="")


def _verdict(data: DashboardData) -> Element:
    """Return what needs attention. The page's script updates the age of the watermark while the page is open."""
    items = [
        element("li", f"{text} ", element("a", f"See {key}.", href=f"#{key}")) for text, key in list_problems(data)
    ]
    watermark = data.freshness.watermark
    is_old = watermark is not None and data.now - watermark > STALE_AFTER
    if watermark is not None:
        days = pluralize(STALE_AFTER.days, "day")
        old = element("li", f"The watermark is more than {days} old: no sync has finished since.")
        old.set("data-old-after", f"{watermark + STALE_AFTER:%Y-%m-%dT%H:%M:%SZ}")
        if not is_old:
            old.set("hidden", "hidden")
        items.append(old)
    has_problems = is_old or len(items) > (watermark is not None)
    text = "Nothing needs attention: the lake is current, its last run and verification succeeded."
    fine = element("p", text, id="fine")
    if has_problems:
        fine.set("hidden", "hidden")
    heading = element("strong", "Needs attention") if has_problems else None
    css_class = "verdict problems" if has_problems else "verdict"
    return element("div", heading, fine, element("ul", *items), id="verdict", class_=css_class)


def list_problems(data: DashboardData) -> Iterator[tuple[str, str]]:
    """Yield each problem, but for the age of the watermark, with the section about it."""
    fresh = data.freshness
    if fresh.watermark is None:
        yield "No sync has finished yet: the lake is incomplete.", "runs"
    if not fresh.complete:
        yield "This snapshot was published during a run.", "runs"
    if data.paused_at is not None:
        yield f"Syncs are paused: the lake was rolled back to snapshot {data.paused_at}.", "runs"
    run = data.runs[-1] if data.runs else None
    if data.failing is not None:
        yield f"{truncate(data.failing[:1].upper() + data.failing[1:]).rstrip('.')}.", "runs"
    elif run is not None and run.state in UNFINISHED:
        reason = truncate(run.error or "interrupted").rstrip(".")
        yield f"The last run ({run.command}) did not finish: {reason}.", "runs"
    if not data.verifications:
        yield "Never verified: files deleted in the service may still be in the lake.", "verifications"
    elif not data.verifications[0].consistent:
        yield "The last verification found that lake and service differ.", "verifications"
    if fresh.rejects:
        yield f"{pluralize(fresh.rejects, 'file or document', 'files or documents')} rejected.", "rejects"


def _summary_tiles(data: DashboardData) -> Element:
    fresh, totals = data.freshness, data.totals
    run = data.runs[-1] if data.runs else None
    check = data.verifications[0] if data.verifications else None
    total_bytes = sum(size.bytes for size in data.table_sizes)
    parts = sum(size.parts for size in data.table_sizes)
    open_runs = sum(bucket.runs for bucket in data.open_ages)
    tiles = [
        _tile("Files", format_count(totals.files), f"{pluralize(fresh.deleted_files, 'file')} deleted in the service"),
        _tile("Uploads", format_count(totals.uploads), "images and documents"),
        _tile("Open workflow runs", format_count(open_runs), "started, not completed"),
        _tile("Rejects", format_count(fresh.rejects), "could not be stored", bad=bool(fresh.rejects)),
        _tile(
            "Last run",
            run.state if run else "none yet",
            f"{run.command}, {format_instant(run.started_at)}" if run else "",
            bad=run is not None and run.state in UNFINISHED,
        ),
        _tile(
            "Last verification",
            "never" if check is None else "consistent" if check.consistent else "not consistent",
            "" if check is None else format_instant(check.verified_at),
            bad=check is None or not check.consistent,
        ),
        _tile("Schema drift", format_count(data.drift[0].keys if data.drift else 0), "keys, kept as sent in extra"),
        _tile("Size", format_bytes(total_bytes), f"{pluralize(parts, 'part')} in this snapshot"),
    ]
    return element("dl", *tiles, class_="tiles")


def _tile(name: str, number: str, more: str, *, bad: bool = False) -> Element:
    big = element("dd", number, class_="big bad" if bad else "big")
    return element("div", element("dt", name), big, element("dd", more, class_="more") if more else None)


def page_footer() -> Element:
    """Return the footer: units, version, and the command for the same figures."""
    return element(
        "footer",
        element("p", f"All times are UTC; sizes are in powers of 1,000. Created by scanlake {__version__}."),
        element("p", "The same figures in SQL: ", element("code", 'scanlake query "FROM meta.freshness"'), "."),
    )
