"""`scanlake verify`: hold the lake against the service, heal what differs, and prove it."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from pipeline.call import Call, setting
from pipeline.commands.running import run_to_end
from pipeline.commands.telling import tell_proof
from pipeline.errors import Exit
from pipeline.lake.lake import Lake
from pipeline.runs.verify import Mode, verify
from pipeline.settings import base_url_value


def run(
    call: Call,
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Only report; change nothing. Exit 4 for differences.")
    ] = False,
    accept_deletions: Annotated[
        bool, typer.Option("--accept-deletions", help="Believe it when more than 5 % of the files are gone.")
    ] = False,
    deep: Annotated[
        float,
        typer.Option(min=0, max=1, help="Also read the details of this share of the files again; 1: of all."),
    ] = 0.0,
    base_url: Annotated[str | None, setting("base_url")] = None,
    token_file: Annotated[Path | None, setting("token_file")] = None,
    max_concurrency: Annotated[int | None, setting("max_concurrency")] = None,
    max_requests_per_second: Annotated[float | None, setting("max_requests_per_second")] = None,
) -> Exit:
    """Hold the lake against the service, heal what differs, and prove it.

    Incremental syncs never see a deletion. This walks the whole list cheaply, fetches what is missing or
    stale, and moves files that are gone to deleted_files: those absent from the complete list that their
    id does not find either. The proof is printed, and written to meta.verifications.
    """
    settings = call.settings(
        base_url=base_url,
        token_file=token_file,
        max_concurrency=max_concurrency,
        max_requests_per_second=max_requests_per_second,
    )
    base_url_value(settings)
    token = call.token(settings)
    mode = Mode(check_only=check, accept_deletions=accept_deletions, deep=deep)
    with Lake(settings.lake, doing="verify", anchor=settings.anchor) as lake:
        proof = run_to_end(verify(lake, settings, token, mode, call.progress()))
    if call.as_json:
        call.print_json(proof.as_json())
    else:
        sys.stdout.write(tell_proof(proof))
    return Exit.DONE if proof.equal else Exit.REJECTS
