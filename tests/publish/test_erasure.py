"""A purged file is in no object of any place of the lake, whatever happened before."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest.mock import patch
from urllib.request import Request, urlopen

from pipeline.errors import ExitCode, LakeCorruptedError, PublishError
from pipeline.lake.lake import Lake
from pipeline.lake.ledger.targets import note_target
from pipeline.lake.storage.atomic_files import temp_name
from pipeline.publish import iceberg_publish, mirror
from pipeline.publish.iceberg import find_tables_location
from pipeline.publish.image_objects import ImagesOnStore
from pipeline.publish.stores import open_store
from pipeline.publish.target_checks import find_earlier_targets, name_tables
from schemas.timestamps import SECOND
from tests.findings import printed_lines
from tests.images.image_harness import rows_of
from tests.lake.operations import called, told
from tests.lake_copies import copy_lake
from tests.publish.erasure import begun, find_words, purged
from tests.soaking import SOAKING, draw_seed

if TYPE_CHECKING:
    import pytest

    from tests.images.image_harness import PicturedLakes
    from tests.publish.lake_history import History
    from tests.publish.s3_server import S3Server

_LIVES: Final = int(os.environ.get("SOAK_EXAMPLES", "1"))
_MONTH: Final = 30 * 24 * 3600
_ON_S3: Final = 1 if "SCANLAKE_TEST_S3_PORT" in os.environ else 20  # of so many lives one is on S3


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
    assert f"{url}: NOT ERASED: {', '.join([*former, *others[:3]])} may still have a purged file. " in answer.out
    assert f"Iceberg tables at {url}: NOT ERASED: {', '.join(others)} may still have a purged file. " in answer.out
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

    Files of others with similar names stay, also in folders that scanlake does not have.
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
    (target / temp_name("a link")).symlink_to(others[0])
    answer = purged(lake, 777_123, **settings)
    assert (answer.code, answer.out.count(": erased (")) == (ExitCode.OK, 2), answer
    assert [path for path in killed if path.exists()] == []
    assert [path for path in others if not path.exists()] == []
    for path in others:
        path.unlink()
    assert list(find_words(target, {"ref 777123"})) == []
    assert list(find_words(tables, {"ref 777123"})) == []


def test_another_publisher_keeps_its_temporary_files(history: History, tmp_path: Path) -> None:
    """Until a record names the lake, temporary files can be of another lake that publishes there; then they go."""
    lake, target = history.root, tmp_path / "target"
    other = target / "probe" / temp_name("a file")
    other.parent.mkdir(parents=True)
    other.write_bytes(b"")
    with patch.object(mirror, "encode_record", side_effect=PublishError("Stopped.")):
        told(lake, "publish", "--to", target.as_uri(), code=ExitCode.PUBLISH)
        assert other.exists()
        told(lake, "publish", "--to", target.as_uri(), code=ExitCode.PUBLISH)
        assert other.exists()
    told(lake, "publish", "--to", target.as_uri())
    assert not other.exists()
    other.write_bytes(b"")
    history.sync({1: 3})
    with patch.object(mirror, "encode_record", side_effect=PublishError("Stopped.")):
        told(lake, "publish", "--to", target.as_uri(), code=ExitCode.PUBLISH)
    assert not other.exists(), "they go first: a disk can be full of them"


def test_an_earlier_target_is_named(history: History, tmp_path: Path) -> None:
    """A purge names each place of an earlier publish that has the lake as it was before, until that has changed.

    So it does after a first publish that was stopped. Nothing is said of a place that was published again, deleted,
    or given to another lake, nor of one to which a publish could never write. A backup alone is the operator's.
    """
    lake, (a, b, c, t) = history.root, ((tmp_path / name).as_uri() for name in "abct")
    tables = ("--iceberg", "--set", f"iceberg_location={t}")
    (tmp_path / "wrong").write_text("no folder")
    told(lake, "publish", "--to", (wrong := (tmp_path / "wrong").as_uri()), code=ExitCode.PUBLISH)
    told(lake, "publish", "--iceberg", "--set", f"iceberg_location={wrong}", code=ExitCode.PUBLISH)
    told(lake, "backup", (tmp_path / "backup").as_uri())
    told(lake, "publish", "--to", a, *tables)
    stop = PublishError("Stopped.")
    with (
        patch.object(iceberg_publish, "stage_table", side_effect=stop),
        patch.object(mirror, "encode_record", side_effect=stop),
    ):
        told(lake, "publish", "--iceberg", "--set", f"iceberg_location={c}", code=ExitCode.PUBLISH)
        told(lake, "publish", "--to", c, code=ExitCode.PUBLISH)
    told(lake, "publish", "--to", b, "--iceberg")
    answer = purged(lake, 777_123)
    assert (answer.code, answer.out.count("erased (")) == (ExitCode.PUBLISH, 2)
    assert _not_erased(answer.out) == [a, f"Iceberg tables at {t}", f"Iceberg tables at {c}", c]
    assert "It is an earlier target: publish there again, or delete it. Correct this, then run" in answer.out
    (tmp_path / "c" / "iceberg-owner.json").unlink()
    (tmp_path / "c").rename(tmp_path / "unmounted")
    told(lake, "publish", "--to", a)
    assert _not_erased(purged(lake, 777_123).out) == [f"Iceberg tables at {t}"]
    owner = tmp_path / "t" / "iceberg-owner.json"
    record = owner.read_text()
    owner.write_text('{"lake_id": "another"}')
    assert purged(lake, 777_123).code == ExitCode.OK
    owner.write_text("{")
    assert f"Iceberg tables at {t}: NOT ERASED: {t}/{owner.name} is damaged" in purged(lake, 777_123).out
    owner.write_text(record)
    with Lake(lake, doing="test") as held, held.ledger.transaction() as db:
        db.execute("UPDATE purge SET purged_at = purged_at - ?", (_MONTH * SECOND,))  # for a week every publish sweeps
    for path in tmp_path.glob("t/**/*.*"):
        os.utime(path, (path.stat().st_mtime - _MONTH - 3600,) * 2)
    told(lake, "publish", *tables)
    assert purged(lake, 777_123).code == ExitCode.OK
    assert list(find_words(tmp_path / "t", {"ref 777123"})) == []
    (tmp_path / "unmounted").rename(tmp_path / "c")
    assert _not_erased(purged(lake, 777_123).out) == [c]
    told(lake, "backup", c)
    assert purged(lake, 777_123).code == ExitCode.OK
    assert _not_erased(purged(lake, 1).out) == [c, b, f"Iceberg tables at {b}"]


def test_what_a_killed_first_publish_left_is_named(pictured: PicturedLakes, tmp_path: Path) -> None:
    """A purge names a place whose first publish was killed, if it left an image or a part of the catalog there.

    Nothing is said of one where it left nothing, or where the tables of the lake alone are.
    """
    lake, (a, b, c, d, e) = copy_lake(pictured.whole, tmp_path / "lake"), ((tmp_path / n).as_uri() for n in "abcde")
    stop = PublishError("Stopped.")
    with patch.object(mirror, "read_shown_snapshot", side_effect=stop):
        told(lake, "publish", "--to", a, "--set", "publish_images=true", code=ExitCode.PUBLISH)
        for place in (b, c, d):
            told(lake, "publish", "--to", place, code=ExitCode.PUBLISH)
    (tmp_path / "b").mkdir(exist_ok=True)
    shutil.copy(lake / "catalog.duckdb", tmp_path / "b" / temp_name("catalog.duckdb"))
    told(lake, "publish", "--to", e, "--iceberg", "--set", f"iceberg_location={d}")
    first = min(key[0] for key in rows_of(lake))
    answer = purged(lake, first)
    assert (answer.code, _not_erased(answer.out)) == (ExitCode.PUBLISH, [a, b]), answer
    shutil.rmtree(tmp_path / "a")
    told(lake, "publish", "--to", b)
    told(lake, "publish", "--to", e)
    assert purged(lake, first).code == ExitCode.OK


def test_an_earlier_bucket_is_named(history: History, s3_server: S3Server, s3_url: str, tmp_path: Path) -> None:
    """A purge names a bucket that cannot be reached once, and says nothing of one that is not there any more."""
    lake, target, away = history.root, (tmp_path / "target").as_uri(), {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    never = ("--iceberg", "--set", f"iceberg_location={s3_url}/never")
    told(lake, "publish", *never, code=ExitCode.PUBLISH, **away)
    told(lake, "publish", "--to", s3_url)
    told(lake, "publish", "--to", target, "--iceberg")
    answer = purged(lake, 777_123, **away)
    assert _not_erased(answer.out) == [s3_url]
    assert "the host cannot be reached. Correct this, then" in answer.out
    answer = purged(lake, 1, SCANLAKE_PUBLISH_TO=s3_url, **away)
    assert _not_erased(answer.out) == [s3_url, f"Iceberg tables at {target}", target]
    told(lake, "publish", "--to", target, "--iceberg")
    assert _not_erased(purged(lake, 1).out) == [s3_url]
    open_store(s3_url).delete(["latest.json", "catalog.duckdb"])
    urlopen(Request(f"{s3_server.endpoint}/{s3_url.split('/')[2]}", method="DELETE"), timeout=10).close()
    assert purged(lake, 1).code == ExitCode.OK


def test_a_place_that_is_away_is_not_erased(history: History, tmp_path: Path) -> None:
    """Nothing is published to an empty folder where the lake was: a purge repeated when it is back erases it there."""
    lake, nas, away = history.root, tmp_path / "nas", tmp_path / "away"
    places = [(nas / name).as_uri() for name in ("mirror", "tables")]
    settings = dict(zip(("SCANLAKE_PUBLISH_TO", "SCANLAKE_ICEBERG_LOCATION"), places, strict=True))
    told(lake, "publish", code=0, **settings)
    nas.rename(away)
    for attempt in range(2):
        nas.mkdir()
        problem = told(lake, "publish", code=ExitCode.PUBLISH, **settings)
        assert f"{places[0]} has nothing of the lake, although it was published there. Is it mounted?" in problem
        told(lake, "backup", places[0], code=ExitCode.PUBLISH)
        tables = ("--iceberg", "--set", f"iceberg_location={places[1]}")
        assert f"{places[1]} has nothing of the lake" in told(lake, "publish", *tables, code=ExitCode.PUBLISH)
        answer = purged(lake, 777_123, **settings)
        assert answer.code == ExitCode.PUBLISH
        assert _not_erased(answer.out) == [places[0], f"Iceberg tables at {places[1]}"]
        assert answer.out.count(": NOT ERASED: No published lake is there. Is it mounted? ") == 2
        assert list(nas.iterdir()) == [], attempt
        nas.rmdir()
    away.rename(nas)
    answer = purged(lake, 777_123, **settings)
    assert (answer.code, answer.out.count(": erased (")) == (ExitCode.OK, 2), answer
    assert list(find_words(nas, {"ref 777123"})) == []


def test_an_emptied_bucket_is_not_erased(history: History, s3_url: str) -> None:
    """So it is with a bucket that was emptied, also if an image was damaged; another place in it is published to."""
    lake, store, tables = history.root, open_store(s3_url), f"Iceberg tables at {s3_url}"
    with patch.object(ImagesOnStore, "require_whole", side_effect=LakeCorruptedError("An image is damaged.")):
        told(lake, "publish", "--to", s3_url, code=ExitCode.DAMAGE)
    told(lake, "publish", "--iceberg", "--set", f"iceberg_location={s3_url}")
    store.delete([item.path for item in store.list()])
    answer = purged(lake, 777_123)
    assert (answer.code, _not_erased(answer.out)) == (ExitCode.PUBLISH, [s3_url, tables])
    assert list(store.list()) == []
    told(lake, "publish", "--to", f"{s3_url}/new", "--iceberg")
    assert purged(lake, 777_123).code == ExitCode.OK


def test_a_former_copy_that_returns_is_erased_by_the_same_purge(history: History, tmp_path: Path) -> None:
    """The copy from before a purge, put back after it, is erased by that purge when it is repeated."""
    lake, nas, former = history.root, tmp_path / "nas", tmp_path / "former"
    settings = {"SCANLAKE_PUBLISH_TO": f"{nas.as_uri()}/mirror", "SCANLAKE_ICEBERG_LOCATION": f"{nas.as_uri()}/tables"}
    told(lake, "publish", code=0, **settings)
    shutil.copytree(nas, former)
    assert purged(lake, 777_123, **settings).code == ExitCode.OK
    with Lake(lake, doing="test") as held, held.ledger.transaction() as db:
        db.execute("UPDATE purge SET purged_at = purged_at - ?", (_MONTH * SECOND,))  # the copy is written after it
    shutil.rmtree(nas)
    former.rename(nas)
    answer = purged(lake, 777_123, **settings)
    assert (answer.code, answer.out.count(": erased (")) == (ExitCode.OK, 2), answer
    assert list(find_words(nas, {"ref 777123"})) == []


def test_a_place_that_a_catalog_chose_is_no_earlier_target(history: History) -> None:
    """The tables that were published last are known by their location, or as those whose catalog chose it."""
    with Lake(history.root, doing="test") as held:
        found = []
        for location in ("", "file:///tables"):
            note_target(held.ledger, f"{location}/iceberg-owner.json")
            found.append(find_tables_location(held.ledger.properties))
        assert found == ["", "file:///tables"]
        assert list(find_earlier_targets(held.layout, [name_tables("file:///tables")])) == []


def _not_erased(out: str) -> list[str]:
    return [line.partition(": NOT ERASED: ")[0] for line in out.splitlines() if ": NOT ERASED: " in line]


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
