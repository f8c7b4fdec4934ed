"""The mount of a lake, remembered outside of it: a lake that is not mounted must not become a new one.

The record is a file of this user below `~/.local/state/scanlake`. It names the mount point, which unlike a device
number is the same after a restart. A lake that was deleted from a mounted disk can be made again. A second record is of
the alerts that were sent, because the lake can be full, read-only or not mounted.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from pipeline.errors import StorageError


def remember_mount(lake: Path) -> None:
    """Record on which mount a lake is, unless that is the root's."""
    mount = next(folder for folder in (lake.resolve(), *lake.resolve().parents) if os.path.ismount(folder))
    if mount != mount.parent:
        write_record(lake, "", os.fsencode(mount))
    else:
        with suppress(OSError, RuntimeError):
            name_record(lake).unlink(missing_ok=True)


def write_record(lake: Path, kind: str, content: bytes) -> None:
    """Write a record in place, because the disk can be full. A home that takes no file remembers nothing."""
    with suppress(OSError, RuntimeError):
        record = name_record(lake, kind)
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_bytes(content)


def find_lost_mount(lake: Path) -> Path | None:
    """Return the mount point on which a lake was, if nothing is mounted there now."""
    with suppress(OSError, RuntimeError):
        mount = Path(os.fsdecode(name_record(lake).read_bytes()))
        return None if os.path.ismount(mount) else mount
    return None


def require_mounted(lake: Path) -> None:
    """Raise `StorageError` if the mount of a lake is not there. Call it where no lake is found."""
    if (mount := find_lost_mount(lake)) is not None:
        hint = f"Mount it, or delete {name_record(lake)} to start a new lake."
        raise StorageError(f"{lake}: its disk {mount} is not mounted.", hint=hint)


def name_record(lake: Path, kind: str = "") -> Path:
    """Return the path of a record about a lake outside of it. Raises `RuntimeError` for a user without a home."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser())
    return state / "scanlake" / f"{hashlib.sha256(os.fsencode(lake.resolve())).hexdigest()[:16]}{kind}"
