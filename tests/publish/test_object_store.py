"""Object stores: one behaviour, whatever the store; what a person is told of errors."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import pytest
from obstore.store import MemoryStore

from pipeline.errors import ExitCode, PublishConflictError, PublishError, SettingsError
from pipeline.publish import stores
from pipeline.publish.stores import CloudStore, open_store
from tests.client.scripted_server import answer, scripted
from tests.rows import every

if TYPE_CHECKING:
    from pipeline.publish.object_store import ObjectStore


def test_an_object_is_created_once_and_whole(store: ObjectStore, tmp_path: Path) -> None:
    """A second creation is refused and changes nothing. The hash that was given is returned, or nothing.

    Content in a file arrives byte by byte, be it empty or larger than one request of the library's default.
    """
    assert store.create("a/b", b"first", sha256="00ff")
    assert not store.create("a/b", b"second")
    assert store.read("a/b") == b"first"
    head = store.head("a/b")
    assert head is not None
    assert head.sha256 == ("" if store.base_url.startswith("file:") else "00ff")
    for name, content in (("empty", b""), ("large", os.urandom(11_000_000))):
        source = tmp_path / name
        source.write_bytes(content)
        assert store.create(f"files/{name}", source, sha256=hashlib.sha256(content).hexdigest())
        assert not store.create(f"files/{name}", source)
        target = tmp_path / f"{name}.copy"
        store.download(f"files/{name}", target)
        assert target.read_bytes() == content
    assert not store.download("files/large", tmp_path / "other size", 7)
    assert not (tmp_path / "other size").exists()


def test_a_hash_needs_no_copy(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hash that was given is returned, otherwise that of the content, which is nowhere written to be hashed."""
    monkeypatch.setattr(tempfile, "tempdir", "/dev/full")
    store.create("kept", b"content", sha256="00ff")
    store.create("plain", b"content")
    digest = hashlib.sha256(b"content").hexdigest()
    assert store.hash("plain") == digest
    assert store.hash("kept") == (digest if store.base_url.startswith("file:") else "00ff")
    assert store.hash_content("kept") == digest
    with pytest.raises(PublishError, match="/missing: "):
        store.hash("missing")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
def test_a_full_target_is_not_its_permissions(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full or read-only file system has a hint of its own."""

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(PublishError) as refused:
        open_store(f"file://{tmp_path}").create("name", b"content")
    assert refused.value.hint.startswith("Correct the URL" if number == errno.EACCES else "Free disk space there")
    assert os.strerror(number) in refused.value.message


def test_a_swap_needs_the_version_that_was_read(store: ObjectStore, tmp_path: Path) -> None:
    """The second of two publishers that read the same version is refused, and the first one's content stays."""
    store.swap("pointer", b"1", None)
    content, first = store.read_versioned("pointer") or (b"", "")
    assert content == b"1"
    with pytest.raises(PublishConflictError) as refused:
        store.swap("pointer", b"other", None)
    assert refused.value.exit_code == ExitCode.LOCKED
    assert store.read_versioned("pointer") == (b"1", first)
    source = tmp_path / "file"
    source.write_bytes(b"2")
    store.swap("pointer", source, first)
    head = store.head("pointer")
    assert head is not None
    second = head.version
    assert second != first
    for path in ("pointer", "missing"):
        with pytest.raises(PublishConflictError):
            store.swap(path, b"3", first)
    assert store.read_versioned("pointer") == (b"2", second)
    assert (head.path, head.bytes, head.version) == ("pointer", 1, second)


def test_one_of_many_simultaneous_writers_wins(store: ObjectStore) -> None:
    """Of writers that create the same object one succeeds; of those that swap the same version, too."""
    writers = range(8)
    with ThreadPoolExecutor(len(writers)) as pool:
        created = list(pool.map(lambda writer: store.create("race", b"%d" % writer), writers))
        assert sum(created) == 1
        assert store.read("race") == b"%d" % created.index(True)
        head = store.head("race")
        assert head is not None

        def swap(writer: int) -> bool:
            try:
                store.swap("race", b"swap %d" % writer, head.version)
            except PublishConflictError:
                return False
            return True

        swapped = list(pool.map(swap, writers))
    assert sum(swapped) == 1
    assert store.read("race") == b"swap %d" % swapped.index(True)


def test_a_swap_whose_response_was_lost_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library repeats a request without response; the refusal of the repetition is no conflict."""
    store = CloudStore("memory://test", MemoryStore())
    put = store._put

    def put_twice(*arguments: Any, **options: Any) -> Any:
        put(*arguments, **options)
        return put(*arguments, **options)

    monkeypatch.setattr(store, "_put", put_twice)
    stored: tuple[bytes, str | None] = (b"", None)
    for content in (b"1", b"2"):
        store.swap("pointer", content, stored[1])
        stored = store.read_versioned("pointer") or stored
        assert stored[0] == content


def test_objects_are_listed_and_deleted(store: ObjectStore, tmp_path: Path) -> None:
    """A list has the objects of a folder and below, not those of a folder whose name begins alike.

    Looking for an object that does not exist finds nothing; reading it is an error with its URL. A probe, which a store
    that obeys conditions passes, leaves the store as it was.
    """
    for path in ("a/1", "a/b/2", "ab/3", "4"):
        store.create(path, b"x" * len(path))
    assert sorted(found.path for found in store.list()) == ["4", "a/1", "a/b/2", "ab/3"]
    assert {found.path: found.bytes for found in store.list("a")} == {"a/1": 3, "a/b/2": 5}
    assert list(store.list("none")) == []
    store.delete(["a/1", "none", "ab/3"])
    store.probe()
    store.delete([])
    assert sorted(found.path for found in store.list()) == ["4", "a/b/2"]
    assert [store.head("b"), store.read_versioned("b"), store.read_versioned("4/b")] == [None] * 3
    for act in (lambda: store.read("b"), lambda: store.download("b", tmp_path / "b")):
        with pytest.raises(PublishError) as refused:
            act()
        assert store.url("b") in refused.value.message


@every(("ignored", "mark"), [("create", "If-None-Match"), ("swap", "If-Match"), ("race", "simultaneous")])
def test_a_store_that_ignores_conditions_is_refused(ignored: str, mark: str) -> None:
    """The probe names the condition that a store ignores."""
    store, calls = CloudStore("memory://test", MemoryStore()), []
    put = store._put

    def put_anyway(path: str, content: bytes, *, mode: Any, sha256: str) -> Any:
        calls.append(path)
        is_ignored = {"create": mode == "create", "swap": mode != "create", "race": path != calls[0]}[ignored]
        return put(path, content, mode="overwrite" if is_ignored else mode, sha256=sha256)

    store._put = put_anyway  # type: ignore[method-assign, assignment]
    with pytest.raises(PublishError, match="memory://test ignores conditions: ") as refused:
        store.probe()
    assert mark in refused.value.message
    assert list(store.list()) == []


@every(
    ("method", "answers", "problem"),
    [
        ("create", [False], "a new object is reported as existing"),
        ("read_versioned", [None], "a new object cannot be read"),
        ("swap", ["1", PublishConflictError("late")], "an object has another content than was written"),
    ],
)
def test_a_store_that_lies_is_refused(method: str, answers: list[Any], problem: str) -> None:
    """The probe names what a store says or keeps otherwise than was written."""
    store = CloudStore("memory://test", MemoryStore())
    with mock.patch.object(store, method, side_effect=answers), pytest.raises(PublishError, match=problem):
        store.probe()
    assert list(store.list()) == []


_NO_URLS: Final = (
    "s3: s3:/// s3:///prefix ftp://host/x file:// file:/// file://host/x /folder bucket/prefix memory:///x"
    " http://127.0.0.1/x s3://bucket/a/../b s3://bucket//a s3://bucket/a*b s3://bucket/%41 file:///a'b"
)


@every("url", [*_NO_URLS.split(), "s3://key:secret@bucket/x", "s3://bucket/x?token=secret", "az://c/x#secret"])
def test_other_urls_are_refused(url: str) -> None:
    """A URL that is not one of an object store is shown with those that are, unless it has credentials."""
    with pytest.raises(SettingsError) as refused:
        open_store(url)
    assert "secret" not in refused.value.message + refused.value.hint
    if "secret" not in url:
        assert "object store" in refused.value.message
        assert "s3://bucket/prefix" in refused.value.hint


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Object storage says what to install; a folder needs nothing."""
    monkeypatch.setattr(stores, "_is_installed", False)
    with pytest.raises(SettingsError) as refused:
        open_store("s3://bucket")
    assert "pip install obstore" in refused.value.hint
    open_store("file:///folder")


def test_a_wrong_environment_is_named(s3_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A bucket that does not exist is no empty store: each method says so. Nor is a file a folder.

    A port where nothing listens is a wrong endpoint; without a key, that no machine gives either, it is missing.
    """
    store = open_store("s3://no-such-bucket-here/lake")
    for act in (
        lambda: store.create("a", b""),
        lambda: store.swap("a", b"", None),
        lambda: store.read("a"),
        lambda: store.read_versioned("a"),
        lambda: list(store.list()),
        store.probe,
    ):
        with pytest.raises(PublishError, match="the bucket does not exist"):
            act()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PublishError, match="Not a directory"):
        open_store(f"file://{tmp_path}/file/lake").create("a", b"x")
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        with pytest.raises(PublishError, match="the host cannot be reached") as refused:
            open_store(s3_url).head("a")
        assert "AWS_ENDPOINT_URL" in refused.value.hint
        with pytest.raises(PublishError, match="the host cannot be reached"):
            open_store(s3_url).delete(["a"])
    with pytest.raises(SettingsError, match="no storage account is set"):
        open_store("az://container/lake")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(PublishError, match="no credentials were found") as refused:
        open_store(s3_url).head("a")
    assert "AWS_ACCESS_KEY_ID" in refused.value.hint


_REFUSALS: Final = {
    (403, "AccessDenied"): ("the credentials do not permit the request", "docs/scale-out.md"),
    (403, "InvalidAccessKeyId"): ("the access key is unknown", "AWS_ACCESS_KEY_ID"),
    (403, "SignatureDoesNotMatch"): ("the secret key is wrong", "AWS_ACCESS_KEY_ID"),
    (403, "RequestTimeTooSkewed"): ("the clock of this machine is wrong", "clock"),
    (400, "ExpiredToken"): ("the credentials have expired", "AWS_ACCESS_KEY_ID"),
    (400, "AuthorizationHeaderMalformed"): ("the region is wrong", "AWS_REGION"),
    (400, "Strange"): ("the store answered 400 (Strange)", "correct the URL"),
}
"""Problem and hint, by the status and the code of what the store answers."""


async def test_a_refusal_is_one_line(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001 - sets keys
    """What the store answers becomes one line with a hint, without the response or a secret."""
    wrong = {}
    for (status, code), (problem, hint) in _REFUSALS.items():
        body = f"<Error><Code>{code}</Code><Message>key testing-secret</Message></Error>".encode()
        async with scripted(answer(body, status=status)) as server:
            monkeypatch.setenv("AWS_ENDPOINT_URL", server.base)
            with pytest.raises(PublishError) as refused:
                await asyncio.to_thread(open_store("s3://bucket/lake").create, "a", b"x")
        error = refused.value
        facts = (error.message, error.exit_code, hint in error.hint, "testing-secret" in error.message + error.hint)
        if facts != (f"s3://bucket/lake/a: {problem}.", ExitCode.PUBLISH, True, False):
            wrong[code] = facts
    assert wrong == {}
