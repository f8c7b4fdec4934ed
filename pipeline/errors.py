"""All errors that scanlake raises, sorted by what the operator does next.

    ScanlakeError                   exit  what to do
    |-- SettingsError                 2   correct the settings
    |   `-- LakePausedError           2   run `scanlake rollback --undo`
    |-- AuthenticationError           3   get a valid token
    |-- ServiceUnavailableError       1   run again later; nothing is lost
    |-- TimeLimitReachedError         1   run again; max_duration_seconds has ended it
    |-- OutOfMemoryError              1   allow more memory
    |-- LakeLockedError               5   wait for the other run
    |-- ProtocolError                 6   check base_url; the service may have changed
    |-- StorageError                  7   free disk space, correct permissions
    |-- PublishError                  8   correct the target of `scanlake publish`; the local lake is complete
    |   `-- PublishConflictError      5   wait for the other publisher
    |-- LakeCorruptedError            9   `scanlake check` names the damage, `scanlake repair` repairs it
    |-- BugError                     70   report it
    `-- RunInterrupted              130   run again; all completed work is committed

A message is one full sentence with the subject, the problem and the number of attempts. `hint` is one imperative
sentence. Neither contains a token, a URL with a query, or a value from a file's data.
"""

from __future__ import annotations

import errno
import os
import traceback
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class ExitCode(IntEnum):
    """The exit codes of all commands."""

    OK = 0
    FAILED = 1
    USAGE = 2
    AUTH = 3
    REJECTS = 4
    LOCKED = 5
    PROTOCOL = 6
    STORAGE = 7
    PUBLISH = 8
    DAMAGE = 9
    BUG = 70
    INTERRUPTED = 130
    BROKEN_PIPE = 141


EXIT_CODES_BY_SEVERITY: Final = (
    *(ExitCode.OK, ExitCode.REJECTS, ExitCode.LOCKED, ExitCode.FAILED, ExitCode.PUBLISH, ExitCode.PROTOCOL),
    *(ExitCode.USAGE, ExitCode.AUTH, ExitCode.STORAGE, ExitCode.DAMAGE, ExitCode.BUG, ExitCode.BROKEN_PIPE),
    ExitCode.INTERRUPTED,
)
"""The most severe code last. docs/operations.md has the meaning of each.

First what the next run can end, then what the operator must correct, then what harms data. A refused token outweighs
wrong settings: it comes without an edit, and it can need another person.
"""


def most_severe(codes: Iterable[int]) -> ExitCode:
    """Return the exit code that needs the operator most; an unknown code counts as FAILED."""
    known = {ExitCode(code) if code in ExitCode.__members__.values() else ExitCode.FAILED for code in codes}
    return max(known or {ExitCode.OK}, key=EXIT_CODES_BY_SEVERITY.index)


class ScanlakeError(Exception):
    """The base of all errors: `exit_code` of the command, and a `hint` for the operator.

    `excerpt` has lines of what was typed, with a mark at the mistake.
    """

    exit_code: ExitCode = ExitCode.FAILED
    default_hint: ClassVar[str] = "Run the same command again; nothing is lost."

    def __init__(self, message: str, *, hint: str | None = None, excerpt: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.excerpt = excerpt
        self.hint = self.default_hint if hint is None else hint


class SettingsError(ScanlakeError):
    """A setting or an option is missing, unknown or unusable."""

    exit_code = ExitCode.USAGE
    default_hint = "Correct the setting; `scanlake settings --template` lists all settings."


class LakePausedError(SettingsError):
    """The lake was rolled back, and syncing is paused until `scanlake rollback --undo`."""

    default_hint = "Run `scanlake rollback --undo`."


class AuthenticationError(ScanlakeError):
    """The service answered 401 or 403."""

    exit_code = ExitCode.AUTH
    default_hint = "Check SCANLAKE_TOKEN or token_file; scanlake stopped calling the service."


class ServiceUnavailableError(ScanlakeError):
    """The service cannot be reached, or every attempt failed."""

    default_hint = "Run the same command again later; nothing is lost."


class TimeLimitReachedError(ScanlakeError):
    """The run has lasted `max_duration_seconds`. A sync ends well then."""

    default_hint = "Run the command again: it continues with the files that are not committed yet."


class PublishError(ScanlakeError):
    """An object store refuses a request, cannot be reached, or has other contents than expected."""

    exit_code = ExitCode.PUBLISH
    default_hint = "Correct the target, then run `scanlake publish` again; the local lake is complete."


class MissingBucketError(PublishError):
    """An object store has no such bucket."""


class ForeignObjectError(PublishError):
    """An object of the target is not one that this lake has put there."""


class PublishConflictError(PublishError):
    """Another publisher has written to the target since this one read it."""

    exit_code = ExitCode.LOCKED
    default_hint = "Wait until the other publisher ends, then run `scanlake publish` again."


class ProtocolError(ScanlakeError):
    """The service's response breaks the interface, and another attempt cannot change that."""

    exit_code = ExitCode.PROTOCOL
    default_hint = "Check base_url; if it is right, the service has changed."


class LakeLockedError(ScanlakeError):
    """Another run holds the lake's lock."""

    exit_code = ExitCode.LOCKED
    default_hint = "Wait until that run ends; its process releases the lock."


class StorageError(ScanlakeError):
    """The disk is full, or a file cannot be read or written."""

    exit_code = ExitCode.STORAGE
    default_hint = "Free disk space or correct the permissions, then run again; nothing stored is lost."

    @classmethod
    def from_errno(cls, subject: str | None, number: int | None) -> StorageError:
        """Return the error for an `errno` number about a file, or about storage in general."""
        problem = os.strerror(number) if number else "Cannot be written"
        return cls(f"{subject}: {problem}." if subject else f"{problem}.", hint=_ERRNO_HINTS.get(number or 0))


_OPEN_FILES_HINT: Final = "Allow more open files (`ulimit -n 1024`), then run again; nothing stored is lost."
_ERRNO_HINTS: Final = {
    errno.EMFILE: _OPEN_FILES_HINT,
    errno.ENFILE: _OPEN_FILES_HINT,
    errno.ENAMETOOLONG: "Use a shorter path for the lake (--lake).",
    errno.ESTALE: "Run the command again with the folder's name: another process has moved the folder.",
}


class OutOfMemoryError(ScanlakeError):
    """The system refused memory to the process."""

    default_hint = "Allow the process more memory (`ulimit -v unlimited`), then run again; nothing is lost."


class LakeCorruptedError(ScanlakeError):
    """A file of the lake differs from what was written."""

    exit_code = ExitCode.DAMAGE
    default_hint = "Run `scanlake check`."


class BugError(ScanlakeError):
    """An unforeseen exception. Its text may contain data, so the message has only its type and code line."""

    exit_code = ExitCode.BUG
    default_hint = "Run the command again with --log-file FILE; FILE gets the traceback to report."

    def __init__(self, error: BaseException) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        line = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
        super().__init__(f"A bug in scanlake: {type(error).__name__}{line}.")


class RunInterrupted(ScanlakeError):  # noqa: N818 - it ends a run on request
    """The operator or the system asked the run to stop."""

    exit_code = ExitCode.INTERRUPTED
    default_hint = "Run the same command again."


_NO_THREAD: Final = "can't start new thread"  # Python's text where the system has no memory for its stack
_STORAGE_ERRNOS: Final = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM),
        *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
        *(errno.EMFILE, errno.ENFILE, errno.ESTALE),
    }
)


def to_scanlake_error(error: BaseException) -> ScanlakeError:
    """Return the error to report for any exception: the one mapping to exit codes and messages."""
    error = root_cause(error)
    match error:
        case ScanlakeError():
            return error
        case KeyboardInterrupt():
            return RunInterrupted("Interrupted.")
        case MemoryError() | RuntimeError() if isinstance(error, MemoryError) or _NO_THREAD in str(error):
            return OutOfMemoryError("Memory: the system refused to give scanlake more.")
        case OSError() if error.errno in _STORAGE_ERRNOS:
            return StorageError.from_errno(error.filename if isinstance(error.filename, str) else None, error.errno)
        case _:
            return BugError(error)


@contextmanager
def refuse_unreadable(subject: str, *, hint: str) -> Iterator[None]:
    """Raise `SettingsError` about `subject` if the block cannot read a file, or the file is not UTF-8."""
    try:
        yield
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise SettingsError(f"{subject}: {reason}.", hint=hint) from None


def root_cause(error: BaseException) -> BaseException:
    """Return the first ScanlakeError of an exception group, else its first member; other errors unchanged."""
    while isinstance(error, BaseExceptionGroup):
        own_errors = error.subgroup(ScanlakeError)
        error = (own_errors or error).exceptions[0]
    # A clean-up that fails after an error of the system raises RuntimeError and hides that error. So does Python 3.11
    # for an interrupt in `__set_name__`, that is, during an import.
    hidden = error
    while isinstance(hidden, RuntimeError) and hidden.__context__ is not None:
        hidden = hidden.__context__
    return hidden if isinstance(hidden, OSError | KeyboardInterrupt) else error
