"""State and routes of the emulated service: world, documents, faults, counters and the request log."""

import asyncio
import random
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from pipeline.emulator.churn import run_churn
from pipeline.emulator.documents import DocumentRenderer
from pipeline.emulator.faults import FaultInjector, ScriptedFault
from pipeline.emulator.image_host import ImageHost
from pipeline.emulator.options import Faults, ImageOptions, Quirks, WorldPlan, replace_fields
from pipeline.emulator.reports import Reports
from pipeline.emulator.shares import Shares
from pipeline.emulator.timestamps import format_micros_z
from pipeline.emulator.world import World

DEFAULT_TOKEN = "ZW11L2xhdG9yK3NjYW5sYWtlLXRva2Vu/+8="  # noqa: S105 (not a secret; needs URL encoding on purpose)
IMAGE_ORIGIN = "https://images.example.invalid"
ENDPOINTS = ("list", "detail", "share", "report", "poll", "download", "other")

_TOKEN_RE = re.compile(r"(token=)[^&]*")


class LoggedRequest(NamedTuple):
    """Entry of the request log; header values are never output, because one of them may be the token."""

    number: int
    method: str
    raw_path: str
    headers: Mapping[str, str]
    endpoint: str
    status: int

    def to_json(self) -> dict[str, Any]:
        """Return the entry as JSON, without the token."""
        return {
            "number": self.number,
            "method": self.method,
            "path": _TOKEN_RE.sub(r"\1***", self.raw_path),
            "headers": sorted(str(name) for name in self.headers),
            "endpoint": self.endpoint,
            "status": self.status,
        }


class EmulatedService:
    """World, documents, faults and counters of one service, independent of its sockets.

    `world` can change while it is served. `script` and `set_faults` configure faults, `counts` and `log` record
    the requests, `truth` yields the files. `images` is the image host, None unless image options are given.
    """

    def __init__(
        self,
        files: int = 500,
        seed: int = 0,
        *,
        plan: WorldPlan | None = None,
        quirks: Quirks | None = None,
        faults: Faults | None = None,
        images: ImageOptions | None = None,
        image_faults: Faults | None = None,
        token: str = DEFAULT_TOKEN,
        churn: float = 0.0,
        cache_bytes: int = 256_000_000,
        prerender: bool = False,
    ) -> None:
        self.plan = plan or WorldPlan(files=files, seed=seed)
        self.quirks = quirks or Quirks()
        self.token = token
        self.churn_rate = churn
        self.world = World(self.plan, self.quirks)
        self.documents = DocumentRenderer(self.world, self.quirks, IMAGE_ORIGIN, cache_bytes)
        self.reports = Reports(self.documents, random.Random(f"reports:{self.plan.seed}"))
        self.shares = Shares(self.world)
        self.images = None
        if images is not None:
            self.images = ImageHost(self.documents, images, image_faults or Faults(), token)
        self._prerenders = prerender
        self.faults = FaultInjector(faults or Faults(), self.plan.seed, token)
        self.in_flight = 0
        self.on_request: Callable[[str], None] | None = None  # called with the endpoint before each request is handled
        self._churn_task: asyncio.Task[None] | None = None
        self.reset()

    @property
    def emails(self) -> list[tuple[str, str]]:
        """E-mails of share links: (recipient, reference)."""
        return self.shares.emails

    def truth(self) -> Iterator[dict[str, Any]]:
        """Yield each file: {key, id, scan_code, updated (microseconds), item (all includes), detail}."""
        self.world.apply_late_commits()
        for key in self.world.keys():  # noqa: SIM118 (a copy: the world may change between two files)
            record = self.world.records.get(key)
            if record is not None:
                yield {
                    "key": key,
                    "id": record.id,
                    "scan_code": record.scan_code,
                    "updated": record.updated,
                    "item": self.documents.build_item(record),
                    "detail": self.documents.build_detail(record),
                }

    def reset(self) -> None:
        """Clear all counters and the log; the world does not change."""
        self.counts: Counter[str] = Counter(dict.fromkeys(ENDPOINTS, 0))
        self.statuses: Counter[int] = Counter()
        self.injected_faults: Counter[str] = Counter()
        self.log: deque[LoggedRequest] = deque(maxlen=20_000)
        self.leaks: list[str] = []
        self.strays: list[str] = []
        self.max_in_flight = self.in_flight
        self.requests = 0
        if self.images is not None:
            self.images.reset()

    def script(self, kind: str, times: int = 1, path: str = "/", skip: int = 0) -> None:
        """Break the next `times` requests with this path prefix; see `faults.KINDS`."""
        self.faults.add(ScriptedFault(kind, times, path, skip))

    def set_faults(self, **settings: Any) -> None:
        """Change some fields of the current `Faults`."""
        self.faults.set(replace_fields(self.faults.faults, settings))

    def set_quirks(self, **settings: Any) -> None:
        """Change some quirks; those marked "set at start" have no effect on existing files."""
        self.quirks = replace_fields(self.quirks, settings)
        self.world.quirks = self.quirks
        self.documents.set_quirks(self.quirks)

    def set_churn(self, rate: float) -> None:
        """Set the number of random changes per second; 0 stops them."""
        if self._churn_task is not None:
            self._churn_task.cancel()
            self._churn_task = None
        self.churn_rate = rate
        if rate:
            loop = asyncio.get_running_loop()
            self._churn_task = loop.create_task(run_churn(self.world, rate, self.plan.seed))

    def read_state(self) -> dict[str, Any]:
        """Return the counters and sizes as JSON."""
        world = self.world
        return {
            **({} if self.images is None else {"images": self.images.read_state()}),
            "files": len(world.records),
            "deleted": len(world.deleted),
            "changes": world.changes,
            "now": format_micros_z(world.clock.now()),
            "seed": self.plan.seed,
            "requests": self.requests,
            "counts": dict(self.counts),
            "statuses": {str(status): count for status, count in self.statuses.items()},
            "injected_faults": dict(self.injected_faults),
            "given_429": self.statuses[429],
            "in_flight": self.in_flight,
            "max_in_flight": self.max_in_flight,
            "emails": [list(mail) for mail in self.emails],
            "shares": len(self.shares.by_secret),
            "reports": len(self.reports.by_secret),
            "leaks": self.leaks,
            "strays": self.strays,
            "churn": self.churn_rate,
            "monotonic": time.monotonic(),
        }
