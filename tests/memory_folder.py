"""A folder in memory for the temporary files of the tests.

Every publish waits dozens of times until a disk has written. No test asks whether it has: those about lost power and
full disks replace the calls, or set limits.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - pytest makes a folder in it that nobody else may enter
_NEEDED_BYTES: Final = 2 * 1024**3  # several times what the suite has there at once
_NEEDED_MEMORY: Final = 3 * _NEEDED_BYTES
_AVAILABLE_RE: Final = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)


def find_memory_folder(folder: Path = _SHARED_MEMORY, *, needed: int = _NEEDED_BYTES) -> Path | None:
    """Return a folder in memory with enough space for the suite; None if this machine has none."""
    try:
        status = os.statvfs(folder)
        found = _AVAILABLE_RE.search(Path("/proc/meminfo").read_text(encoding="ascii"))
    except OSError:
        return None
    if found is None or int(found[1]) * 1024 < _NEEDED_MEMORY or status.f_bavail * status.f_frsize < needed:
        return None
    # Tests start scripts. A link would lead out of the folders that the guard permits.
    is_usable = os.access(folder, os.W_OK) and folder.resolve() == folder and not status.f_flag & os.ST_NOEXEC
    return folder if is_usable else None
