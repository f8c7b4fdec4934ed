r"""Locations as people type them: a path on this machine, the URL of an object store, or either.

Other tools write `host:/folder`, `s3:bucket` or `\\server\share`. As a path each of them would be a folder here, so it
is refused. `./` before a name takes it literally, as with rsync and scp.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

_URL_SCHEME: Final = re.compile(r"[\w+.-]+://", re.ASCII)
_FILE_NAME: Final = re.compile(r".+\.([ct]sv|txt|jsonl?|parquet|xlsx?|pdf|html|zip|gz|db|sqlite|duckdb)", re.IGNORECASE)
_CLOUD_SCHEMES: Final = frozenset({"s3", "gs", "az"})
_OTHER_FORM: Final = re.compile(r"[^/]*:|\\\\")
_URLS: Final = "s3://bucket/prefix, gs://, az:// or file:///folder"
_PATH: Final = "a path on this machine, such as /folder"
_FOLDER_OR_URL: Final = f"a folder, or a URL such as {_URLS}"


def parse_path(text: str, expected: str = _PATH) -> Path:
    """Return a path; `~` at its start is the home folder.

    Raises ValueError with a predicate ("must ..."), which never shows the text, because it may have credentials.
    """
    if "\0" in text:
        raise ValueError("must be a path")
    if not text.strip():
        raise ValueError("is empty; give a path")
    if _OTHER_FORM.match(text):
        raise ValueError(f"must be {expected}; begin with ./ if its name here has a colon or a backslash")
    if text.startswith("$"):
        raise ValueError("begins with a variable that no shell has replaced; write the whole path, or begin with ./")
    try:
        path = Path(text).expanduser() if text.startswith("~") else Path(text)
        path.as_posix().encode()
    except RuntimeError:
        raise ValueError("begins with ~ and no known user; write the whole path, or begin with ./") from None
    except UnicodeEncodeError:
        raise ValueError("must be UTF-8 text") from None
    return path


def parse_folder(text: str) -> Path:
    """Return the path of a folder. A new one has no name of a file. Raises ValueError as `parse_path` does."""
    path = parse_path(text)
    if is_file_name(path) and not path.exists():
        raise ValueError("must be a folder, but looks like a file name; leave out the extension")
    return path


def is_file_name(path: Path) -> bool:
    """Return whether the name has the extension of a file that people save data to."""
    return _FILE_NAME.fullmatch(path.name) is not None


def encode_path(path: Path) -> str:
    """Return the text that `parse_path` takes for a path."""
    text = str(path)
    return f"./{text}" if _OTHER_FORM.match(text) or text.startswith(("~", "$")) else text


def parse_store_url(text: str) -> str:
    """Return the URL of an object store without a slash at the end: s3://, gs://, az:// or file://.

    Raises ValueError as `parse_path` does.
    """
    try:
        parts = urlsplit(text)
        has_credentials = bool(parts.username or parts.password or parts.query or parts.fragment)
    except ValueError:
        raise ValueError(f"must be a URL such as {_URLS}") from None
    if has_credentials:
        raise ValueError("must have no credentials, query or fragment; put credentials into the environment")
    is_file = text.startswith("file:///") and parts.path.strip("/")
    is_cloud = parts.scheme in _CLOUD_SCHEMES and text.startswith(f"{parts.scheme}://") and parts.netloc
    path = parts.path[1:].rstrip("/")
    has_plain_path = not path or not {"", ".", ".."} & set(path.split("/"))
    if not (is_file or is_cloud) or not has_plain_path:
        raise ValueError(f"must be a URL such as {_URLS}")
    if wrong := re.search(r"['\"*?\[\]\\%]|[^!-~]", text):
        raise ValueError(f"must not have the character {wrong[0]!r}")
    return text.rstrip("/")


def parse_location(text: str) -> str:
    """Return the URL of an object store, or the absolute path of a folder. Raises ValueError as `parse_path` does."""
    if _URL_SCHEME.match(text):
        return parse_store_url(text)
    return str(parse_path(text, _FOLDER_OR_URL).absolute())
