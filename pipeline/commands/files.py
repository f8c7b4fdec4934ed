"""`scanlake files`: files as the service has them now, by reference, by id or by its search."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from enum import StrEnum
from typing import Annotated, Any, Final

import typer
from msgspec import Struct, field

from pipeline.client.client import Client
from pipeline.client.factory import create_client
from pipeline.client.protocol import NotFound
from pipeline.command_options import Excludes
from pipeline.context import CommandContext
from pipeline.errors import ExitCode, SettingsError
from pipeline.file_text import CHILDREN, format_csv, format_files
from pipeline.logs import to_one_line
from pipeline.output_formats import OutputFormat, choose_format, format_option
from pipeline.process import run_async
from pipeline.settings import require_base_url
from pipeline.time_bounds import parse_bound, parse_range
from schemas.includes import INCLUDES
from schemas.json_decode import decode_json
from schemas.requests import MAX_LIMIT, MAX_LIMIT_WITH_INCLUDES, FileQuery
from schemas.value_types import encode_json

GROUP: Final = "Use the data"

_DEFAULT_FILES: Final = 50
_FORMATS: Final = (OutputFormat.TABLE, OutputFormat.CSV, OutputFormat.JSON)
_SEARCH_OPTIONS: Final = (
    *("--find", "--closed", "--open", "--start-date", "--end-date", "--field", "--since", "--until", "--limit"),
)
IncludeName = StrEnum("IncludeName", {name: name for name in INCLUDES})  # type: ignore[misc]


class FoundFiles(Struct):
    """Files with the keys of the service. `total` is None if the service does not count; `missing` was asked for."""

    files: list[Mapping[str, Any]] = field(default_factory=list)
    total: int | None = None
    has_more: bool = False
    missing: list[str] = field(default_factory=list)

    def add(self, document: bytes) -> None:
        """Add a file as received."""
        value = decode_json(document)
        self.files.append(value if isinstance(value, dict) else {})


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
    closed: Annotated[
        bool | None, typer.Option("--closed/--open", help="Only closed files, or only open ones.")
    ] = None,
    start_date: Annotated[
        str | None, typer.Option(metavar="TIME", help="Files active at or after this (ISO-8601, UTC).")
    ] = None,
    end_date: Annotated[
        str | None, typer.Option(metavar="TIME", help="Files active until this; a date includes its day.")
    ] = None,
    field: Annotated[
        list[str] | None, typer.Option(metavar="ID=VALUE", help="Files with this value in a custom field. Repeatable.")
    ] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="Files updated after this (ISO-8601, UTC).")] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Files updated until this; a date includes its day.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Number of files to show.")] = _DEFAULT_FILES,
    include: Annotated[
        list[IncludeName] | None, typer.Option(help="Also fetch these children of listed files. Repeatable.")
    ] = None,
    output_format: Annotated[
        OutputFormat | None, format_option(*_FORMATS, text="Output format; json is that of --json. Default: table.")
    ] = None,
) -> ExitCode:
    """Show files as the service has them now, without a lake: by reference, by id, or by a search.

    A file by its id has all its children: a table counts them, JSON has them. The search is the service's own:
    conditions are combined with AND. A date alone means the start of its day as a lower bound and the end of its day as
    an upper bound, so --since D --until D is one day. CSV counts the children that --include requests. JSON has every
    value as the service sent it, with the links to the images: treat them as secrets.
    """
    settings = context.settings()
    chosen = choose_format(output_format, None, _FORMATS, as_json=context.as_json)
    require_base_url(settings)
    parse_range(since, until)
    parse_range(start_date, end_date, ("--start-date", "--end-date"))
    includes = _check_includes([name.value for name in include or ()])
    search: dict[str, Any] = {
        "find": find,
        "closed": closed,
        "startdate": parse_bound("--start-date", start_date),
        "enddate": parse_bound("--end-date", end_date),
        "updated_start": parse_bound("--since", since),
        "updated_end": parse_bound("--until", until),
        "field_id": _parse_fields(field or ()),
        "limit": min(limit + 1, MAX_LIMIT_WITH_INCLUDES if includes else MAX_LIMIT),
    }
    common: dict[str, Any] = {"include": includes, "lang": settings.lang}
    queries: dict[str, FileQuery | int] = {"": FileQuery(**search, **common)}
    if files:
        queries = {text: int(text) if _is_id(text) else FileQuery(reference=text, **common) for text in files}
    client = create_client(settings, context.token(settings))
    result = run_async(_read(client, queries, None if files else limit, settings.lang))
    code = ExitCode.REJECTS if result.missing else ExitCode.OK
    if chosen is OutputFormat.JSON:
        sys.stdout.write(_format_json(result, code))
    elif chosen is OutputFormat.CSV:
        children = [CHILDREN[name] for name in includes if name in CHILDREN]
        sys.stdout.write(format_csv(result.files, children))
    elif result.files or not result.missing:
        sys.stdout.write(format_files(result.files))
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


def _check_includes(includes: Sequence[str]) -> tuple[str, ...]:
    if "geocoding" in includes and "uploads" not in includes:
        raise SettingsError("--include geocoding requires uploads.", hint="Add --include uploads.")
    return tuple(name for name in INCLUDES if name in includes)


def _parse_fields(assignments: Sequence[str]) -> dict[int, str]:
    fields: dict[int, str] = {}
    for text in assignments:
        number, equals, value = text.partition("=")
        if not equals or not number.isascii() or not number.isdigit() or len(number) > 18:
            raise SettingsError(f"--field {text}: not ID=VALUE.", hint="Use a custom field's number: --field 7=blue.")
        if int(number) in fields:
            raise SettingsError(f"--field {number} is given twice.", hint="Use each custom field once.")
        fields[int(number)] = value
    return fields


def _format_json(result: FoundFiles, code: ExitCode) -> str:
    """Return the result with every digit of the service's numbers, a line for each file."""
    values = {"ok": not code, "exit_code": int(code), "total": result.total, "has_more": result.has_more}
    documents = ",\n".join(map(encode_json, result.files))
    head = encode_json(values | {"missing": result.missing}).removesuffix("}")
    return f'{head},"files":[\n{documents}\n]}}\n'
