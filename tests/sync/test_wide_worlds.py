"""Worlds with many names of custom fields and questions: memory, and the wide views with all their columns."""

from __future__ import annotations

import asyncio
import csv
import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import pytest

from pipeline.emulator import Emulator
from tests.processes import children_of, executed

if TYPE_CHECKING:
    from pipeline.emulator.generator import Content, FileRecord

FILES: Final = 40
NAMES: Final = 5_000
QUESTIONS: Final = 3_000
MAX_BYTES: Final = 500_000_000
MAX_COLUMNS: Final = 500


class WideEmulator(Emulator):
    """A service whose files have a part each of thousands of names of fields and questions."""

    async def __aenter__(self) -> Self:
        """Start it."""
        await super().__aenter__()
        generate = self.documents.get_content
        widened: set[int] = set()

        def widen(record: FileRecord) -> Content:
            content, serial = generate(record), record.serial
            if record.key not in widened:
                widened.add(record.key)
                content.fields += [_make_field(serial, number) for number in range(serial, NAMES, FILES // 2)]
                content.forms.append(_make_form(serial))
            return content

        self.documents.get_content = widen  # type: ignore[method-assign]
        return self


def _make_field(serial: int, number: int) -> dict[str, Any]:
    time = "2026-01-01T00:00:00Z"
    value = {"id": serial * NAMES + number, "field_id": number, "name": f"Field number {number}", "value": f"{serial}"}
    return {**value, "donotuse": 0, "snap_id": None, "created_at": time, "updated_at": time}


def _make_form(serial: int) -> dict[str, Any]:
    answers = [
        {"id": number, "label": f"Question number {number}?", "value": f"answer of {serial}"}
        for number in range(serial, QUESTIONS, FILES // 2)
    ]
    return {"id": f"wide-{serial}", "form_id": 7, "form": {"title": "Wide"}, "fields": answers}


async def _run_measured(emulator: Emulator, lake: Path, *arguments: str) -> tuple[str, int]:
    """Run the command to a good end. Return its output, and the most memory of all its processes at a time, bytes."""
    process = await executed(emulator, *arguments, SCANLAKE_LAKE=str(lake))
    output = asyncio.create_task(process.communicate())
    peak = 0
    while not output.done():
        peak = max(peak, sum(map(_resident_bytes, _tree(process.pid))))
        await asyncio.sleep(0.01)
    out, err = await output
    assert process.returncode == 0, (arguments, err.decode())
    return out.decode(), peak


def _tree(pid: int) -> list[int]:
    with suppress(FileNotFoundError, ProcessLookupError):
        return [pid, *(each for child in children_of(pid) for each in _tree(child))]
    return []


def _resident_bytes(pid: int) -> int:
    with suppress(FileNotFoundError, ProcessLookupError):
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]) * 4096
    return 0


@pytest.mark.usefixtures("published")
async def test_many_names_cost_memory_by_column(tmp_path: Path) -> None:
    """A sync of thousands of names stays below 500 MB; queries and exports have all columns of the wide views."""
    lake = tmp_path / "lake"
    async with WideEmulator(FILES, seed=1) as emulator:
        _, peak = await _run_measured(emulator, lake, "sync")
        assert 50_000_000 < peak < MAX_BYTES
        for view, fixed in (("fields_wide", 2), ("form_answers_wide", 4)):
            out, peak = await _run_measured(emulator, lake, "query", f"FROM {view}", "--json")
            rows = json.loads(out)["rows"]
            assert len(rows[0]) == fixed + MAX_COLUMNS
            assert len(rows) >= FILES
            assert sum(value is not None for row in rows for value in row.values()) > len(rows) * fixed + MAX_COLUMNS
            assert peak < MAX_BYTES, view
            _, peak = await _run_measured(
                emulator, lake, "export", "--format=csv", f"--tables={view}", str(tmp_path / view)
            )
            with (tmp_path / view / f"{view}.csv").open(encoding="utf-8", newline="") as file:
                lines = list(csv.reader(file))
            assert len(lines) == len(rows) + 1
            assert {len(line) for line in lines} == {fixed + MAX_COLUMNS}
            assert peak < MAX_BYTES, view
