"""How far a run is: live lines on a terminal, a log line every ten seconds elsewhere, nothing when asked."""

from __future__ import annotations

import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import structlog
from rich.console import Console
from rich.live import Live as Display
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import ConsoleOptions, RenderResult

LINE_EVERY_SECONDS: Final = 10.0
_REDRAWN_A_SECOND: Final = 4
_MEMORY: Final = 20.0  # seconds that a rate looks back
_BAR: Final = (8, 24)  # columns
_WHY: Final = {
    "server limit": "the service's limit",
    "latency": "the service's answering time",
    "ceiling": "our own ceiling",
}
"""The pacer's words for what sets the pace, for people."""
_SELDOM: Final = frozenset({"windows_known", "paused_for", "throttled", "at_once"})
"""Of these nought is not worth a word in the log."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a crawl stands. Counts are files; `rate` is files a second, `eta` seconds still to go, if known.

    `pace` is requests a second where they are limited, `at_once` requests in flight at most, and `why` says in a
    few words what sets them. `windows_known` is 0 where nobody counts them.
    """

    listed: int = 0
    expanded: int = 0
    skipped: int = 0
    gone: int = 0
    rejects: int = 0
    rate: float = 0.0
    why: str = ""
    eta: float | None = None
    windows: int = 0
    windows_known: int = 0
    retries: int = 0
    throttled: int = 0
    pace: float | None = None
    at_once: int = 0
    paused_for: float = 0.0

    @property
    def done(self) -> int:
        """Files dealt with."""
        return self.expanded + self.skipped + self.gone + self.rejects

    def lines(self) -> tuple[Sequence[str], ...]:
        """For people: lines of words, the most important first."""
        first = [f"{self.rate:,.0f} files/s"]
        if self.eta is not None:
            first.insert(0, f"{duration(self.eta)} to go")
        counts = [f"{self.listed:,} listed", f"{self.expanded:,} read"]
        named = (("rejects", self.rejects), ("skipped", self.skipped), ("gone", self.gone), ("retries", self.retries))
        counts += [f"{count:,} {name}" for name, count in named if count]
        if self.windows:
            known = f"/{self.windows_known:,}" if self.windows_known else ""
            counts.append(f"{self.windows:,}{known} windows")
        return first, counts, pace_words(self.pace, self.at_once, self.why, self.paused_for)


@dataclass(frozen=True, slots=True)
class Delivered:
    """Where a job of reports stands. Counts are PDFs, orders, and asks for whether one is there."""

    pdfs: int = 0
    of: int = 0
    orders: int = 0
    polls: int = 0
    waiting: int = 0
    failed: int = 0
    eta: float | None = None

    @property
    def done(self) -> int:
        """PDFs that need no further look."""
        return self.pdfs + self.failed

    def lines(self) -> tuple[Sequence[str], ...]:
        """For people: lines of words, the most important first."""
        first = [f"{self.pdfs:,} of {self.of:,} PDFs"]
        if self.eta is not None:
            first.append(f"{duration(self.eta)} to go")
        counts = [f"{self.orders:,} ordered", f"{self.waiting:,} in the making"]
        counts += [f"{self.failed:,} failed"] if self.failed else []
        return first, [*counts, f"asked {self.polls:,} times"]


class Stage(Protocol):
    """What a standing must be able to say."""

    @property
    def done(self) -> int:
        """How much of the total is dealt with."""

    @property
    def eta(self) -> float | None:
        """Seconds still to go, if known."""

    def lines(self) -> tuple[Sequence[str], ...]:
        """For people: lines of words, the most important first."""


class Progress(Protocol):
    """What a run reports to. `total` is a hint: how many there are to be dealt with, if it is known."""

    last: Stage | None

    def start(self, total: int | None = None) -> None:
        """The run begins, or its next stage does."""

    def update(self, standing: Stage, total: int | None = None) -> None:
        """The run stands here now. Cheap: may be called for every file."""

    def stop(self) -> None:
        """The stage has ended; may be called twice."""


def choose(*, silent: bool, as_lines: bool) -> Progress:
    """The live lines when a person watches stderr, else log lines; nothing when `silent`."""
    if silent:
        return Silent()
    console = Console(stderr=True)
    return Lines() if as_lines or not console.is_terminal or console.is_dumb_terminal else Live(console)


class Silent:
    """Says nothing."""

    def __init__(self) -> None:
        self.last: Stage | None = None

    def start(self, total: int | None = None) -> None:
        """The run begins."""

    def update(self, standing: Stage, total: int | None = None) -> None:  # noqa: ARG002
        """The run stands here now."""
        self.last = standing

    def stop(self) -> None:
        """The run has ended."""


class Lines:
    """Logs `run.progress` every ten seconds, and once at the end."""

    def __init__(self) -> None:
        self.last: Stage | None = None
        self._log = structlog.get_logger()
        self._next = 0.0
        self._pending: tuple[Stage, int | None] | None = None

    def start(self, total: int | None = None) -> None:
        """The run begins."""
        self._next = time.monotonic() + LINE_EVERY_SECONDS
        self._pending = (Standing(), total)

    def update(self, standing: Stage, total: int | None = None) -> None:
        """The run stands here now."""
        self.last = standing
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
            known = {
                name: round(value, 1) if isinstance(value, float) else value
                for name, value in asdict(standing).items()  # type: ignore[call-overload]
                if value is not None and value != "" and (value or name not in _SELDOM)
            }
            self._log.info("run.progress", **known, **({} if total is None else {"total": total}))
        self._pending = None
        self._next = time.monotonic() + LINE_EVERY_SECONDS


class Live:
    """A few lines at the foot of the terminal, drawn anew a few times a second; the log scrolls by above them."""

    def __init__(self, console: Console) -> None:
        self.last: Stage | None = None
        self._console = console
        self._display: Display | None = None
        self._spinner = Spinner("dots" if console.encoding.startswith("utf") else "line")
        self._total: int | None = None

    def start(self, total: int | None = None) -> None:
        """The run begins."""
        self.stop()
        self._total, self.last = total, None
        self._display = Display(
            self,
            console=self._console,
            transient=True,
            refresh_per_second=_REDRAWN_A_SECOND,
            redirect_stdout=False,  # stdout belongs to the command's result
        )
        self._display.start()

    def update(self, standing: Stage, total: int | None = None) -> None:
        """The run stands here now; it is drawn when its time comes."""
        self.last = standing
        if total is not None:
            self._total = total

    def stop(self) -> None:
        """The run has ended."""
        if self._display is not None:
            self._display.stop()
            self._display = None
        sys.stderr.flush()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The lines, each as wide as the terminal is at this moment: what does not fit is left out."""
        width = options.max_width - 1
        words = self.last.lines() if self.last is not None else (["starting"],)
        bar = min(max(width // 4, _BAR[0]), _BAR[1])
        done = self.last.done if self.last is not None else 0
        head = Table.grid(padding=(0, 1))
        share = [] if not self._total else [f"{min(done / self._total, 1):.0%}"]
        first = Text(fitting([*share, *words[0]], width - bar - 4), no_wrap=True, overflow="crop")
        head.add_row(self._spinner, ProgressBar(self._total, min(done, self._total or done), width=bar), first)
        yield head
        for line in words[1:]:
            if line:
                yield Text(f"  {fitting(line, width - 2)}", no_wrap=True, overflow="crop")


@dataclass(slots=True)
class Speed:
    """How fast something goes, by what was done in the last seconds."""

    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    def note(self, done: int) -> float:
        """So many are done now; how many a second that is."""
        now = time.monotonic()
        self._seen.append((now, done))
        while now - self._seen[0][0] > _MEMORY:
            self._seen.popleft()
        then, before = self._seen[0]
        return (done - before) / (now - then) if now > then else 0.0


def fitting(words: Sequence[str], width: int) -> str:
    """As many of the words, from the first on, as fit side by side."""
    line = ""
    for word in words:
        longer = f"{line}, {word}" if line else word
        if len(longer) > width:
            continue
        line = longer
    return line


def pace_words(pace: float | None, at_once: int, why: str, paused_for: float = 0.0) -> list[str]:
    """The pace and what sets it, for people: the most important first."""
    words = [_WHY.get(why, why)] if why else []
    if pace is not None:
        words.insert(0, f"{pace:,.1f} requests/s")
    elif at_once:
        words.insert(0, f"{at_once:,} at once")
    if paused_for >= 1:
        words.insert(0, f"pauses {duration(paused_for)}")
    return [*words, f"{at_once:,} at once"] if pace is not None and at_once else words


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
