"""The subfolder of a job's folder with the images of its files: its checksums, and what is wrong with it.

An export of images writes the folder; here it is only read, without the lake.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from typing import TYPE_CHECKING, Final

from pipeline.atomic_files import sha256_file
from pipeline.errors import SettingsError
from pipeline.formatting import pluralize
from pipeline.lake.handover import MANIFEST, NO_LINK, STORED, SUMS, parse_sums

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pipeline.lake.handover import ExportedImages

IMAGES_NAME: Final = "images"
_MANIFEST_PATH: Final = f"{IMAGES_NAME}/{MANIFEST}"
_SUMS_PATH: Final = f"{IMAGES_NAME}/{SUMS}"


def refuse_linked_images(folder: Path) -> None:
    """Raise `SettingsError` if the subfolder is a link: it would lead the export elsewhere."""
    path = folder / IMAGES_NAME
    if path.is_symlink():
        raise SettingsError(f"{path} is a link.", hint="Remove it, then run the same command again.")


def list_image_sums(folder: Path) -> dict[str, str]:
    """Return the hash of every file in the subfolder, by its path below the job's folder."""
    sums = parse_sums((folder / _SUMS_PATH).read_text(encoding="utf-8")).items()
    return {f"{IMAGES_NAME}/{name}": sha256 for name, sha256 in sums} | {_SUMS_PATH: sha256_file(folder / _SUMS_PATH)}


def describe_images(images: ExportedImages) -> str:
    """Return the line about the images: how many are in the subfolder, and how many are not."""
    text = f"{pluralize(images.exported, 'image')} in {images.folder}/"
    if images.missing:
        counts = ", ".join(f"{count:,} {state.replace('_', ' ')}" for state, count in sorted(images.missing.items()))
        text += f"; not there: {counts}, named in {_MANIFEST_PATH}"
    return text


def find_image_problems(
    folder: Path, images: ExportedImages | None, sums: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield a file and its problem for each contradiction.

    The images, their manifest, the job's manifest and the checksums must agree.
    """
    covered = {name: sha256 for name, sha256 in sums.items() if name.startswith(f"{IMAGES_NAME}/")}
    if images is None:
        yield from ((name, "in SHA256SUMS, but the job has no images") for name in covered)
        return
    yield from ((name, "not in SHA256SUMS") for name in (_MANIFEST_PATH, _SUMS_PATH) if name not in covered)
    try:
        text = (folder / _MANIFEST_PATH).read_bytes().decode()
    except (OSError, ValueError):
        yield _MANIFEST_PATH, "cannot be read"
        return
    named: dict[str, str | None] = {}
    missing = Counter[str]()
    for row in csv.DictReader(io.StringIO(text, newline="")):
        if row.get("name"):
            named[f"{IMAGES_NAME}/{row['name']}"] = row.get("sha256") if row.get("state") == STORED else None
            continue
        missing[row.get("state") or ""] += 1
        if not row.get("reason") or row.get("state") == STORED:
            yield _MANIFEST_PATH, f"upload {row.get('upload_id')} has no image and no reason"
    del missing[NO_LINK]
    yield from _compare(named, covered)
    if (len(named), dict(missing)) != (images.exported, images.missing):
        yield _MANIFEST_PATH, "does not match manifest.json"


def _compare(named: Mapping[str, str | None], covered: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in sorted({*named, *covered} - {_MANIFEST_PATH, _SUMS_PATH}):
        if name not in named:
            yield name, f"in SHA256SUMS, but not in {_MANIFEST_PATH}"
        elif covered.get(name) != named[name]:
            yield name, f"SHA256SUMS and {_MANIFEST_PATH} disagree"


def list_unknown_images(folder: Path, known: Mapping[str, str]) -> list[str]:
    """Return the files of the subfolder that no checksum covers, without hidden ones."""
    root = folder / IMAGES_NAME
    paths = (path for path in root.rglob("*") if path.is_symlink() or not path.is_dir())
    names = (path.relative_to(folder).as_posix() for path in paths if not path.name.startswith("."))
    return sorted(name for name in names if name not in known)
