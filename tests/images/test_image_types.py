"""Ends of images: what an independent writer has written is whole, and no part of it is."""

from __future__ import annotations

import io
import random
from typing import Any, Final

import pytest
from PIL import Image

from pipeline.client.image_types import find_type, has_end

_CUTS: Final = 200


def _write(name: str, size: tuple[int, int] = (90, 70), **options: Any) -> bytes:
    target, pixels = io.BytesIO(), random.Random(7).randbytes(size[0] * size[1] * 3)
    Image.frombytes("RGB", size, pixels).save(target, name, **options)
    return target.getvalue()


def _write_frames(name: str) -> bytes:
    target, frames = io.BytesIO(), [Image.new("RGB", (40, 30), (level, 0, 9)) for level in (1, 90, 200)]
    frames[0].save(target, name, save_all=True, append_images=frames[1:])
    return target.getvalue()


_WRITERS: Final = {
    "baseline": lambda: _write("JPEG"),
    "progressive": lambda: _write("JPEG", progressive=True),
    "with a thumbnail": lambda: _write("JPEG", comment=_write("JPEG", (30, 20))),
    "PNG": lambda: _write("PNG"),
    "GIF": lambda: _write("GIF"),
    "moving GIF": lambda: _write_frames("GIF"),
    "WebP": lambda: _write("WEBP"),
    "moving WebP": lambda: _write_frames("WEBP"),
    "BMP": lambda: _write("BMP"),
    "AVIF": lambda: _write("AVIF"),
    "PDF": lambda: _write("PDF"),
    "TIFF": lambda: _write("TIFF"),
    "HEIC": lambda: b"\0\0\0\x18ftypheic" + bytes(12) + b"\0\0\0\x01mdat\0\0\0\0\0\0\0\x20" + bytes(16),
}


@pytest.mark.parametrize("name", _WRITERS)
def test_only_a_whole_image_has_its_end(name: str) -> None:
    """An image has its end, and no beginning of it has, wherever it is cut.

    Phones append films and data: the image before them is whole. The parts of a TIFF may be in any order.
    """
    body, rng = _WRITERS[name](), random.Random(name)
    found = find_type(body)
    assert found is not None
    assert has_end(found, body)
    if name in {"baseline", "PNG", "moving GIF", "WebP", "BMP"}:
        assert has_end(found, body + rng.randbytes(5_000))
    if name == "TIFF":
        assert has_end(found, body[:-1])
        return
    # Blanks may follow the end of a PDF.
    shortest = len(body.rstrip()) if name == "PDF" else len(body)
    cuts = {shortest - 1, shortest // 2, 32, *(rng.randrange(32, shortest) for _ in range(_CUTS))}
    assert [cut for cut in sorted(cuts) if has_end(found, body[:cut])] == []
