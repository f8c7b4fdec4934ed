"""Every way scanlake can fail, sorted by what to do next.

    ScanlakeError              exit  what to do
    |-- SettingsError            2   mend the settings
    |-- TokenRefused             3   get a valid token
    |-- ServiceUnavailable       1   run again later; nothing is lost
    |-- LakeBusy                 5   wait for the other run
    |-- ContractBroken           6   look: the service has changed, or it is not the service
    |-- StorageError             7   free disk, mend permissions
    |-- LakeDamaged              9   `scanlake check` names and mends it
    `-- Interrupted            130   run again; what was whole is committed

A message is one line and says what happened, to what, after how many tries; `remedy` says what to do next.
Neither ever holds a token, a URL with a query, or a value out of somebody's file.
"""

from __future__ import annotations

import errno
import os
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Exit(IntEnum):
    """What the exit codes of the command mean."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    TOKEN = 3
    REJECTS = 4
    BUSY = 5
    CONTRACT = 6
    STORAGE = 7
    DAMAGE = 9
    BUG = 70
    INTERRUPTED = 130


_WORST_FIRST: Final = (
    Exit.INTERRUPTED,
    Exit.BUG,
    Exit.DAMAGE,
    Exit.STORAGE,
    Exit.USAGE,
    Exit.TOKEN,
    Exit.CONTRACT,
    Exit.FAILED,
    Exit.BUSY,
    Exit.REJECTS,
    Exit.DONE,
)


def worst(codes: Iterable[int]) -> Exit:
    """The code that needs somebody most: what mends itself counts least. An unknown one counts as failed."""
    known = {Exit(code) if code in Exit.__members__.values() else Exit.FAILED for code in codes}
    return min(known or {Exit.DONE}, key=_WORST_FIRST.index)


class ScanlakeError(Exception):
    """The root. `exit_code` is what the command ends with, `remedy` what the person can do."""

    exit_code: ClassVar[Exit] = Exit.FAILED
    default_remedy: ClassVar[str] = "Run the same command again; nothing is lost."

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = self.default_remedy if remedy is None else remedy


class SettingsError(ScanlakeError):
    """A setting is missing, unknown or unusable."""

    exit_code = Exit.USAGE
    default_remedy = "Mend the setting; `scanlake --help` and configs/scanlake.toml list them all."


class TokenRefused(ScanlakeError):
    """The service answered 401 or 403."""

    exit_code = Exit.TOKEN
    default_remedy = "Check SCANLAKE_TOKEN or token_file; nothing more was asked of the service."


class ServiceUnavailable(ScanlakeError):
    """The service cannot be reached, or failed every try."""

    default_remedy = "Run the same command again later; what was committed stays, the rest is fetched then."


class ContractBroken(ScanlakeError):
    """The service answered something the interface does not allow and a further try cannot change."""

    exit_code = Exit.CONTRACT
    default_remedy = "Check base_url; if it is right, the service has changed."


class LakeBusy(ScanlakeError):
    """Another run holds the lake."""

    exit_code = Exit.BUSY
    default_remedy = "Wait for it to end; the lock goes with its process."


class StorageError(ScanlakeError):
    """The disk is full, or a file may not be read or written."""

    exit_code = Exit.STORAGE
    default_remedy = "Free disk space or mend the permissions, then run again; the published lake is untouched."

    @classmethod
    def of(cls, subject: str | None, number: int | None) -> StorageError:
        """What the system says by a number of `errno`, about a file or in general, with what to do."""
        said = os.strerror(number) if number else "cannot be written"
        return cls(f"{subject}: {said}" if subject else said, remedy=_REMEDIES.get(number or 0))


class Elsewhere(Exception):
    """Where another process of ours was when an error came up: (file, line, function), outermost first."""

    def __init__(self, frames: Sequence[tuple[str, int, str]]) -> None:
        super().__init__("in another process")
        self.frames = frames


_MORE_FILES: Final = (
    "Let a process open more files (`ulimit -n 1024`), then run again; the published lake is untouched."
)
_REMEDIES: Final = {
    errno.EMFILE: _MORE_FILES,
    errno.ENFILE: _MORE_FILES,
    errno.ENAMETOOLONG: "Give the lake a shorter path (--lake).",
}


class LakeDamaged(ScanlakeError):
    """Something in the lake is not what was written."""

    exit_code = Exit.DAMAGE
    default_remedy = "Run `scanlake check`."


class Interrupted(ScanlakeError):
    """The person or the system asked the run to stop."""

    exit_code = Exit.INTERRUPTED
    default_remedy = "Run the same command again."
