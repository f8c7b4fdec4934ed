"""The digest of a document: the same for what says the same, another for what says something else."""

from __future__ import annotations

from schemas.file_versions import CONTENT_DIGEST_BYTES, content_digest, same_content, version_digest
from tests.rows import every


@every(
    ("one", "other"),
    [
        *(
            (b'"2026-01-02T03:04:05%b"' % spelled, b'"2026-01-02T03:04:05"')
            for spelled in (b"Z", b"+00:00", b".000000Z", b".Z")
        ),
        (b'"2026-01-02T03:04:05.727000Z"', b'"2026-01-02T03:04:05.727+00:00"'),
        (b'"2026-01-02T03:04:00.000Z"', b'"2026-01-02T03:04:00"'),
        (b'"2026-01-02 03:04:05.500000"', b'"2026-01-02 03:04:05.5Z"'),
        (b'["2026-01-02T03:04:05Z","2026-01-02T03:04:05.10Z"]', b'["2026-01-02T03:04:05","2026-01-02T03:04:05.1"]'),
        (b'{"image_url":"https:\\/\\/x\\/a.jpg?sig=2","n":"a"}', b'{"image_url":"https://x/a.jpg?sig=1","n":"a"}'),
    ],
)
def test_the_same(one: bytes, other: bytes) -> None:
    """Another signature of an image and another spelling of an instant make no other digest."""
    assert same_content(one, other)
    assert content_digest(one) == content_digest(other)


@every(
    ("one", "other"),
    [
        (b'{"comment":"ABCZ"}', b'{"comment":"ABC"}'),
        (b'{"comment":"52.000000"}', b'{"comment":"52"}'),
        (b'{"at":"2026-01-02T03:04:05Z"}', b'{"at":"2026-01-02T03:04:06Z"}'),
        (b'{"at":"2026-01-02T03:04:05.727000Z"}', b'{"at":"2026-01-02T03:04:05.728Z"}'),
        (b'{"image_name":"a"}', b'{"image_name":"b"}'),
        (b'{"uploads":[]}', b'{"uploads":[{}]}'),
        (b'{"a":1,"image_url":"https://x/a"}', b'{"a":1}'),
        (b'{"image_url":"https://x/a"}', b'{"image_url":null}'),
        (b'{"image_url":"https://x/a"}', b'{"image_thumb":"https://x/a"}'),
        (b'{"comment":"\\"image_url\\":\\"a\\""}', b'{"comment":"\\"image_url\\":\\"b\\""}'),
        (b'{"page_url":"https://x/a"}', b'{"page_url":"https://x/b"}'),
        (b'{"at":"2026-01-02T03:04:50Z"}', b'{"at":"2026-01-02T03:04:5Z"}'),
        (b'{"at":"2026-01-02T03:04:00.000Z"}', b'{"at":"2026-01-02T03:04:"}'),
        (b'{"comment":"2026-01-02T03:04:05Z."}', b'{"comment":"2026-01-02T03:04:05."}'),
        (b'{"comment":"2026-01-02T03:04:05.500 h"}', b'{"comment":"2026-01-02T03:04:05.5 h"}'),
        (b'{"at":"2026-01-02T03:04:05+01:00"}', b'{"at":"2026-01-02T03:04:05+00:00"}'),
    ],
)
def test_another(one: bytes, other: bytes) -> None:
    """Whatever a person could notice makes another digest."""
    assert content_digest(one) != content_digest(other)


def test_renewed_links() -> None:
    """Another signature makes another digest of a version, of which the content has the same part."""
    one, other = (b'{"image_url" : "https://x/a?%d","image_thumb":"https://x/b"}' % number for number in (1, 2))
    assert version_digest(one) != version_digest(other)
    assert version_digest(one)[:CONTENT_DIGEST_BYTES] == version_digest(other)[:CONTENT_DIGEST_BYTES]
    assert version_digest(one)[:CONTENT_DIGEST_BYTES] == content_digest(other)
