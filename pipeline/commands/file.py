"""`scanlake file`: show one file as the service has it now."""

import sys
from enum import StrEnum
from typing import Annotated, Final

import typer

from pipeline.client.client import Client
from pipeline.client.factory import create_client
from pipeline.client.protocol import Detail, NotFound
from pipeline.commands._file_tables import print_file, render_text
from pipeline.context import CommandContext
from pipeline.errors import ExitCode, MissingFileError
from pipeline.process import run_async
from pipeline.settings import require_base_url
from schemas.json_decode import decode_json
from schemas.value_types import encode_json

GROUP: Final = "Use the data"


class FileFormat(StrEnum):
    """Output formats of one file."""

    TABLE = "table"
    JSON = "json"


def run(
    context: CommandContext,
    *,
    file_id: Annotated[int, typer.Argument(metavar="ID", min=0, max=2**63 - 1, help="Id of the file.")],
    output_format: Annotated[
        FileFormat, typer.Option("--format", help="Sections for reading, or every value as the service sent it.")
    ] = FileFormat.TABLE,
) -> ExitCode:
    """Show one file as the service has it now, without a lake.

    The sections show the most important values of the children; --format json has all of them, with the links to the
    images: treat these as secrets.

    Exit codes: 0 done, 4 the service does not have the file, 1 the service failed, 3 token refused.
    """
    settings = context.settings()
    require_base_url(settings)
    answer = run_async(_read(create_client(settings, context.token(settings)), file_id, settings.lang))
    if isinstance(answer, NotFound):
        raise MissingFileError(f"File {file_id}: the service does not have it ({answer.evidence}).")
    document = decode_json(answer.raw)
    if context.as_json or output_format is FileFormat.JSON:
        sys.stdout.write(encode_json(document) + "\n")
    else:
        sys.stdout.write(render_text(lambda console: print_file(console, document)))
    return ExitCode.OK


async def _read(client: Client, file_id: int, lang: str | None) -> Detail | NotFound:
    async with client:
        return await client.get_file(file_id, lang=lang)
