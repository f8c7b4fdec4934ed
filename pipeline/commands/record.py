"""`scanlake record`: record anonymised answers of the service."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.client.client import Client
from pipeline.client.factory import create_client
from pipeline.context import CommandContext, setting_options
from pipeline.errors import ExitCode
from pipeline.formatting import format_bytes, pluralize
from pipeline.process import run_async
from pipeline.recording.fixture import check_folder, write_recording
from pipeline.recording.recorder import Exchange, Recorder
from pipeline.settings import require_base_url

_MAX_FILES = 500


@setting_options("base_url", "token_file", "max_requests_per_second")
def run(
    context: CommandContext,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="New or empty folder for the recording.")],
    files: Annotated[int, typer.Option(metavar="N", min=1, max=_MAX_FILES, help="Number of files to record.")] = 20,
) -> ExitCode:
    """Record anonymised answers of the service as a test fixture.

    The recording has list pages with all includes, the detail of each file, an id that does not exist, a page past the
    end, and what the service answers to two forbidden parameters. All calls only read.

    Texts, numbers and coordinates become salted hashes of the same shape; ids become other numbers that still join;
    instants are shifted; links lead to example.invalid. Keys, enumerations (upload_type, status, ...), flags, counts
    and the words of error messages stay. The salt is random and never stored, and the token is not recorded. Read the
    recording before you pass it on.
    """
    settings = context.settings()
    require_base_url(settings)
    check_folder(out)
    exchanges = run_async(_record(create_client(settings, context.token(settings)), files))
    size = write_recording(exchanges, out)
    text = f"{pluralize(len(exchanges), 'exchange')} recorded in {out} ({format_bytes(size)}).\n"
    context.print_result({"out": str(out), "exchanges": len(exchanges), "bytes": size}, text)
    return ExitCode.OK


async def _record(client: Client, files: int) -> list[Exchange]:
    recorder = Recorder(client)
    async with client:
        await recorder.record(files)
    return recorder.exchanges
