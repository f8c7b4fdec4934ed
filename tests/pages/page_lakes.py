"""Lakes for the page: build_populated_lake by the emulator, made of rows, empty. And what the page shows of them."""

from __future__ import annotations

from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any, Final

from pipeline.emulator import Emulator, Quirks
from pipeline.errors import AuthenticationError
from pipeline.lake.lake import Lake
from pipeline.lake.ledger.queries import Commit
from pipeline.output.progress import Progress
from pipeline.query.dashboard import load_dashboard, render_dashboard
from pipeline.query.reader import open_catalog
from pipeline.settings.settings import Settings
from pipeline.sync.verify import VerifyMode, verify
from schemas.file_versions import Reject
from tests.lake.lake_builder import commit
from tests.sync.sync_harness import opened, synced

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pipeline.query.dashboard import Dashboard, LedgerState

NOW: Final = datetime(2026, 11, 21, 7, tzinfo=UTC)
POPULATED_FILES: Final = 122
HOSTILE: Final = (
    "</title><script>document.title='broken'</script>\"'<img src=https://evil.example/x>\u202eRTL\x00\x1b[31m"
)
_AT: Final = NOW.replace(tzinfo=None)
SCRIPT_ADDRESS: Final = "javascript:alert(1)//https://x"
HOSTILE_ROWS: Final[Mapping[str, Sequence[Mapping[str, Any]]]] = {
    "uploads": [
        {"file_id": 7, "id": 1, "position": 0, "upload_type": HOSTILE, "comment": HOSTILE, "has_damage": True,
         "damage_type_desc": HOSTILE, "created_at": _AT - timedelta(days=200), "image_url": SCRIPT_ADDRESS,
         "image_thumb": 'https://a.example/"><script>alert(1)</script>'},
        {"file_id": 7, "id": 2, "position": 1, "image_url": "data:text/html,x", "device_nick": "https://"},
        {"file_id": 7, "id": 3, "position": 2, "image_url": "https://a.example/?a=1&b=<script>'\""},
    ],
    "fields": [{"file_id": 7, "field_id": 1, "position": 0, "name": HOSTILE * 50, "value": f"{HOSTILE} secret answer"},
               {"file_id": 7, "field_id": 2, "position": 1, "name": HOSTILE, "value": HOSTILE}],
    "form_submits": [{"file_id": 7, "id": "a", "form_id": 1, "position": 0, "title": HOSTILE}],
    "form_answers": [{"file_id": 7, "form_submit_id": "a", "form_id": 1, "position": 0, "submit_position": 0,
                      "label": HOSTILE, "value": f"{HOSTILE} secret answer"}],
    "locations": [{"file_id": 7, "id": 1, "position": 0, "location": HOSTILE}],
    "workflow_runs": [{"file_id": 7, "id": 1, "workflow_id": 3, "position": 0,
                       "created_at": _AT - timedelta(days=200), "workflow": {"id": 3, "name": HOSTILE}}],
}  # fmt: skip
"""Rows by table. Every text is hostile; answers are secret."""
_EMPTY: Final = frozenset({"meta", "link", "img", "br", "input"})


async def build_populated_lake(folder: Path) -> list[dict[str, Any]]:
    """Build a lake with a history: syncs, changes, a failed run, deletions, a verify. Return the service's truth."""
    quirks = Quirks(times="micros-z", extra_keys="many")
    async with Emulator(POPULATED_FILES - 2, seed=5, quirks=quirks) as emulator:
        await synced(emulator, folder)
        emulator.world.update(emulator.world.pick_random(12))
        emulator.world.create(9)
        await synced(emulator, folder)
        emulator.set_faults(revoked=True)
        with suppress(AuthenticationError):
            await synced(emulator, folder)
        emulator.set_faults(revoked=False)
        emulator.world.delete(emulator.world.pick_random(7))
        await verified(emulator, folder)
        await synced(emulator, folder)
        return list(emulator.truth())


async def verified(emulator: Emulator, folder: Path) -> None:
    """Verify a lake that is consistent with the service."""
    settings = Settings(base_url=emulator.base_url, lake=folder)
    with Lake(folder, doing="verify") as lake:
        assert (await verify(lake, settings, emulator.token, VerifyMode(), Progress())).consistent


def build_lake(
    folder: Path,
    files: Mapping[int, int] | None = None,
    rows: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
    reason: str = "",
) -> None:
    """A lake made of rows: files as {file_id: snap_count}, children by table, a reject with an unknown key if named."""
    at = int(NOW.timestamp() * 1_000_000)
    with Lake(folder, doing="the test") as lake:
        if files:
            commit(lake, files, rows)
        if reason:
            rejects, drift = [Reject(None, reason, b"{}")], {("files", reason, "unknown"): 1}
            lake.commit(Commit(lake.ledger.next_commit_seq(), "r0", at, rejects=rejects, drift=drift))
        lake.publish("r1", at=at, complete=True, watermark=at)


def republish(folder: Path) -> None:
    """Publish the lake of two files with a third one."""
    at = int(NOW.timestamp() * 1_000_000)
    with Lake(folder, doing="the test") as lake:
        commit(lake, {9: 0})
        lake.publish("r2", at=at, complete=True, watermark=at)


def load_data(folder: Path, now: datetime = NOW, ledger: LedgerState | None = None) -> Dashboard:
    """What the page would show of the lake."""
    with open_catalog(Settings(lake=folder)) as lake:
        return load_dashboard(lake, folder.name, now, ledger)


def rows_of(data: Dashboard, key: str) -> list[dict[str, str | None]]:
    """The rows of a panel."""
    return data.panels[key].rows.dicts


def page_of(folder: Path, now: datetime = NOW, ledger: LedgerState | None = None) -> str:
    """The lake's page."""
    return render_dashboard(load_data(folder, now, ledger))


def asked(folder: Path, sql: str) -> list[tuple[Any, ...]]:
    """The answer of the catalog itself."""
    with closing(opened(folder)) as db:
        return db.execute(sql).fetchall()


class ParsedPage(HTMLParser):
    """A page as a strict reader finds it: its elements, and its text without style and script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert not self._open, f"left open: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the element."""
        self.tags.append((tag, dict(attrs)))
        if tag not in _EMPTY:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Elements end in the order in which they nest."""
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note the text."""
        if self._open and self._open[-1] not in {"style", "script"} and data.strip():
            self.words.append(data)

    @property
    def text(self) -> str:
        """All text, in order."""
        return " ".join(self.words)

    def values(self, attribute: str) -> list[str]:
        """Every value of an attribute."""
        return [attributes[attribute] or "" for _, attributes in self.tags if attribute in attributes]
