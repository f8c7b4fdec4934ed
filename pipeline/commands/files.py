"""`scanlake files`: search the files in the service."""

import sys
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from pydantic import ValidationError
from rich.console import Console

from pipeline.client.client import Client
from pipeline.client.factory import create_client
from pipeline.commands._file_tables import COLLECTIONS, SCALARS, build_list_table, list_children, render_text, to_cell
from pipeline.context import CommandContext
from pipeline.csv_rows import format_csv_row
from pipeline.errors import ExitCode, SettingsError
from pipeline.formatting import pluralize
from pipeline.output_file import open_output, resolve_output
from pipeline.process import run_async
from pipeline.settings import require_base_url
from pipeline.time_bounds import parse_bound, parse_range
from schemas.json_decode import decode_json
from schemas.requests import INCLUDES, MAX_LIMIT, MAX_LIMIT_WITH_INCLUDES, FileQuery
from schemas.value_types import encode_json
from schemas.wire import File

GROUP: Final = "Use the data"

_DEFAULT_FILES: Final = 50
IncludeName = StrEnum("IncludeName", {name: name for name in INCLUDES})  # type: ignore[misc]


class FilesFormat(StrEnum):
    """Output formats of a search."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The files of a search, decoded. `total` is None if the service does not count."""

    files: tuple[dict[str, Any], ...]
    total: int | None
    has_more: bool


def run(
    context: CommandContext,
    *,
    reference: Annotated[str | None, typer.Option(metavar="REF", help="Files with exactly this reference.")] = None,
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
        list[IncludeName] | None, typer.Option(help="Also fetch these children of the files. Repeatable.")
    ] = None,
    output_format: Annotated[
        FilesFormat | None,
        typer.Option("--format", help="Output format. Default: by the extension of --out, otherwise table."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the files to this file; - is standard output.")
    ] = None,
) -> ExitCode:
    """Search the files in the service, without a lake.

    The search is the service's own: conditions are combined with AND. A date alone means the start of its day as a
    lower bound and the end of its day as an upper bound, so --since D --until D is one day. JSON has the files as the
    service sent them; a table or CSV counts the children that --include requests.

    Exit codes: 0 done, also without a file, 1 the service failed, 3 token refused, 6 the service refused the search.
    """
    settings = context.settings()
    target = resolve_output(out, settings.lake)
    chosen_format = _choose_format(output_format, None if target is None else out, as_json=context.as_json)
    require_base_url(settings)
    parse_range(since, until)
    parse_range(start_date, end_date, ("--start-date", "--end-date"))
    includes = [name.value for name in include or ()]
    query = _build_query(
        reference=reference,
        find=find,
        closed=closed,
        startdate=parse_bound("--start-date", start_date),
        enddate=parse_bound("--end-date", end_date),
        updated_start=parse_bound("--since", since),
        updated_end=parse_bound("--until", until),
        limit=min(limit + 1, MAX_LIMIT_WITH_INCLUDES if includes else MAX_LIMIT),
        include=_check_includes(includes),
        field_id=_parse_fields(field or ()),
        lang=settings.lang,
    )
    result = run_async(_search(create_client(settings, context.token(settings)), query, limit))
    with open_output(target) as file:
        file.write(_WRITERS[chosen_format](result, includes).encode("utf-8", "backslashreplace"))
    if context.as_json and target is not None:
        context.print_json({"out": str(out), "format": chosen_format.value, "files": len(result.files)})
    if result.has_more and not context.quiet:
        sys.stderr.write(_format_more(result))
    return ExitCode.OK


async def _search(client: Client, query: FileQuery, limit: int) -> SearchResult:
    """Read pages until one file more than `limit` is known."""
    totals: list[int | None] = []
    files: list[dict[str, Any]] = []
    client.on_list_page = lambda _query, _number, page: totals.append(page.total)
    async with client, aclosing(client.iter_items(query)) as items:
        async for item in items:
            if len(files) == limit:
                return SearchResult(tuple(files), totals[0], has_more=True)
            document = decode_json(item.raw)
            files.append(document if isinstance(document, dict) else {})
    return SearchResult(tuple(files), len(files), has_more=False)


def _build_query(**parameters: Any) -> FileQuery:
    try:
        return FileQuery(**parameters)
    except ValidationError as error:
        problem = error.errors(include_input=False)[0]
        name = str(problem["loc"][0]) if problem["loc"] else "search"
        raise SettingsError(f"--{_FLAGS.get(name, name)}: {problem['msg']}.", hint="Correct the option.") from None


_FLAGS: Final = {"startdate": "start-date", "enddate": "end-date", "updated_start": "since", "updated_end": "until"}


def _check_includes(includes: Sequence[str]) -> tuple[str, ...]:
    if "geocoding" in includes and "uploads" not in includes:
        raise SettingsError("--include geocoding requires uploads.", hint="Add --include uploads.")
    return tuple(name for name in INCLUDES if name in includes)


def _parse_fields(assignments: Sequence[str]) -> dict[int, str]:
    fields: dict[int, str] = {}
    for text in assignments:
        number, equals, value = text.partition("=")
        if not equals or not number.isascii() or not number.isdigit() or len(number) > 18:
            raise SettingsError("--field is not ID=VALUE.", hint="Use the number of a custom field: --field 7=blue.")
        if int(number) in fields:
            raise SettingsError(f"--field {number} is given twice.", hint="Use each custom field once.")
        fields[int(number)] = value
    return fields


def _choose_format(requested: FilesFormat | None, out: Path | None, *, as_json: bool) -> FilesFormat:
    if requested is None and out is not None:
        requested = {f".{item}": item for item in FilesFormat}.get(out.suffix.lower())
    if as_json and out is None:
        if requested not in {None, FilesFormat.JSON}:
            raise SettingsError("--json and another --format exclude each other.", hint="Leave one out, or add --out.")
        return FilesFormat.JSON
    return requested or FilesFormat.TABLE


def _format_more(result: SearchResult) -> str:
    count = len(result.files)
    if result.total is not None and result.total > count:
        return f"{count:,} of {result.total:,} files are shown; --limit N shows more.\n"
    return f"{pluralize(count, 'file')} shown, and there are more; --limit N shows more.\n"


def _format_table(result: SearchResult, includes: Sequence[str]) -> str:
    def draw(console: Console) -> None:
        if result.files:
            console.print(build_list_table(result.files, includes))
        console.print(pluralize(len(result.files), "file"), style="dim", highlight=False)

    return render_text(draw)


def _format_csv(result: SearchResult, includes: Sequence[str]) -> str:
    counted = [key for name, key in COLLECTIONS.items() if name in includes]
    lines = [format_csv_row([*SCALARS, *counted])]
    for document in result.files:
        cells = [to_cell(File, key, document.get(key)) for key in SCALARS]
        flags = [str(cell).lower() if isinstance(cell, bool) else cell for cell in cells]
        lines.append(format_csv_row([*flags, *(len(list_children(document, key)) for key in counted)]))
    return "".join(lines)


def _format_json(result: SearchResult, _includes: Sequence[str]) -> str:
    documents = ",\n".join(map(encode_json, result.files))
    total = "null" if result.total is None else result.total
    more = str(result.has_more).lower()
    return f'{{"files": [\n{documents}\n], "shown": {len(result.files)}, "total": {total}, "more": {more}}}\n'


_WRITERS: Final = {
    FilesFormat.TABLE: _format_table,
    FilesFormat.CSV: _format_csv,
    FilesFormat.JSON: _format_json,
}
