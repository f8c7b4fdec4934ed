"""What the emulator may know, and how its command explains itself."""

import ast
from dataclasses import fields
from pathlib import Path

import typer
from typer.testing import CliRunner

import pipeline.emulator
from pipeline.commands import emulator
from pipeline.emulator import Faults, Quirks
from pipeline.emulator.faults import KINDS


def _command() -> typer.Typer:
    app = typer.Typer()
    app.command()(emulator.run)
    return app


def test_the_emulator_imports_nothing_of_ours() -> None:
    """No module of the emulator imports schemas or another part of pipeline."""
    for path in Path(pipeline.emulator.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] != "schemas"
                assert name.split(".")[0] != "pipeline" or name.startswith("pipeline.emulator"), f"{path.name}: {name}"


def test_every_quirk_and_fault_is_listed_with_its_meaning() -> None:
    """--list-quirks names every option, every value and every kind of fault."""
    shown = CliRunner().invoke(_command(), ["--list-quirks"])
    assert shown.exit_code == 0
    for kind in (Quirks, Faults):
        for option in fields(kind):
            assert option.metadata["doc"]
            assert option.name == "probabilities" or f"  {option.name}=" in shown.stdout
    assert all(kind in shown.stdout for kind in KINDS)


def test_help_says_how_to_begin() -> None:
    """--help shows a command to start with and where the control routes are."""
    shown = CliRunner().invoke(_command(), ["--help"], env={"COLUMNS": "140"})
    assert "scanlake emulator --churn 2" in shown.stdout
    assert "/_emulator/" in shown.stdout


def test_a_wrong_quirk_is_a_usage_error() -> None:
    """An unknown value ends with exit code 2 and the values there are."""
    shown = CliRunner().invoke(_command(), ["--quirk", "order=backwards"], env={"COLUMNS": "140"})
    assert shown.exit_code == 2
    assert "updated-desc" in shown.output
