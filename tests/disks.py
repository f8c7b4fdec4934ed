"""Disks of their own for tests: file systems in memory, which only root may mount."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


def mount(folder: Path, options: str) -> None:
    """Put a file system in memory on a folder. Where that is not permitted, the test is left out."""
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=False)
    if done.returncode != 0:
        pytest.skip("needs the right to mount")


def unmount(folder: Path) -> None:
    """Take it away again."""
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def remount_readonly(folder: Path) -> None:
    """Let nobody write to a disk."""
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Leave no byte of a disk."""
    for name, size in (("other", 1 << 20), ("rest", 1 << 12)):
        with suppress(OSError), (folder / name).open("wb", buffering=0) as file:
            while True:
                file.write(bytes(size))
