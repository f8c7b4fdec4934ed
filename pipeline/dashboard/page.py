"""The page: one HTML file that needs nothing but itself, and may reach nothing but itself."""

from __future__ import annotations

import base64
import hashlib
from datetime import datetime, timedelta
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from pipeline import __version__
from pipeline.dashboard import content, health
from pipeline.dashboard.elements import element, serialised, verbatim
from pipeline.dashboard.health import UNFINISHED
from pipeline.dashboard.spelling import age, clipped, count, moment, several, size

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from pipeline.dashboard.facts import Facts

MARK: Final = "scanlake dashboard"
"""What the generator of every page says first: by it a page of ours is known."""

POLL_SECONDS: Final = 3
OLD: Final = timedelta(days=1)
"""A horizon older than this needs attention."""

_STYLE: Final = files("pipeline.dashboard").joinpath("page.css").read_text(encoding="utf-8")
_SCRIPT: Final = files("pipeline.dashboard").joinpath("page.js").read_text(encoding="utf-8")
_PARTS: Final = (
    ("Files and uploads", "activity", content.activity),
    ("Damage", "damage", content.damage),
    ("Open workflow runs", "workflows", content.open_runs),
    ("Fields and forms", "filled", content.filled),
    ("Runs", "runs", health.runs),
    ("Verifies", "verifies", health.verifies),
    ("Rejects", "rejects", health.rejects),
    ("Schema drift", "drift", health.drift),
    ("Deletions", "deletions", health.deletions),
    ("Snapshots and size", "size", health.size_and_snapshots),
    ("Reports", "reports", health.reports),
)


def policy(*, live: bool) -> str:
    """What the page may do: use its own style and script; when it is live, ask where it came from."""
    asks = "; connect-src 'self'" if live else ""
    return (
        f"default-src 'none'; style-src '{_hash(_STYLE)}'; script-src '{_hash(_SCRIPT)}'; img-src data:{asks};"
        " base-uri 'none'; form-action 'none'"
    )


def page(facts: Facts, version: str | None = None) -> str:
    """The page as HTML. With a `version` it is live: it asks for /version, and comes anew when that has changed."""
    about = {"lang": "en"}
    if version is not None:
        about |= {"data_version": version, "data_poll_seconds": str(POLL_SECONDS)}
    body = element(
        "body",
        element("a", "Skip to the content", href="#content", class_="skip"),
        _header(facts, live=version is not None),
        element("main", *(build(facts) for _, _, build in _PARTS), id="content"),
        _footer(),
        verbatim("script", _SCRIPT),
    )
    return serialised(element("html", _head(facts, live=version is not None), body, **about))


def _head(facts: Facts, *, live: bool) -> Element:
    # Not by `element`: it would clip the policy.
    rules = element("meta", http_equiv="Content-Security-Policy")
    rules.set("content", policy(live=live))
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="generator", content=f"{MARK} {__version__}"),
        rules,
        element("meta", name="referrer", content="no-referrer"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", f"{facts.lake}: scanlake"),
        verbatim("style", _STYLE),
    )


def _header(facts: Facts, *, live: bool) -> Element:
    fresh = facts.fresh
    if fresh.horizon is None:
        lead = element("p", "No horizon yet: the first sync has not come to its end.", class_="lead")
    else:
        lead = element(
            "p",
            f"Everything updated before {moment(fresh.horizon)} (",
            _age(fresh.horizon, facts.now),
            ") is in.",
            class_="lead",
        )
    made = element(
        "p",
        f"Snapshot {fresh.snapshot}, published {moment(fresh.published_at)}. Page written {moment(facts.now)} (",
        _age(facts.now, facts.now),
        ").",
        class_="soft",
    )
    links = [element("li", element("a", name, href=f"#{key}")) for name, key, _ in _PARTS]
    return element(
        "header",
        element("h1", f"Lake {facts.lake}"),
        lead,
        made,
        element("p", "", class_="soft", id="live", role="status") if live else None,
        _verdict(facts),
        _tiles(facts),
        element("nav", element("ul", *links), aria_label="Sections"),
    )


def _age(at: datetime, now: datetime) -> Element:
    return element("time", age((now - at).total_seconds()), datetime=f"{at:%Y-%m-%dT%H:%M:%SZ}", data_age="")


def _verdict(facts: Facts) -> Element:
    """What needs attention. The age of the horizon is judged anew by the script while the page lies open."""
    troubles = [element("li", text, *link) for text, link in _troubles(facts)]
    horizon = facts.fresh.horizon
    is_old = horizon is not None and facts.now - horizon > OLD
    if horizon is not None:
        days = several(OLD.days, "day")
        old = element("li", f"The horizon is more than {days} old: no sync has come to its end since.")
        old.set("data-old-after", f"{horizon + OLD:%Y-%m-%dT%H:%M:%SZ}")
        if not is_old:
            old.set("hidden", "hidden")
        troubles.append(old)
    bad = is_old or len(troubles) > (horizon is not None)
    fine = element("p", "Nothing needs attention: the lake is current, its last run and verify went well.", id="fine")
    if bad:
        fine.set("hidden", "hidden")
    heading = element("strong", "Needs attention") if bad else None
    return element(
        "div", heading, fine, element("ul", *troubles), id="verdict", class_="verdict trouble" if bad else "verdict"
    )


def _troubles(facts: Facts) -> list[tuple[str, list[Element]]]:
    fresh = facts.fresh
    found: list[tuple[str, list[Element]]] = []

    def say(text: str, key: str) -> None:
        found.append((f"{text} ", [element("a", f"See {key}.", href=f"#{key}")]))

    if fresh.horizon is None:
        say("No sync has come to its end yet, so nothing is promised.", "runs")
    if not fresh.complete:
        say("This snapshot was published while a run was still going on.", "runs")
    run = facts.runs[-1] if facts.runs else None
    if run is not None and run.state in UNFINISHED:
        say(f"The last run ({run.command}) did not finish: {clipped(run.error or 'interrupted')}.", "runs")
    if not facts.verifications:
        say("Never verified: files deleted at the service may still be here.", "verifies")
    elif not facts.verifications[0].equal:
        say("The last verify found that lake and service differ.", "verifies")
    if fresh.rejects:
        say(f"{several(fresh.rejects, 'file or document', 'files or documents')} rejected.", "rejects")
    return found


def _tiles(facts: Facts) -> Element:
    fresh, totals = facts.fresh, facts.totals
    run = facts.runs[-1] if facts.runs else None
    check = facts.verifications[0] if facts.verifications else None
    stored = sum(each.bytes for each in facts.stored)
    open_now = sum(each.runs for each in facts.open_ages)
    tiles = [
        _tile("Files", count(totals.files), f"{several(fresh.deleted_files, 'file')} gone from the service"),
        _tile("Uploads", count(totals.uploads), "images and documents"),
        _tile("Open workflow runs", count(open_now), "begun, not completed"),
        _tile("Rejects", count(fresh.rejects), "could not be taken as they are", bad=bool(fresh.rejects)),
        _tile(
            "Last run",
            run.state if run else "none yet",
            f"{run.command}, {moment(run.started_at)}" if run else "",
            bad=run is not None and run.state in UNFINISHED,
        ),
        _tile(
            "Last verify",
            "never" if check is None else "equal" if check.equal else "not equal",
            "" if check is None else moment(check.verified_at),
            bad=check is None or not check.equal,
        ),
        _tile("Unknown or misfit keys", count(facts.drift[0].keys if facts.drift else 0), "kept as sent in extra"),
        _tile("Size", size(stored), f"{several(sum(each.parts for each in facts.stored), 'part')} in this snapshot"),
    ]
    return element("dl", *tiles, class_="tiles")


def _tile(name: str, number: str, more: str, *, bad: bool = False) -> Element:
    big = element("dd", number, class_="big bad" if bad else "big")
    return element("div", element("dt", name), big, element("dd", more, class_="more") if more else None)


def _footer() -> Element:
    return element(
        "footer",
        element(
            "p",
            f"All times are UTC; sizes are in powers of 1,000. Made by scanlake {__version__}.",
        ),
        element("p", "The same in SQL: ", element("code", 'scanlake query "FROM meta.freshness"'), "."),
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
