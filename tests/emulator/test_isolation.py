"""How the command of the emulator explains itself."""

from dataclasses import fields

import typer
from typer.testing import CliRunner

from pipeline.cli.commands import emulator
from pipeline.emulator import Faults, Quirks
from pipeline.emulator.faults import KINDS


def _command() -> typer.Typer:
    app = typer.Typer()
    app.command()(emulator.run)
    return app


def test_every_quirk_and_fault_is_listed_with_its_meaning() -> None:
    """--list-quirks names every option, every value and every kind of fault."""
    shown = CliRunner().invoke(_command(), ["--list-quirks"])
    assert shown.exit_code == 0
    for kind in (Quirks, Faults):
        for option in fields(kind):
            assert option.metadata["doc"]
            assert option.name == "probabilities" or f"  {option.name}=" in shown.stdout
    assert all(kind in shown.stdout for kind in KINDS)
