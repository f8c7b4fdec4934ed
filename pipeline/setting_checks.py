"""Checks of single settings. They raise `ValueError` with a text that follows the setting's name and has no value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.urls import API_PREFIX, normalize_base_url, validate_url
from schemas.includes import INCLUDES

if TYPE_CHECKING:
    from pydantic import SecretStr


def check_base_url(url: str) -> str:
    """Return the normalized base URL."""
    if (version := re.search(r"/api/v\d+(?=/?$)", url)) and version[0] != API_PREFIX:
        raise ValueError(f"must not end in {version[0]}; scanlake calls {API_PREFIX}")
    return normalize_base_url(url)


def parse_includes(names: Any) -> Any:
    """Return the names in a text that separates them by commas; `all` and `none` stand for lists."""
    if isinstance(names, str):
        names = [name.strip() for name in names.split(",") if name.strip()]
    if isinstance(names, Sequence):
        if list(names) == ["all"]:
            return INCLUDES
        return () if list(names) == ["none"] else names
    return names


def check_path_has_no_pattern(path: Any) -> Any:
    """Return the path of a folder unchanged. DuckDB reads some characters as a pattern."""
    if isinstance(path, str) and not path.strip():
        raise ValueError("is empty; give a folder, or . for the current folder")
    if path is not None and re.search(r"[*?\[\\]", str(Path(path).absolute())):
        raise ValueError("contains * ? [ or \\, which DuckDB reads as a pattern; use another folder")
    return path


def check_notify_url(url: SecretStr | None) -> SecretStr | None:
    """Return the URL unchanged. It can have a query."""
    if url is not None:
        validate_url(url.get_secret_value().partition("?")[0])
    return url
