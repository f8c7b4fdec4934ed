"""A purged file is in no object of any place of the lake, whatever happened before."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipeline.atomic_files import lock_file, temp_name
from pipeline.errors import ExitCode
from tests.findings import printed_lines
from tests.lake.operations import called, told
from tests.publish.erasure import begun, find_words, purged
from tests.soaking import SOAKING, draw_seed

if TYPE_CHECKING:
    import pytest

    from tests.images.image_harness import PicturedLakes
    from tests.publish.lake_history import History
    from tests.publish.s3_server import S3Server

_LIVES: Final = int(os.environ.get("SOAK_EXAMPLES", "1"))
_ON_S3: Final = 20  # of so many lives one is on S3


def test_erased_is_said_after_a_look(history: History, tmp_path: Path) -> None:
    """A mirror and tables at one place are whole and clean after a purge; whatever else has the file there is named.

    Repeated when that was deleted, the purge says "erased"; of a place that is not there it does not.
    """
    lake, target = history.root, tmp_path / "target"
    url = target.as_uri()
    settings = {"SCANLAKE_PUBLISH_TO": url, "SCANLAKE_ICEBERG_LOCATION": url}
    told(lake, "publish", code=0, **settings)
    data, metadata = (target / "tables" / "files" / folder for folder in ("data", "metadata"))
    copies = [data / "copy.duckdb", data / "copy.parquet", data / "cut.parquet", metadata / "copy.avro"]
    ledgers = [target / "ledgers" / f"{digit * 64}.sqlite" for digit in "01"]  # not scanlake's: of another hash
    ledgers[0].parent.mkdir()
    shutil.copy(lake / "ledger.sqlite", ledgers[0])
    ledgers[1].write_bytes(ledgers[0].read_bytes()[:5_000])
    shutil.copy(lake / "catalog.duckdb", copies[0])
    shutil.copy(min(lake.glob("tables/files/0*.parquet")), copies[1])
    copies[2].write_bytes(b"PAR1")
    shutil.copy(min(metadata.glob("*-m0.avro")), copies[3])
    answer = purged(lake, 777_123, **settings)
    assert answer.code == ExitCode.PUBLISH
    others, former = ([path.as_uri() for path in paths] for paths in (copies, ledgers))
    assert f"{url}: NOT ERASED: {', '.join([*former, *others[:3]])} can have a purged file. " in answer.out
    assert f"Iceberg tables at {url}: NOT ERASED: {', '.join(others)} can have a purged file. " in answer.out
    for path in (*copies, *ledgers):
        path.unlink()
    answer = purged(lake, 777_123, **settings)
    assert answer.code == ExitCode.OK
    assert f"{url}: erased (" in answer.out
    assert f"Iceberg tables at {url}: erased (" in answer.out
    assert list(find_words(target, {"ref 777123"})) == []
    checked = called(lake, "check", "--published", "--read-data", "--json")
    assert printed_lines(checked.json, "target") == []
    target.rename(tmp_path / "unmounted")
    target.write_text("no folder")
    answer = purged(lake, 777_123, **settings)
    assert (answer.code, answer.out.count("NOT ERASED")) == (ExitCode.PUBLISH, 2)


def test_a_killed_publish_leaves_no_purged_file(history: History, tmp_path: Path) -> None:
    """A purge deletes the temporary files of killed publishes, wherever in a place they are.

    Files of others with similar names stay, also in folders that scanlake does not have, and that of a running writer.
    """
    lake, target, tables = history.root, tmp_path / "target", tmp_path / "tables"
    settings = {"SCANLAKE_PUBLISH_TO": target.as_uri(), "SCANLAKE_ICEBERG_LOCATION": tables.as_uri()}
    told(lake, "publish", code=0, **settings)

    def put(name: str, folder: Path = target) -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(lake / "catalog.duckdb", path))

    places = (target, *(target / name for name in ("tables/files/data", "documents", "ledgers", "images/ab", "probe")))
    iceberg = (tables / "tables" / "files" / name for name in ("data", "metadata"))
    killed = [put(temp_name("a file"), place) for place in (*places, *iceberg)]
    similar = f"{temp_name('a file')[:-12]}00000000.tmp"  # its end is no hash of its beginning
    others = [put(similar), put(temp_name("a file"), target / "notes")]
    running = put(temp_name("a file"))
    (target / temp_name("a link")).symlink_to(others[0])
    with lock_file(running):
        answer = purged(lake, 777_123, **settings)
    assert (answer.code, answer.out.count(": erased (")) == (ExitCode.OK, 2), answer
    assert [path for path in killed if path.exists()] == []
    assert [path for path in (*others, running) if not path.exists()] == []
    told(lake, "publish", code=0, **settings)
    assert not running.exists()
    for path in others:
        path.unlink()
    assert list(find_words(target, {"ref 777123"})) == []
    assert list(find_words(tables, {"ref 777123"})) == []


def test_a_purged_file_is_nowhere(
    pictured: PicturedLakes,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """After each purge of a random life every published copy is clean, whole, and reported as erased."""
    rng, done = random.Random(draw_seed(__name__)), Counter[str]()
    for number in range(_LIVES):
        url = f"file://{tmp_path}/{number}/places"
        if SOAKING and number % _ON_S3 == 0:
            server: S3Server = request.getfixturevalue("s3_server")
            for name, value in server.environment.items():
                monkeypatch.setenv(name, value)
            url = server.create_bucket()
        with begun(pictured, tmp_path / str(number), url, random.Random(rng.random())) as life:
            life.live()
        done.update(step.split()[0] for step in life.steps)
        shutil.rmtree(tmp_path / str(number))
    assert done["purge"] >= _LIVES
    if SOAKING:
        with capsys.disabled():
            print(f"{_LIVES} lives: {', '.join(f'{count:,} {what}' for what, count in sorted(done.items()))}")
