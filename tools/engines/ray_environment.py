"""The environment of the Ray tests: `python -m tools.engines.ray_environment` installs it below build/.

Ray is not in requirements.lock: it is large, and few need it. What it shares with scanlake has the lock's versions.
"""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "build" / "engines" / "ray"
PYTHON: Final = FOLDER / "bin" / "python"
RAY: Final = "ray[client]==2.60.0"
INSTALL: Final = "python -m tools.engines.ray_environment"


def install() -> None:
    """Create the environment: Ray, and scanlake's dependencies in the versions of the lock."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pins = re.findall(r"^[A-Za-z0-9._-]+==[^ ;\n]+", lock, re.MULTILINE)
    venv.create(FOLDER, with_pip=True, clear=True)
    constraints = FOLDER / "constraints.txt"
    constraints.write_text("\n".join(pins) + "\n", encoding="utf-8")
    pip = [str(PYTHON), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", str(constraints)]
    subprocess.run([*pip, RAY, "hatchling", "editables"], check=True)
    subprocess.run([*pip, "--no-build-isolation", "-e", str(ROOT)], check=True)


if __name__ == "__main__":
    install()
    sys.stdout.write(f"{RAY} in {FOLDER.relative_to(ROOT)}\n")
