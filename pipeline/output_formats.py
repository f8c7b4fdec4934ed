"""The formats of results: one enumeration and one `--format` for all commands."""

# Annotations are evaluated here: typer reads them. Hence no `from __future__ import annotations`.
from enum import StrEnum
from typing import Any

import typer


class OutputFormat(StrEnum):
    """Formats of results; a command writes some of them."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    JSONL = "jsonl"
    PARQUET = "parquet"
    XLSX = "xlsx"


def format_option(*formats: OutputFormat, text: str) -> Any:
    """Return the option `--format` of a command that writes `formats`; `text` is its help."""

    def parse(typed: str) -> OutputFormat:
        if typed not in formats:
            raise typer.BadParameter(f"{typed!r} is not one of {', '.join(formats)}.")
        return OutputFormat(typed)

    return typer.Option(
        "--format",
        parser=parse,
        metavar="|".join(formats),
        help=text,
        autocompletion=lambda incomplete: [name for name in formats if name.startswith(incomplete)],
    )
