"""`scanlake files`: files as the service has them now, by reference, by id or by its search."""

import sys
from collections.abc import Mapping
from contextlib import aclosing
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final

import typer
from msgspec import Struct, field
from msgspec.structs import asdict

from pipeline.cli.context import CommandContext
from pipeline.cli.option_rules import Excludes
from pipeline.cli.time_bounds import is_date, parse_bound, parse_range
from pipeline.client.client import Client, create_client
from pipeline.client.protocol import NotFound
from pipeline.errors import ExitCode, SettingsError
from pipeline.output.formatting import format_minute, pluralize
from pipeline.output.redaction import to_one_line
from pipeline.output.tables import format_table
from pipeline.processes.event_loop import run_async
from pipeline.settings.settings import require_base_url
from schemas.file_query import MAX_LIMIT, MAX_LIMIT_WITH_INCLUDES, FileQuery
from schemas.includes import INCLUDES
from schemas.json_decode import decode_object
from schemas.timestamps import parse_instant, to_datetime
from schemas.value_types import encode_json

EXAMPLES: Final = ("files --since 2026-01-01 --open", "files SC06327281 --json")

_DEFAULT_FILES: Final = 50
_COLUMNS: Final = ("id", "scan_code", "state", "created (UTC)", "updated (UTC)", "contents")
_CHILDREN: Final = {
    "uploads": "upload",
    "form_submits": "form",
    "fields": "field",
    "locations": "location",
    "workflow_runs": "workflow",
}
"""Nouns for the children of a file, by their keys."""

_STATES: Final[Mapping[object, str]] = {0: "open", "0": "open", 1: "closed", "1": "closed"}
_SEARCH_OPTIONS: Final = ("--find", "--closed", "--open", "--since", "--until", "--limit")
IncludeName = StrEnum("IncludeName", {name: name for name in INCLUDES})  # type: ignore[misc]


class FoundFiles(Struct):
    """Files with the keys of the service. `total` is None if the service does not count; `missing` was asked for."""

    files: list[Mapping[str, Any]] = field(default_factory=list)
    total: int | None = None
    has_more: bool = False
    missing: list[str] = field(default_factory=list)

    def add(self, document: bytes) -> None:
        """Add a file as received."""
        self.files.append(decode_object(document))


RESULT: Final = FoundFiles


def run(
    context: CommandContext,
    *,
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[REFERENCE|ID]...", help="Files with these references; a number is an id."),
        Excludes(*_SEARCH_OPTIONS),
    ] = None,
    find: Annotated[str | None, typer.Option(metavar="TEXT", help="Files with this text in their reference.")] = None,
    only_closed: Annotated[bool, typer.Option("--closed", help="Only closed files."), Excludes("--open")] = False,
    only_open: Annotated[bool, typer.Option("--open", help="Only open files.")] = False,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Files updated after this (ISO-8601, UTC).")] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Files updated until this; a date includes its day.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Number of files to show.")] = _DEFAULT_FILES,
    include: Annotated[
        list[IncludeName] | None, typer.Option(help="Also fetch these children of listed files. Repeatable.")
    ] = None,
) -> ExitCode:
    """Show files as the service has them now, without a lake: by reference, by id, or by a search.

    A file requested by its id comes with all its children, other files with those that --include requests; the table
    counts them. The service does the search, and all conditions must hold. A date alone means the start of that day for
    --since and the end of that day for --until, so --since D --until D is one day. --json has every value as the
    service sent it, with the links to the images: treat them as secrets.
    """
    settings = context.settings()
    require_base_url(settings)
    parse_range(since, until)
    includes = tuple(name for name in INCLUDES if name in (include or ()))
    if "geocoding" in includes and "uploads" not in includes:
        raise SettingsError("--include geocoding requires uploads.", hint="Add --include uploads.")
    search: dict[str, Any] = {
        "find": find,
        "closed": only_closed if only_closed or only_open else None,
        "updated_start": _parse_moment("--since", since),
        "updated_end": _parse_moment("--until", until),
        "limit": min(limit + 1, MAX_LIMIT_WITH_INCLUDES if includes else MAX_LIMIT),
    }
    common: dict[str, Any] = {"include": includes, "lang": settings.lang}
    queries: dict[str, FileQuery | int] = {"": FileQuery(**search, **common)}
    if files:
        queries = {text: int(text) if _is_id(text) else FileQuery(reference=text, **common) for text in files}
    client = create_client(settings, context.token(settings))
    result = run_async(_read(client, queries, None if files else limit, settings.lang))
    code = ExitCode.REJECTS if result.missing else ExitCode.OK
    if context.as_json:
        values = {"ok": not code, "exit_code": int(code), **asdict(result)}
        sys.stdout.write(encode_json(values) + "\n")  # it keeps every digit of the service's numbers
    elif result.files or not result.missing:
        sys.stdout.write(format_table(_COLUMNS, map(_format_file, result.files), unit="file"))
    if result.has_more and not context.quiet:
        total = "" if result.total is None else f" of {result.total:,}"
        sys.stderr.write(f"{len(result.files):,}{total} files are shown, and there are more; --limit N shows more.\n")
    for text in result.missing:
        sys.stderr.write(f"scanlake: {to_one_line(text)}: the service does not have the file.\n")
    return code


def _is_id(text: str) -> bool:
    if not text.strip():
        raise SettingsError("A reference is empty.", hint="Leave it out to search.")
    return text.isascii() and text.isdigit() and int(text) < 2**63


async def _read(
    client: Client, queries: Mapping[str, FileQuery | int], limit: int | None, lang: str | None
) -> FoundFiles:
    """Read details by id and lists by query, until one file more than `limit` is known."""
    result = FoundFiles()
    async with client:
        for text, query in queries.items():
            before = len(result.files)
            if isinstance(query, int):
                answer = await client.get_file(query, lang=lang)
                if not isinstance(answer, NotFound):
                    result.add(answer.raw)
            else:
                async with aclosing(client.iter_pages(query)) as pages:
                    async for page in pages:
                        for item in page.items:
                            if len(result.files) == limit:
                                result.total, result.has_more = page.total, True
                                return result
                            result.add(item.raw)
            if text and len(result.files) == before:
                result.missing.append(text)
    result.total = len(result.files)
    return result


def _parse_moment(flag: str, text: str | None) -> datetime | str | None:
    """Return a bound of a search. A date stays a date: the service reads it by the same rule."""
    instant = parse_bound(flag, text)
    if text is None or instant is None:
        return None
    return text.strip() if is_date(text) else to_datetime(instant)


def _format_file(file: Mapping[str, Any]) -> list[str | None]:
    """Return the cells of a file. A value that does not fit its type is shown as sent: no file is refused for one."""
    counts = [
        pluralize(len(children), noun)
        for key, noun in _CHILDREN.items()
        if isinstance(children := file.get(key), list) and children
    ]
    closed = file.get("closed")
    state = _STATES.get(closed) if isinstance(closed, int | str) else None
    values = [_format_value(file.get(key)) for key in ("id", "scan_code")]
    instants = [_format_instant(file.get(key)) for key in ("created_at", "updated_at")]
    return [*values, state or _format_value(closed), *instants, ", ".join(counts) or None]


def _format_instant(value: object) -> str | None:
    instant = parse_instant(value)
    return _format_value(value) if instant is None else format_minute(to_datetime(instant))


def _format_value(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else encode_json(value)
