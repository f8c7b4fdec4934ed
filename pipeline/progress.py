"""How far a run is: a live line on a terminal, a log line every ten seconds elsewhere, nothing when asked."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass
from typing import Final, Protocol

import structlog
from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Display

LINE_EVERY_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a run stands. Counts are files; `rate` is files a second, `eta` seconds still to go, if known.

    `why` says in a few words what sets the pace, for example "the service asks to wait".
    """

    listed: int = 0
    expanded: int = 0
    skipped: int = 0
    gone: int = 0
    rejects: int = 0
    rate: float = 0.0
    why: str = ""
    eta: float | None = None


class Progress(Protocol):
    """What a run reports to. `total` is a hint: the number of files, if it is known."""

    def start(self, total: int | None = None) -> None:
        """The run begins."""

    def update(self, standing: Standing, total: int | None = None) -> None:
        """The run stands here now. Cheap: may be called for every file."""

    def stop(self) -> None:
        """The run has ended; may be called twice."""


def choose(*, silent: bool, as_lines: bool) -> Progress:
    """The live line when a person watches stderr, else log lines; nothing when `silent`."""
    if silent:
        return Silent()
    console = Console(stderr=True)
    return Lines() if as_lines or not console.is_terminal or console.is_dumb_terminal else Live(console)


class Silent:
    """Says nothing."""

    def start(self, total: int | None = None) -> None:
        """The run begins."""

    def update(self, standing: Standing, total: int | None = None) -> None:
        """The run stands here now."""

    def stop(self) -> None:
        """The run has ended."""


class Lines:
    """Logs `run.progress` every ten seconds, and once at the end."""

    def __init__(self) -> None:
        self._log = structlog.get_logger()
        self._next = 0.0
        self._pending: tuple[Standing, int | None] | None = None

    def start(self, total: int | None = None) -> None:
        """The run begins."""
        self._next = time.monotonic() + LINE_EVERY_SECONDS
        self._pending = (Standing(), total)

    def update(self, standing: Standing, total: int | None = None) -> None:
        """The run stands here now."""
        self._pending = (standing, total)
        if time.monotonic() >= self._next:
            self._write()

    def stop(self) -> None:
        """The run has ended."""
        if self._pending is not None:
            self._write()

    def _write(self) -> None:
        if self._pending is not None:
            standing, total = self._pending
            known = {name: value for name, value in asdict(standing).items() if value not in {None, ""}}
            known["rate"] = round(standing.rate, 1)
            self._log.info("run.progress", **known, **({} if total is None else {"total": total}))
        self._pending = None
        self._next = time.monotonic() + LINE_EVERY_SECONDS


class Live:
    """One line at the foot of the terminal, redrawn a few times a second; log lines scroll by above it."""

    def __init__(self, console: Console) -> None:
        self._display = Display(
            SpinnerColumn(),
            BarColumn(bar_width=20),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            refresh_per_second=4,
            redirect_stdout=False,  # stdout belongs to the command's result
        )
        self._task = self._display.add_task("starting", total=None)
        self._drawn = 0.0

    def start(self, total: int | None = None) -> None:
        """The run begins."""
        self._display.update(self._task, total=total)
        self._display.start()

    def update(self, standing: Standing, total: int | None = None) -> None:
        """The run stands here now."""
        now = time.monotonic()
        if now - self._drawn < 1 / 8:
            return
        self._drawn = now
        done = standing.expanded + standing.skipped + standing.gone + standing.rejects
        self._display.update(self._task, description=spell(standing), completed=done, total=total)

    def stop(self) -> None:
        """The run has ended."""
        self._display.stop()
        sys.stderr.flush()


def spell(standing: Standing) -> str:
    """The standing in one line, for people."""
    words = [f"{standing.listed:,} listed", f"{standing.expanded:,} read"]
    words += [f"{count:,} {name}" for name, count in (("skipped", standing.skipped), ("gone", standing.gone)) if count]
    if standing.rejects:
        words.append(f"{standing.rejects:,} rejects")
    words.append(f"{standing.rate:,.0f} files/s")
    if standing.eta is not None:
        words.append(f"{_duration(standing.eta)} to go")
    if standing.why:
        words.append(standing.why)
    return ", ".join(words)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
