"""What the ledger has of files beyond their rows: reports and shares, forgotten by a purge, and copies elsewhere."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote, quote_plus

from msgspec import Struct

from schemas.timestamps import format_instant, now_us

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence

    from pipeline.lake.ledger.ledger import Ledger

_WRITTEN_OPTIONS: Final = ("selection", "title", "purpose")
"""Options of a report job that people write."""
_WORD_START: Final = r"(?:(?<!\w)|(?<=%[0-9A-F]{2})|(?<=\\[bfnrt])|(?<=\\u[0-9a-f]{4}))"  # also after an escape


class OutsideCopy(Struct, frozen=True):
    """A copy that no purge reaches: a backup, a report's folder, or a share link that may still be valid."""

    kind: Literal["backup", "report folder", "share link"]
    location: str
    content: str


def find_outside_copies(
    ledger: Ledger, file_ids: Sequence[int], references: Sequence[str], before: int
) -> tuple[OutsideCopy, ...]:
    """Return what the ledger knows of copies elsewhere; of backups those that do not follow the purge at `before`."""
    values = (json.dumps(file_ids), json.dumps(references))
    of_file = "(file_id IN (SELECT value FROM json_each(?1)) OR reference IN (SELECT value FROM json_each(?2)))"
    pdfs: dict[str, list[str]] = {}
    for folder, pdf in ledger.query(
        "SELECT DISTINCT folder, pdf FROM report_file AS f JOIN report_job USING (job) LEFT JOIN report_order AS o"
        f" ON o.job = f.job AND o.batch = f.batch AND o.state IN ('saved', 'delivered') WHERE {of_file}"
        " ORDER BY folder, pdf",
        values,
    ):
        pdfs.setdefault(folder, []).extend([pdf] if pdf else [])
    shares = ledger.query(
        "SELECT share_url, expires_at, state FROM share WHERE state IN ('created', 'unknown') AND"
        " coalesce(expires_at, ?3) >= ?3 AND (reference IN (SELECT value FROM json_each(?2)) OR EXISTS (SELECT 1 FROM"
        " json_each(file_ids) AS own JOIN json_each(?1) AS purged USING (value))) ORDER BY share",
        (*values, now_us()),
    )
    copies = [
        OutsideCopy("backup", url, "the next backup to it erases the files there")
        for url, last_purge_at in ledger.properties.backups.items()
        if last_purge_at < before
    ]
    copies += [OutsideCopy("report folder", folder, ", ".join([*names, "manifest"])) for folder, names in pdfs.items()]
    for url, expires_at, state in shares:
        until = "without an end" if expires_at is None else f"until {format_instant(expires_at)}"
        copies.append(OutsideCopy("share link", url or state, f"valid {until}"))
    return tuple(copies)


def _compile_words(references: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of the references as words, also as JSON, URLs and SQL have them."""
    forms = set[str]()
    for text in filter(None, references):
        escaped = {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
        forms |= {text, *escaped, *(form.replace("/", "\\/") for form in escaped)}
        forms |= {quote(text), quote(text, safe=""), quote_plus(text), text.replace("'", "''")}
    longest_first = sorted(forms, key=len, reverse=True)
    return re.compile(rf"{_WORD_START}({'|'.join(map(re.escape, longest_first))})(?!\w)" if forms else "(?!)")


def forget_requests(db: sqlite3.Connection, file_ids: Iterable[int], references: Sequence[str]) -> None:
    """Delete what reports and shares have of files: rows, batches and orders without others, references."""
    words = _compile_words(references)
    rows = [(file_id, None) for file_id in file_ids] + [(None, reference) for reference in references]
    batches = set[tuple[str, int]]()
    of_file = "(file_id = ?1 OR (file_id IS NULL AND reference = ?2))"
    for row in rows:  # a file may have left its batch, and a batch that was rejected has none
        batches.update(
            db.execute(
                f"SELECT job, batch FROM report_file WHERE {of_file} AND batch IS NOT NULL UNION SELECT job, batch FROM"
                f" report_batch JOIN (SELECT job, group_name FROM report_file WHERE {of_file}) USING (job, group_name)",
                row,
            )
        )
    db.executemany(f"DELETE FROM report_file WHERE {of_file}", rows)
    for table in ("report_order", "report_batch"):
        db.executemany(
            f"DELETE FROM {table} WHERE job = ?1 AND batch = ?2"
            " AND NOT EXISTS (SELECT 1 FROM report_file WHERE job = ?1 AND batch = ?2)",
            batches,
        )
    jobs = "SELECT job, options, folder, job IN (SELECT job FROM report_file) FROM report_job"
    for job, text, folder, has_files in db.execute(jobs).fetchall():
        options = json.loads(text)
        written = {name: _without_words(options.get(name), words) for name in _WRITTEN_OPTIONS}
        changed = json.dumps(options | written, sort_keys=True)
        path = folder if has_files else words.sub("purged", folder)
        db.execute("UPDATE report_job SET options = ?, folder = ? WHERE job = ?", (changed, path, job))
    db.executemany("DELETE FROM share WHERE reference = ?", [(reference,) for reference in references])


def _without_words(value: Any, words: re.Pattern[str]) -> Any:
    """Return a value of JSON with other words in its texts."""
    if isinstance(value, str):
        return words.sub("purged", value)
    if isinstance(value, list):
        return [_without_words(item, words) for item in value]
    items = value.items() if isinstance(value, dict) else ()
    return {name: _without_words(item, words) for name, item in items} if items else value
