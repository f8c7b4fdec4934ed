"""The digest of a document: the same for what says the same, another for what says something else."""

from __future__ import annotations

from schemas.file_versions import content_digest
from tests.rows import every


@every(
    "other",
    [
        b'{"updated_at":"2026-01-02T03:04:05Z","image_url":"https:\\/\\/x\\/a.jpg?sig=2","n":"a"}',
        b'{"updated_at":"2026-01-02T03:04:05+00:00","image_url":"https://x/a.jpg?sig=1","n":"a"}',
        b'{"updated_at":"2026-01-02T03:04:05.000000Z","image_url":"https://x/a.jpg?sig=1","n":"a"}',
        b'{"updated_at":"2026-01-02T03:04:05","image_url":"https://x/a.jpg?sig=3","n":"a"}',
    ],
)
def test_the_same(other: bytes) -> None:
    """Another signature of an image and another spelling of an instant make no other digest."""
    assert content_digest(other) == content_digest(
        b'{"updated_at":"2026-01-02T03:04:05Z","image_url":"https://x/a.jpg?sig=1","n":"a"}'
    )


@every(
    ("one", "other"),
    [
        (b'{"comment":"ABCZ"}', b'{"comment":"ABC"}'),
        (b'{"comment":"52.000000"}', b'{"comment":"52"}'),
        (b'{"at":"2026-01-02T03:04:05Z"}', b'{"at":"2026-01-02T03:04:06Z"}'),
        (b'{"at":"2026-01-02T03:04:05.727000Z"}', b'{"at":"2026-01-02T03:04:05.728Z"}'),
        (b'{"image_name":"a"}', b'{"image_name":"b"}'),
        (b'{"uploads":[]}', b'{"uploads":[{}]}'),
    ],
)
def test_another(one: bytes, other: bytes) -> None:
    """Whatever a person could notice makes another digest."""
    assert content_digest(one) != content_digest(other)


def test_trailing_zeros() -> None:
    """An instant with and without trailing zeros in its fraction is one instant."""
    assert content_digest(b'"2026-01-02T03:04:05.727000Z"') == content_digest(b'"2026-01-02T03:04:05.727+00:00"')
