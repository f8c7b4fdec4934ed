"""Copies of images on the page of a file: thumbnails, and links to the full ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pipeline.dashboard.browse.frame import ROOT, outer_link
from pipeline.dashboard.browse.stored_images import DOWNLOAD_SUFFIXES, StoredImage, UploadImages
from pipeline.dashboard.html import element
from pipeline.formatting import format_bytes

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

IMAGE_PATH: Final = f"{ROOT}/image/"


def image_cell(images: UploadImages, url: str | None, thumb_url: str | None, upload_id: str | None) -> Element:
    """Return the thumbnail with a link to the copy; without a copy the links to the service, and why."""
    if images.image is None and images.thumbnail is None:
        note = element("span", images.problem, class_="soft") if images.problem else None
        return element("span", _service_link("full", url), " ", _service_link("small", thumb_url), " ", note,
                       class_="nowrap")  # fmt: skip
    full = _service_link("full", url) if images.image is None else image_link(_describe(images.image), images.image)
    displayed = next(
        (image for image in (images.thumbnail, images.image) if image is not None and image.is_inline), None
    )
    if displayed is None:
        return element("span", full, class_="nowrap")
    picture = element("img", alt=f"Image of upload {upload_id}", loading="lazy", class_="thumb")
    picture.set("src", f"{IMAGE_PATH}{displayed.sha256}")
    target = element("a", picture)
    target.set("href", f"{IMAGE_PATH}{(images.image or displayed).sha256}")
    return element("span", target, " ", full, class_="nowrap")


def image_link(text: str, image: StoredImage) -> Element:
    """Return a link to a copy: displayed in a new tab, or downloaded."""
    node = element("a", text, target="_blank", rel="noopener") if image.is_inline else element("a", text)
    node.set("href", f"{IMAGE_PATH}{image.sha256}")
    return node


def _describe(image: StoredImage) -> str:
    kind = image.mime.rpartition("/")[2].upper() if image.is_inline or image.mime in DOWNLOAD_SUFFIXES else "file"
    return f"{kind}, {format_bytes(image.bytes)}"


def _service_link(text: str, url: str | None) -> Element | None:
    target = outer_link(text, url)
    return None if isinstance(target, str) else target
