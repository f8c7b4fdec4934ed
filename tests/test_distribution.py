"""The wheel and the sdist: what they contain, and that the installed command runs."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from typing import TYPE_CHECKING

import pytest

from pipeline import __version__
from tests.conftest import ROOT
from tools.docs.documents import OPERATIONS

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
    assert not [name for name in names if name.startswith(("tests/", "tools/", "docs/"))]
    assert (metadata["Description-Content-Type"], metadata["License-Expression"]) == ("text/markdown", "MIT")
    assert "Is it for you?" in str(metadata.get_payload())
    assert {re.sub(r"\W", "", name) for name in metadata.get_all("Provides-Extra") or ()} == _read_documented_extras()
    # Of an older Python, pip before 26 first looks for the packages that have no version for it (seen with 22 to 25).
    oldest = metadata["Requires-Python"].removeprefix(">=")
    for package in ("duckdb", "pyarrow"):
        [line] = [line for line in metadata.get_all("Requires-Dist") or () if line.startswith(package)]
        assert line.endswith(f"python_version >= '{oldest}'")


def _read_documented_extras() -> set[str]:
    return {row[0].strip("`") for row in OPERATIONS.table("extra")}


@pytest.mark.soak
@pytest.mark.parametrize(
    "line",
    ["pipx install {}", "pipx install {}[xlsx,mcp]", "uv tool install {}", "uv tool install {}[xlsx]"],
    ids=lambda line: line.partition(" {")[0],
)
@pytest.mark.parametrize("of", ["wheel", "clone"])
def test_other_installers_put_the_command_on_the_path(line: str, of: str, wheel: Path, tmp_path: Path) -> None:
    """The documented lines install a command that runs, with its extras, from an index of packages."""
    tool, *arguments = line.format(wheel if of == "wheel" else ROOT).split()
    if shutil.which(tool) is None:
        pytest.skip(f"needs {tool}")
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    clean |= dict.fromkeys(("PIPX_BIN_DIR", "UV_TOOL_BIN_DIR"), str(tmp_path / "bin"))
    clean |= dict.fromkeys(("PIPX_HOME", "UV_TOOL_DIR"), str(tmp_path / "tools"))
    done = subprocess.run([tool, *arguments], env=clean, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    command = [str(tmp_path / "bin" / "scanlake"), "--version"]
    assert subprocess.run(command, env=clean, capture_output=True, text=True, check=True).stdout == (
        f"scanlake {__version__}\n"
    )
    has_xlsx = any(path.name == "xlsxwriter" for path in (tmp_path / "tools").rglob("xlsxwriter"))
    assert has_xlsx == ("xlsx" in line)


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
