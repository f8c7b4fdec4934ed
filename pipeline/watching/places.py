"""Small files that others read while we write them: whole or not at all, and never a reason to stop a run."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

_FOR_ALL: Final = 0o644
_log = structlog.get_logger()


def replace_file(path: Path, text: str, *, what: str) -> bool:
    """Let `path` hold `text`, by one rename. False, and a warning in the log that names `what`, where it cannot be.

    The name aside begins with a dot and ends otherwise, so that no collector takes it for the file.
    """
    aside: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".aside", dir=path.parent)
        aside = Path(name)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        aside.chmod(_FOR_ALL)
        aside.replace(path)
    except OSError as error:
        if aside is not None:
            with suppress(OSError):
                aside.unlink(missing_ok=True)
        _log.warning(f"{what}.unwritten", path=str(path), reason=error.strerror or type(error).__name__)
        return False
    return True
