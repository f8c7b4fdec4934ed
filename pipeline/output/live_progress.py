"""Progress as live lines on a terminal."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from pipeline.output.formatting import format_duration
from pipeline.output.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from pipeline.output.progress import ProgressState

_REFRESH_PER_SECOND: Final = 4
_BAR_WIDTH_RANGE: Final = (8, 24)  # columns


class LiveProgress(Progress):
    """Shows a bar and a few lines at the bottom of the terminal; log lines scroll by above them."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, force_terminal=True)  # also if a variable of rich denies it
        self._spinner = Spinner("dots" if self._console.encoding.startswith("utf") else "line")
        self._live: Live | None = None
        self._total: int | None = None
        self._started_at = 0.0

    def start(self, total: int | None = None) -> None:
        """Begin the run."""
        self.stop()
        self.last, self._total, self._started_at = None, total, time.monotonic()
        self._live = Live(
            get_renderable=self._render,
            console=self._console,
            transient=True,
            refresh_per_second=_REFRESH_PER_SECOND,
            redirect_stdout=False,  # stdout belongs to the command's result
        )
        self._live.start()

    def update(self, state: ProgressState, total: int | None = None) -> None:
        """Keep the present state for the next refresh."""
        self.last = state
        self._total = self._total if total is None else total

    def stop(self) -> None:
        """Remove the lines."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        sys.stderr.flush()

    def _render(self) -> RenderableType:
        """Return the lines, each cut at the terminal's present width."""
        total = self._total
        done, lines = (0, (["starting"],)) if self.last is None else (self.last.done, self.last.status_lines())
        percent = [f"{min(100 * done // total, 100)}%"] if total else []
        remaining = [f"{total - done:,} to go"] if total and done < total else []
        elapsed = f"{format_duration(int(time.monotonic() - self._started_at))} elapsed"
        bar_width = min(max(self._console.width // 4, _BAR_WIDTH_RANGE[0]), _BAR_WIDTH_RANGE[1])
        bar = ProgressBar(total, min(done, total or done), bar_width, pulse=not total, complete_style="green")
        grid = Table.grid(padding=(0, 1))
        grid.add_row(self._spinner, bar, _format_line([*percent, *lines[0], elapsed, *remaining]))
        return Group(grid, *(_format_line(line, indent="  ") for line in lines[1:] if line))


def _format_line(phrases: Sequence[str], indent: str = "") -> Text:
    return Text(indent + ", ".join(phrases), no_wrap=True, overflow="ellipsis")
