"""index.html: the list that a person opens. One file, nothing fetched from anywhere, every text escaped."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from pipeline.wording import many

if TYPE_CHECKING:
    from collections.abc import Mapping

_STYLE: Final = """
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#222}
h1{font-size:1.4rem;margin-bottom:.2rem}p{margin:.3rem 0}
input{font:inherit;width:100%;padding:.5rem;margin:1rem 0;box-sizing:border-box}
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #ddd}
td:first-child{font-variant-numeric:tabular-nums}.failed td{background:#fdecea}.muted{color:#666}
"""
_SCRIPT: Final = """
const box=document.getElementById("search"),rows=[...document.querySelectorAll("tbody tr")],
count=document.getElementById("count"),texts=rows.map(row=>row.textContent.toLowerCase());
box.addEventListener("input",()=>{const words=box.value.toLowerCase().split(/\\s+/).filter(Boolean);let shown=0;
rows.forEach((row,place)=>{const hit=words.every(word=>texts[place].includes(word));row.hidden=!hit;shown+=hit});
count.textContent=shown+" of "+rows.length+" files"});
"""


def page(facts: Mapping[str, Any]) -> str:
    """The page of a manifest."""
    counts = facts["counts"]
    grouped = any(each["group"] is not None for each in facts["files"])
    head = ["File", "Reference", *(["Group"] if grouped else []), "PDF", "Delivered", "Why not"]
    body = "\n".join(_row(each, grouped=grouped) for each in facts["files"])
    policy = f"default-src 'none'; style-src '{_hash(_STYLE)}'; script-src '{_hash(_SCRIPT)}'"
    failed = f", <strong>{counts['failed']:,} failed</strong>" if counts["failed"] else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width">
<title>Reports {escape(facts["job"])}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>Reports {escape(facts["job"])}</h1>
<p>{many(counts["files"], "file")} selected, {counts["delivered"]:,} in {many(counts["pdfs"], "PDF")}{failed}.</p>
<p class="muted">From {escape(facts["service"])}, lake snapshot {escape(str(facts["snapshot"]))}, horizon
{escape(str(facts["horizon"]))}. Written {escape(facts["written_at"])}. The sums are in SHA256SUMS.</p>
<input id="search" type="search" placeholder="Search by id, reference, PDF, reason" autofocus>
<p id="count" class="muted">{many(counts["files"], "file")}</p>
<table>
<thead><tr>{"".join(f"<th>{name}</th>" for name in head)}</tr></thead>
<tbody>
{body}
</tbody>
</table>
<script>{_SCRIPT}</script>
</body>
</html>
"""


def _row(file: Mapping[str, Any], *, grouped: bool) -> str:
    pdf = file["pdf"]
    link = f'<a href="{escape(quote(pdf))}">{escape(pdf)}</a>' if pdf else ""
    cells = [_text(file["file_id"]), _text(file["reference"]), *([_text(file["group"])] if grouped else [])]
    cells += [link, _text(file["delivered_at"]), _text(file["reason"])]
    mark = ' class="failed"' if file["state"] == "failed" else ""
    return f"<tr{mark}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _text(value: Any) -> str:
    return "" if value is None else escape(str(value).encode("utf-8", "backslashreplace").decode())


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
