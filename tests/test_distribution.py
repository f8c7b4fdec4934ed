"""The wheel and the sdist: what they contain, and that the installed command runs."""

from __future__ import annotations

import email
import os
import subprocess
import sys
import sysconfig
import zipfile
from typing import TYPE_CHECKING

import pytest

from pipeline.version import __version__
from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def build(kind: str, folder: Path) -> Path:
    """Build the wheel or the sdist of the working tree in a folder; return it."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    [built] = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the working tree."""
    return build("wheel", tmp_path_factory.mktemp("wheel"))


def test_the_wheel_has_what_an_operator_needs(wheel: Path) -> None:
    """The wheel has both packages with their data, every file of configs/, the licence, and metadata for an index."""
    assert wheel.name == f"scanlake-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = email.message_from_bytes(archive.read(f"scanlake-{__version__}.dist-info/METADATA"))
    shared = f"scanlake-{__version__}.data/data/share/scanlake/"
    configs = {
        path.relative_to(ROOT / "configs").as_posix() for path in (ROOT / "configs").rglob("*") if path.is_file()
    }
    assert {name.removeprefix(shared) for name in names if name.startswith(shared)} == configs
    assert {"scanlake.toml", "systemd/scanlake.service", "cron/scanlake"} <= configs
    for package in ("pipeline", "schemas"):
        sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / package).rglob("*") if path.is_file()}
        assert {name for name in sources if "__pycache__" not in name} <= names
    assert not [name for name in names if name.startswith(("tests/", "docs/"))]
    assert (metadata["Description-Content-Type"], metadata["License-Expression"]) == ("text/markdown", "MIT")
    assert "Is it for you?" in str(metadata.get_payload())


@pytest.mark.soak
def test_the_installed_wheel_runs(wheel: Path, tmp_path: Path) -> None:
    """Installed into an environment of its own, without network, the command runs from its own files."""
    environment = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    install = ["-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, *install], check=True, capture_output=True)
    [packages] = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")  # as installed for the tests
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def call(*arguments: str) -> str:
        return subprocess.run(arguments, cwd=tmp_path, env=clean, check=True, capture_output=True, text=True).stdout

    scanlake = str(environment / "bin" / "scanlake")
    origin = call(str(python), "-c", "import pipeline, schemas; print(pipeline.__file__, schemas.__file__)")
    assert origin.count(str(packages)) == 2
    assert call(scanlake, "--version") == f"scanlake {__version__}\n"
    template = (environment / "share" / "scanlake" / "scanlake.toml").read_text()
    assert call(scanlake, "settings", "--template") == template
    unit = environment / "share" / "scanlake" / "systemd" / "scanlake.service"
    assert "scanlake sync --log-json" in unit.read_text()
    assert "--full" in call(scanlake, "sync", "--help")
