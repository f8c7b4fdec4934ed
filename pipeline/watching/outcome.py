"""How a run ended, in the words that the watch, the metrics and the alarms share."""

from __future__ import annotations

import errno
import signal
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from pipeline.errors import Exit, ScanlakeError
from pipeline.logs import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PAUSED_WORDS: Final = "syncing is paused"
"""What a refused run says while the lake is rolled back: a person wanted it so, which is no failure."""

_OF_SYSTEM: Final = 128  # a shell's exit code for a process that a signal ended is this much more


class Kind(Enum):
    """What the end of a run means for the next one."""

    DONE = "done"
    BUSY = "busy"  # another run holds the lake: wait for it
    PAUSED = "paused"  # rolled back, until `scanlake resume`
    STOPPED = "stopped"  # on request
    FAILED = "failed"  # heals by itself as a rule: the service, the disk, a bug met by chance
    STUCK = "stuck"  # a person has to mend it: settings, token, damage


_KINDS: Final = {
    Exit.DONE: Kind.DONE,
    Exit.REJECTS: Kind.DONE,
    Exit.BUSY: Kind.BUSY,
    Exit.INTERRUPTED: Kind.STOPPED,
    Exit.USAGE: Kind.STUCK,
    Exit.TOKEN: Kind.STUCK,
    Exit.DAMAGE: Kind.STUCK,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run: its exit code, one line why, when it began (seconds since 1970) and what it said with --json."""

    verb: str
    lake: Path
    code: int
    reason: str = ""
    began: float = 0.0
    seconds: float = 0.0
    told: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ended(self) -> float:
        """When it ended, seconds since 1970."""
        return self.began + self.seconds

    @property
    def kind(self) -> Kind:
        """What that means for the next run."""
        if self.code == Exit.USAGE and PAUSED_WORDS in self.reason:
            return Kind.PAUSED
        return _KINDS.get(Exit(self.code), Kind.FAILED) if self.code in set(Exit) else Kind.FAILED

    @property
    def run_id(self) -> str:
        """The run's id; empty where it did not come that far."""
        return str(self.told.get("run_id") or "")


def ended_as(verb: str, returned: int) -> tuple[int, str]:
    """The exit code of a process, and why it ended so where a signal ended it."""
    if returned >= 0:
        return returned, ""
    try:
        name = signal.Signals(-returned).name
    except ValueError:
        name = f"signal {-returned}"
    hint = " The system ends processes so when memory is short." if -returned == signal.SIGKILL else ""
    return _OF_SYSTEM - returned, f"{verb} was ended by {name}.{hint}"


def failure_of(error: BaseException) -> tuple[int, str]:
    """The exit code that the command will end with because of `error`, and the one line it will say."""
    while isinstance(error, BaseExceptionGroup):
        ours = error.subgroup(ScanlakeError)
        error = (ours or error).exceptions[0]
    match error:
        case ScanlakeError():
            return error.exit_code, one_line(f"{error.message} {error.remedy}")
        case KeyboardInterrupt():
            return Exit.INTERRUPTED, "Interrupted."
        case OSError() if error.errno in _OF_STORAGE:
            return Exit.STORAGE, one_line(error.strerror or type(error).__name__)
        case _:
            return Exit.BUG, f"A bug: {type(error).__name__}."


_OF_STORAGE: Final = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM),
        *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
        *(errno.EMFILE, errno.ENFILE, errno.ESTALE),
    }
)
