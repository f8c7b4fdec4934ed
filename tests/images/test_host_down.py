"""An image host that is down, in virtual time: how soon a run ends, and that nothing is lost."""

from __future__ import annotations

import asyncio
import io
from typing import TYPE_CHECKING, Any, Final

import pytest
from PIL import Image

from pipeline.errors import ServiceUnavailableError
from pipeline.images.download import ImageDownloader
from pipeline.images.image_writer import ImageSummary
from pipeline.images.work_list import WorkItem
from pipeline.lake.ledger.images import ImageRecord
from pipeline.lake.storage.images import CompleteDownload, ImageKey, ImageKind, incoming_folder
from pipeline.lake.storage.layout import LakeLayout
from pipeline.output.progress import Progress
from pipeline.settings.settings import Settings
from tests.client.scripted_server import Asked, Close, Reset, Wait, answer, scripted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.virtual_time

_IMAGES: Final = 100
_HOLE: Final = "http://127.0.0.1:9"


class Run:
    """A run of the downloader: its time, its problem, and what the writer received."""

    def __init__(self, folder: Path, address: str) -> None:
        self.summary = ImageSummary()
        self.outcomes: list[CompleteDownload | ImageRecord] = []
        self.seconds = 0.0
        self.problem = ""
        self.incoming = incoming_folder(LakeLayout(folder))
        self.incoming.mkdir(parents=True, exist_ok=True)
        self._settings = Settings(base_url="http://127.0.0.1:8", lake=folder)
        keys = [ImageKey(number, number, ImageKind.IMAGE) for number in range(_IMAGES)]
        self._pages = [[WorkItem(key, f"{address}/{key.file_id}") for key in keys]]

    def next_page(self) -> list[WorkItem]:
        """Return the work, as a work list does."""
        return self._pages.pop() if self._pages else []

    def write(self, outcomes: list[CompleteDownload | ImageRecord]) -> None:
        """Keep outcomes, as a writer does."""
        self.outcomes += outcomes

    async def to_end(self) -> Run:
        """Fetch everything."""
        loop: Any = asyncio.get_running_loop()
        started = loop.time()
        downloader = ImageDownloader(self._settings, "token", self, self.summary)  # type: ignore[arg-type]
        try:
            await downloader.fetch_images(self, Progress(), identity="id", total=_IMAGES)  # type: ignore[arg-type]
        except ServiceUnavailableError as error:
            self.problem = error.message
        self.seconds = loop.time() - started
        return self

    @property
    def stored(self) -> int:
        """The complete downloads."""
        return sum(isinstance(outcome, CompleteDownload) for outcome in self.outcomes)


def picture() -> bytes:
    """Return an answer with a picture."""
    body = io.BytesIO()
    Image.new("RGB", (8, 8)).save(body, "PNG")
    return answer(body.getvalue(), headers=[("Content-Type", "image/png")])


@pytest.mark.parametrize(
    ("steps", "seconds"),
    [
        ([Close()], 20),
        ([Reset()], 20),
        ([answer({}, status=500)], 20),
        ([answer({}, status=502)], 20),
        ([answer({}, status=503)], 35),
        ([answer({}, status=503, headers=[("Retry-After", "20")])], 35),
        ([answer({}, status=429, headers=[("Retry-After", "600")])], 35),
        ([Wait(10_000)], 35),
    ],
    ids=["closed", "reset", "500", "502", "503", "503 with a pause", "429 with a pause", "silent"],
)
async def test_a_run_ends_soon_and_the_next_one_stores_everything(
    steps: list[Any], seconds: float, tmp_path: Path
) -> None:
    """Without an answer from the host a run ends with one problem and no record; the next run has every picture."""
    is_up = False

    def script(_: Asked) -> Any:
        return picture() if is_up else steps

    async with scripted(script) as server:
        run = await Run(tmp_path, server.base).to_end()
        assert run.problem.startswith("100 images left, because the image host is down: GET image")
        assert run.problem.endswith((".", ")"))
        assert (run.outcomes, run.summary.left) == ([], _IMAGES)
        assert run.seconds <= seconds
        is_up = True
        again = await Run(tmp_path, server.base).to_end()
        assert (again.problem, again.stored, again.summary.left) == ("", _IMAGES, 0)


async def test_a_host_that_refuses_connections(tmp_path: Path) -> None:
    """Nobody listens: the problem names the host."""
    run = await Run(tmp_path, _HOLE).to_end()
    assert "GET image at 127.0.0.1:9: no connection" in run.problem
    assert (run.outcomes, run.summary.left, run.seconds <= 20) == ([], _IMAGES, True)


def down_for(seconds: float) -> Callable[[Asked], Any]:
    """Return the script of a host that is down at first."""
    loop = asyncio.get_running_loop()
    return lambda _: picture() if loop.time() >= seconds else [Close()]


async def test_a_short_outage_costs_no_picture(tmp_path: Path) -> None:
    """Calls are repeated for some seconds: a host that restarts ends no run."""
    async with scripted(down_for(5)) as server:
        run = await Run(tmp_path, server.base).to_end()
    assert (run.problem, run.stored) == ("", _IMAGES)


@pytest.mark.parametrize(("pause", "is_outage"), [(60, False), (180, True)])
async def test_a_pause_that_the_host_asks_for(pause: int, is_outage: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """A run that was served goes on after a pause, but holds the lake for two minutes without a picture at most."""
    loop, served = asyncio.get_running_loop(), 0

    def script(_: Asked) -> Any:
        nonlocal served
        served += 1
        is_limited = served > 10 and loop.time() < pause
        return answer({}, status=429, headers=[("Retry-After", str(pause))]) if is_limited else picture()

    async with scripted(script) as server:
        run = await Run(tmp_path, server.base).to_end()
    problem = f"{_IMAGES - run.stored} images left, because the image host is down"
    assert (run.problem.startswith(problem), run.stored > 0) == (is_outage, True)
    assert (run.stored == _IMAGES, run.seconds <= 125) == (not is_outage, True)
    assert not [outcome for outcome in run.outcomes if isinstance(outcome, ImageRecord)]


async def test_a_slow_line_is_no_outage(tmp_path: Path) -> None:
    """Downloads that are cut off late are repeated, although the first complete one takes long."""
    begun, whole = set[str](), picture()

    def script(asked: Asked) -> Any:
        if asked.path in begun:
            return whole
        begun.add(asked.path)
        return [whole[:-1], Wait(15), Close()]

    async with scripted(script) as server:
        run = await Run(tmp_path, server.base).to_end()
    assert (run.problem, run.stored, run.summary.retries) == ("", _IMAGES, _IMAGES)


async def test_pictures_that_the_host_cannot_serve_have_failed(tmp_path: Path) -> None:
    """Some that always get an error are failed, and hide none of the others."""

    def script(asked: Asked) -> Any:
        return answer({}, status=502) if asked.path.endswith("5") else picture()

    async with scripted(script) as server:
        run = await Run(tmp_path, server.base).to_end()
    failed = [outcome.file_id for outcome in run.outcomes if isinstance(outcome, ImageRecord)]
    assert (run.problem, run.stored, sorted(failed)) == ("", 90, list(range(5, _IMAGES, 10)))
