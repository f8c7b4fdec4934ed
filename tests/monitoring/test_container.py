"""The container file and what its image promises: what it names exists, and a sync needs nothing but /lake and /tmp."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from pipeline.emulator import Emulator
from pipeline.settings.settings import SETTINGS
from tests.conftest import ROOT
from tests.processes import why_not_as_nobody

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTAINERFILE: Final = ROOT / "configs" / "container" / "Containerfile"
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
UID: Final = 10001
_CONTAINED: Final = f"""
set -e
mount -t tmpfs tmpfs /mnt
mkdir /mnt/lake /mnt/tmp /mnt/python
mount --bind "$VOLUME" /mnt/lake
mount --bind "$PYTHON" /mnt/python
chown {UID}:{UID} /mnt/lake /mnt/tmp
mount -t tmpfs -o mode=755 tmpfs /root
case "$PYTHON" in /root/*) mkdir -p "$PYTHON"; mount --bind /mnt/python "$PYTHON" ;; esac
mount -o remount,ro /root
mount -o remount,bind,ro /
cd /
exec setpriv --reuid {UID} --regid {UID} --clear-groups --no-new-privs --bounding-set=-all "$@"
"""
"""Runs a command as the image does: a read-only root and work folder, no capability, one volume and one /tmp."""


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the container file, continued lines joined."""
    lines = [line for line in CONTAINERFILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def argument(name: str) -> str:
    """Return what the last instruction of a name says."""
    return [rest for word, rest in instructions() if word == name][-1]


def test_every_path_it_copies_exists() -> None:
    """Each source of a COPY is a file or folder of the repository, and what the build needs is among them."""
    copied = [shlex.split(rest)[:-1] for word, rest in instructions() if word == "COPY" and "--from=" not in rest]
    paths = [path for paths in copied for path in paths]
    assert all((ROOT / path).exists() for path in paths)
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {*packages, PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]} <= set(paths)


def test_it_installs_pinned_versions() -> None:
    """Its constraints name a version of every dependency, and its extras are extras of the project."""
    install = next(rest for word, rest in instructions() if word == "RUN" and "pip install" in rest)
    command = re.search(r"sed -n '[^']*' requirements.lock", install)
    assert command is not None
    done = subprocess.run(["/bin/sh", "-c", command[0]], cwd=ROOT, capture_output=True, text=True, check=True)
    pinned = {line.partition("==")[0].lower() for line in done.stdout.splitlines()}
    extras = re.search(r'"\.\[(.*?)\]"', install)
    assert extras is not None
    assert set(extras[1].split(",")) >= {"lakehouse", "xlsx"}  # of the commands in a container
    optional = PROJECT["project"]["optional-dependencies"]
    wanted = PROJECT["project"]["dependencies"] + [name for extra in extras[1].split(",") for name in optional[extra]]
    names = {re.split(r"[^A-Za-z0-9._-]", name)[0].lower() for name in wanted}
    assert names <= pinned


def test_it_runs_as_nobody_in_particular() -> None:
    """The image's user is a number that is not root's and that the pods use, its variables are settings or paths."""
    assert argument("USER") == f"{UID}:{UID}"
    assert argument("VOLUME") == "/lake"
    assert json.loads(argument("ENTRYPOINT"))[0] in PROJECT["project"]["scripts"]
    assert json.loads(argument("CMD")) == ["--help"]
    for path in (ROOT / "configs" / "kubernetes").glob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        assert f"runAsUser: {UID}" in text or "runAsUser" not in text
    variables = dict(word.split("=", 1) for word in shlex.split(argument("ENV")))
    ours = {name.removeprefix("SCANLAKE_").lower() for name in variables if name.startswith("SCANLAKE_")}
    assert ours <= set(SETTINGS)
    assert {Path(variables[name]).parent for name in ("SCANLAKE_LAKE", "XDG_STATE_HOME")} == {Path("/lake")}


def contained(volume: Path, environment: Mapping[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python as the image does, without HOME and with the volume at the place of the lake."""
    variables = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "VOLUME": str(volume),
        "PYTHON": sys.base_prefix,
        "TMPDIR": "/mnt/tmp",
        "SCANLAKE_LAKE": "/mnt/lake/lake",
    }
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _CONTAINED, "sh", sys.executable, *command]
    return subprocess.run(
        words, env={**variables, **environment}, capture_output=True, text=True, check=False, cwd=ROOT
    )


def why_not_contained() -> str:
    """Return why this machine cannot run a command as the image does; empty if it can."""
    if reason := why_not_as_nobody():
        return reason
    if not shutil.which("unshare") or not shutil.which("setpriv"):
        return "needs unshare and setpriv (util-linux)"
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "mount", "-o", "remount,bind,ro", "/"],
        capture_output=True,
        check=False,
    )
    return "" if done.returncode == 0 else "the kernel refuses to mount in a namespace"


@pytest.mark.skipif(why_not_contained() != "", reason=why_not_contained())
async def test_a_sync_needs_nothing_but_its_volume(tmp_path: Path) -> None:
    """Check, sync, rebuild, repair and query run without HOME, as non-root, on a read-only root."""
    volume = tmp_path / "volume"
    volume.mkdir()
    commands = [
        ["check"], ["sync", "--quiet"], ["rebuild", "--quiet"], ["repair"],
        ["query", "SELECT count(*) AS n FROM files", "--format", "csv"], ["init"],
    ]  # fmt: skip
    async with Emulator(40, seed=5) as emulator:
        environment = {"SCANLAKE_BASE_URL": emulator.base_url, "SCANLAKE_TOKEN": emulator.token}
        done = await asyncio.to_thread(contained, volume, environment, "-c", _RUN_EACH, json.dumps(commands))
    *shown, codes = done.stdout.splitlines()
    assert shown[-2:] == ['"n"', "40"]
    *codes, refused = json.loads(codes)
    assert codes == [0] * (len(commands) - 1), (done.stdout, done.stderr)
    assert refused  # the surroundings are read-only indeed: its settings file cannot be written
    assert {path.stat().st_uid for path in volume.rglob("*")} == {UID}
    assert "Traceback" not in done.stderr


_BASE: Final = os.environ.get("TEST_CONTAINER_BASE", "")
"""A local image with Python: no test downloads the one that the container file names."""
_PODMAN: Final = ("podman", *os.environ.get("TEST_PODMAN_OPTIONS", "").split())


def why_not_in_podman() -> str:
    """Return why this machine cannot build the image and run it; empty if it can."""
    if shutil.which("podman") is None:
        return "needs podman (a package of Debian)"
    base = _BASE or argument_default("BASE")
    found = subprocess.run(["podman", "image", "exists", base], capture_output=True, check=False)
    return "" if found.returncode == 0 else f"needs the base image {base}: pull it, or name one in TEST_CONTAINER_BASE"


def argument_default(name: str) -> str:
    """Return the default of an argument of the build."""
    return next(
        rest.partition("=")[2] for word, rest in instructions() if (word, rest.partition("=")[0]) == ("ARG", name)
    )


@pytest.mark.soak
@pytest.mark.skipif(why_not_in_podman() != "", reason=why_not_in_podman())
async def test_the_image_is_built_and_syncs() -> None:
    """The documented lines build the image and run a sync in it, non-root, read-only and without capabilities.

    A machine's own base image and options, such as --isolation chroot, come from the environment.
    """
    base = _BASE or argument_default("BASE")
    tag, volume = "localhost/scanlake-test:latest", f"scanlake-test-{os.getpid()}"
    build = [*shlex.split(os.environ.get("TEST_PODMAN_BUILD", "")), "--build-arg", f"BASE={base}"]

    async def podman(*arguments: str) -> str:
        done = await asyncio.to_thread(
            subprocess.run, [*_PODMAN, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    await podman("build", *build, "-f", str(CONTAINERFILE), "-t", tag, ".")
    run = ["run", "--rm", "--network", "host", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"]  # noqa: S108 - in the image
    run += ["--security-opt", "no-new-privileges", "-v", f"{volume}:/lake"]
    run += shlex.split(os.environ.get("TEST_PODMAN_RUN", ""))
    try:
        async with Emulator(40, seed=5) as emulator:
            service = ["-e", f"SCANLAKE_BASE_URL={emulator.base_url}", "-e", f"SCANLAKE_TOKEN={emulator.token}"]
            assert "40 files fetched (40 new)" in await podman(*run, *service, tag, "sync")
            assert "40 files" in await podman(*run, *service, tag, "status")
            counted = await podman(*run, tag, "query", "SELECT count(*) AS n FROM files", "--format", "csv")
            owned = await podman(*run, "--entrypoint", "stat", tag, "-c", "%u", "/lake/lake/catalog.duckdb")
        assert (counted.splitlines()[-1], owned.strip()) == ("40", str(UID))
    finally:
        await podman("volume", "rm", "--force", volume)


_RUN_EACH: Final = """
import json, sys
from pipeline.cli.app import main
codes = []
for arguments in json.loads(sys.argv[1]):
    try: main(arguments)
    except SystemExit as end: codes.append(end.code)
print(json.dumps(codes))
"""
