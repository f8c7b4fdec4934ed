"""The mount of a lake, remembered outside of it: a lake that is not mounted must not become a new one.

The record is a file of this user below `~/.local/state/scanlake`. It names the mount point, which unlike a device
number is the same after a restart. A lake that was deleted from a mounted disk can be made again.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from pipeline.atomic_files import write_file
from pipeline.errors import StorageError


def remember_mount(lake: Path) -> None:
    """Record on which mount a lake is, unless that is the root's. A home that takes no file remembers nothing."""
    mount = next(folder for folder in (lake.resolve(), *lake.resolve().parents) if os.path.ismount(folder))
    with suppress(OSError, RuntimeError):
        record = _name_record(lake)
        if mount == mount.parent:
            record.unlink(missing_ok=True)
        elif not record.is_file() or record.read_bytes() != os.fsencode(mount):
            record.parent.mkdir(parents=True, exist_ok=True)
            write_file(record, os.fsencode(mount), durable=False)


def find_lost_mount(lake: Path) -> Path | None:
    """Return the mount point on which a lake was, if nothing is mounted there now."""
    with suppress(OSError, RuntimeError):
        mount = Path(os.fsdecode(_name_record(lake).read_bytes()))
        return None if os.path.ismount(mount) else mount
    return None


def require_mounted(lake: Path) -> None:
    """Raise `StorageError` if the mount of a lake is not there. Call it where no lake is found."""
    if (mount := find_lost_mount(lake)) is not None:
        hint = f"Mount it, or delete {_name_record(lake)} to start a new lake."
        raise StorageError(f"{lake}: its disk {mount} is not mounted.", hint=hint)


def _name_record(lake: Path) -> Path:
    """Return the path of a lake's record. Raises `RuntimeError` for a user without a home."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser())
    return state / "scanlake" / hashlib.sha256(os.fsencode(lake.resolve())).hexdigest()[:16]
