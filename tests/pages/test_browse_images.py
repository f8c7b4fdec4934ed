"""Copies of images on the browse pages: shown from the store by hash, and never anything else."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pytest

from tests.lake_copies import copy_lake
from tests.made_once import make_once
from tests.pages.browse_client import Visitor, open_browse
from tests.pages.page_lakes import NOW, ParsedPage, build_lake

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

JPEG = b"\xff\xd8 a picture \xff\xd9"
THUMB = b"\xff\xd8 a small one \xff\xd9"
PAGE = b"<script>alert(1)</script>"
_COLUMNS = (
    "file_id BIGINT, upload_id VARCHAR, kind VARCHAR, state VARCHAR, sha256 VARCHAR, bytes BIGINT, mime VARCHAR,"
    " fetched_at TIMESTAMP, reason VARCHAR, path VARCHAR"
)


def _hash(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def _copy(lake: Path, upload: int, body: bytes, mime: str = "image/jpeg", **values: Any) -> dict[str, Any]:
    """Store a copy, and return its row."""
    sha256 = _hash(body)
    path = f"images/{sha256[:2]}/{sha256[2:]}.jpg"
    (lake / path).parent.mkdir(parents=True, exist_ok=True)
    (lake / path).write_bytes(body)
    row = {"file_id": 7, "upload_id": str(upload), "kind": "image", "state": "stored", "sha256": sha256, "mime": mime,
           "bytes": len(body), "path": path}  # fmt: skip
    return {**row, **values}


def _publish_images(lake: Path, rows: list[dict[str, Any]]) -> None:
    """Put the table of images into the published catalog."""
    (lake / "catalog.duckdb").chmod(0o644)
    with duckdb.connect(str(lake / "catalog.duckdb")) as db:
        db.execute(f"CREATE OR REPLACE TABLE images ({_COLUMNS})")
        for row in rows:
            marks = ", ".join("?" * len(row))
            db.execute(f"INSERT INTO images ({', '.join(row)}) VALUES ({marks})", list(row.values()))


_TYPES: Final = ("text/html", "image/svg+xml", "image/jpeg\r\nX-Own: 1", "IMAGE/JPEG", "")
"""Types that no page may show."""


@pytest.fixture
def lake(uploads_lake: Path, tmp_path: Path) -> Path:
    """A copy of the lake of a file with four uploads."""
    return copy_lake(uploads_lake, tmp_path / "lake")


@pytest.fixture(scope="module")
def uploads_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with one file of four uploads, and one with an upload of each of `_TYPES`; tests must not change it."""
    at = NOW.replace(tzinfo=None)
    uploads = [
        {"file_id": file_id, "id": n, "position": n, "image_url": f"https://a.example/{n}", "created_at": at}
        for file_id, ids in ((7, range(1, 5)), (8, range(11, 11 + len(_TYPES)))) for n in ids
    ]  # fmt: skip

    def make(folder: Path) -> Path:
        build_lake(folder / "lake", {7: 4, 8: len(_TYPES)}, {"uploads": uploads})
        return folder / "lake"

    return make_once(tmp_path_factory, "uploads_lake", make)


@pytest.fixture(scope="module")
def shown(uploads_lake: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Visitor]:
    """A visitor of pages with copies: full and thumbnail, full alone, a PDF, and one that was not found.

    A second file has a copy of each of `_TYPES`.
    """
    lake = copy_lake(uploads_lake, tmp_path_factory.mktemp("shown") / "lake")
    rows = [
        _copy(lake, 1, JPEG),
        _copy(lake, 1, THUMB, kind="thumbnail"),
        _copy(lake, 2, JPEG + b"2", "image/png"),
        _copy(lake, 3, b"%PDF-", "application/pdf"),
        {"file_id": 7, "upload_id": "4", "kind": "image", "state": "not_found", "reason": "<b>no picture</b>"},
    ]
    rows.append({**rows[-1], "upload_id": "2", "kind": "thumbnail"})
    rows += [_copy(lake, 11 + n, PAGE + bytes([n]), mime, file_id=8) for n, mime in enumerate(_TYPES)]
    _publish_images(lake, rows)
    with open_browse(lake) as visitor:
        yield visitor


def _images_of(page: str) -> list[str]:
    return [str(attributes["src"]) for tag, attributes in ParsedPage(page).tags if tag == "img"]


def test_a_file_shows_its_copies_from_the_store(shown: Visitor) -> None:
    """Thumbnails come from the page's own server; a copy replaces the links to the service, also in the time line.

    The table of copies is one like all others.
    """
    assert '<a href="/browse/table/images">images</a></td><td>11</td>' in shown.get("/browse")[2]
    status, _, text = shown.get("/browse/table/images?column=state&op=is&value=stored")
    assert (status, "Rows 1 to 9 of 9" in text) == (200, True)
    for path in (
        "/browse/table/uploads?show=comment&show=id&show=file_id",
        "/browse/table/uploads",
        "/browse/table/images",
    ):
        assert set(_images_of(shown.get(path)[2])) == {f"/browse/image/{_hash(body)}" for body in (THUMB, JPEG + b"2")}
    assert _images_of(shown.get("/browse/table/uploads?show=comment")[2]) == []
    status, _, text = shown.get("/browse/file?id=7")
    assert status == 200
    assert _images_of(text) == [f"/browse/image/{_hash(THUMB)}", f"/browse/image/{_hash(JPEG + b'2')}"]
    links = ParsedPage(text).values("href")
    assert [href for href in links if href.startswith("https:")] == ["https://a.example/4"] * 2
    copies = {href for href in links if href.startswith("/browse/image/")}
    assert copies == {f"/browse/image/{_hash(body)}" for body in (JPEG, JPEG + b"2", b"%PDF-")}
    assert "not found: <b>no picture</b>" in ParsedPage(text).text
    assert "/browse/table/images?column=file_id&op=is&value=7" in links
    for body, mime in ((JPEG, "image/jpeg"), (THUMB, "image/jpeg"), (JPEG + b"2", "image/png")):
        status, headers, received = shown.get_bytes(f"/browse/image/{_hash(body)}")
        assert (status, headers["Content-Type"], received) == (200, mime, body)
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Content-Disposition" not in headers


def test_no_other_type_is_inline(shown: Visitor) -> None:
    """Whatever the table says, only four types are shown; a PDF and the others are downloads of bytes."""
    assert _images_of(shown.get("/browse/file?id=8")[2]) == []
    bodies = {_hash(PAGE + bytes([n])): mime for n, mime in enumerate(_TYPES)}
    for sha256, mime in bodies.items():
        status, headers, _ = shown.get_bytes(f"/browse/image/{sha256}")
        assert (status, headers["Content-Type"]) == (200, "application/octet-stream"), mime
        assert headers["Content-Disposition"].startswith("attachment; "), mime
        assert "sandbox" in headers["Content-Security-Policy"], mime
        assert "X-Own" not in headers
    status, headers, body = shown.get_bytes(f"/browse/image/{_hash(b'%PDF-')}")
    assert (status, headers["Content-Type"], body) == (200, "application/pdf", b"%PDF-")
    assert headers["Content-Disposition"] == f'attachment; filename="{_hash(b"%PDF-")}.pdf"'


def test_a_copy_needs_the_key_and_no_page(lake: Path) -> None:
    """The address of a copy works in a server that has shown no page; without the cookie there is no picture."""
    _publish_images(lake, [_copy(lake, 1, JPEG)])
    path = f"/browse/image/{_hash(JPEG)}"
    with open_browse(lake) as visitor:
        assert visitor.get_bytes(path)[::2] == (200, JPEG)
        assert visitor.call(path, "HEAD", Cookie=visitor.cookie)[::2] == (200, "")
        assert visitor.call(path)[0] == 403
        assert visitor.call(path, Host="evil.example", Cookie=visitor.cookie)[0] == 421


def test_only_what_the_table_names_is_read(lake: Path) -> None:
    """No path of the address or the table leads out of the store, and no other bytes than those of the hash."""
    secret = lake.parent / "token"
    secret.write_bytes(b"secret")
    outside, linked, changed = (_copy(lake, n, body) for n, body in ((1, b"1"), (2, b"2"), (3, b"3")))
    outside |= {"path": "images/../../token", "sha256": _hash(b"secret")}
    (lake / linked["path"]).unlink()
    (lake / linked["path"]).symlink_to(secret)
    linked["sha256"] = "b" * 64
    (lake / changed["path"]).write_bytes(b"4")
    unnamed = _copy(lake, 4, b"unnamed")
    _publish_images(lake, [outside, linked, changed, {**unnamed, "state": "failed"}])
    with open_browse(lake) as visitor:
        for _ in range(2):  # with and without the page of the file
            for name in (outside["sha256"], linked["sha256"], unnamed["sha256"], "A" * 64, "a" * 63, "../../token",
                         "%2e%2e/token", unnamed["path"], "", "x' OR 1=1 --"):  # fmt: skip
                status, _, body = visitor.get_bytes(f"/browse/image/{name.replace(' ', '%20')}")
                assert (status, b"secret" in body) == (404, False), name
            status, _, body = visitor.get_bytes(f"/browse/image/{changed['sha256']}")
            assert (status, b"not the one that was downloaded" in body) == (503, True)
            assert visitor.get("/browse/file?id=7")[0] == 200
