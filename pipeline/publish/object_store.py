"""Object stores by URL: `s3://`, `gs://`, `az://` and `file://`."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pipeline.errors import SettingsError
from pipeline.publish.cloud_store import open_cloud_store
from pipeline.publish.local_store import LocalStore
from pipeline.publish.store_contract import ObjectStore, StoredObject
from pipeline.urls import parse_store_url

__all__ = ["ObjectStore", "StoredObject", "open_folder_or_store", "open_store"]

_HINT: Final = "Use a URL such as s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///folder."


def open_folder_or_store(target: str) -> ObjectStore:
    """Return the object store below a URL, or that of a folder, which need not exist."""
    return open_store(target) if "://" in target else LocalStore(Path(target).absolute())


def open_store(url: str) -> ObjectStore:
    """Return the object store below `url`. Nothing is sent.

    Raises `SettingsError` for another kind of URL; the message never shows it, because it may have credentials.
    """
    try:
        url = parse_store_url(url)
    except ValueError as error:
        raise SettingsError(f"The URL of an object store {error}.", hint=_HINT) from None
    if url.startswith("file:"):
        return LocalStore(Path(urlsplit(url).path))
    return open_cloud_store(url)
