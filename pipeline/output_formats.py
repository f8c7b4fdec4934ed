"""The formats of results: one enumeration and one `--format` for all commands."""

# Annotations are evaluated here: typer reads them. Hence no `from __future__ import annotations`.
from collections.abc import Collection
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer

from pipeline.errors import SettingsError


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


def choose_format(
    typed: OutputFormat | None, out: Path | None, formats: Collection[OutputFormat], *, as_json: bool
) -> OutputFormat:
    """Return the format of a result: the typed one, otherwise by the name of the file `out`, otherwise a table.

    `out` is None for standard output, where `--json` is a format. Raises `SettingsError`.
    """
    if out is None and as_json:
        if typed not in {None, OutputFormat.JSON}:
            raise SettingsError("--json and another --format exclude each other.", hint="Leave one out, or add --out.")
        return OutputFormat.JSON
    if typed is None and out is not None and (not out.exists() or out.is_file()):  # not a device or a pipe
        extension = out.suffix.lower().removeprefix(".")
        if extension in {"", "txt"}:
            return OutputFormat.TABLE
        if extension not in formats:
            names = ", ".join(f".{name}" for name in formats if name is not OutputFormat.TABLE)
            hint = f"Use {names} or .txt, or add --format."
            raise SettingsError(f"--out {out}: .{extension} is no format of a result.", hint=hint)
        return OutputFormat(extension)
    return typed or OutputFormat.TABLE
