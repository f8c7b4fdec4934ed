"""A recording as a folder: one JSON file for each exchange, and a page that describes it."""

from __future__ import annotations

import re
from email.utils import format_datetime, parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pipeline.atomic_files import write_file
from pipeline.client.error_bodies import parse_error_body
from pipeline.client.json_scan import JsonScanError, split_members
from pipeline.errors import SettingsError
from pipeline.recording.anonymizer import Anonymizer
from schemas.json_decode import InvalidJsonError, decode_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pipeline.recording.recorder import Exchange

_README: Final = """# A recording of the file service

Made by `scanlake record`: real answers of the service, anonymised. One JSON file holds one request (without its token)
and its answer. Texts, numbers and coordinates are replaced by salted hashes of the same shape, ids by other numbers
that still join, instants are shifted, links lead nowhere. Keys, enumerations and counts are as the service sent them.
The salt was random and was not stored.
"""
_ID_PATH: Final = re.compile(r"(.*/)(\d{1,19})")
_MAX_OTHER_CHARS: Final = 1_000
_encode: Final = msgspec.json.Encoder(decimal_format="number").encode


def check_folder(folder: Path) -> None:
    """Raise `SettingsError` unless the folder is new or empty."""
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"--out {folder} is not a folder.", hint="Use a new or empty folder.")
    if folder.is_dir() and any(folder.iterdir()):
        raise SettingsError(f"--out {folder} is not empty.", hint="Use a new or empty folder.")


def write_recording(exchanges: Sequence[Exchange], folder: Path) -> int:
    """Write the anonymised exchanges and return the number of bytes."""
    bodies = [_decode(exchange.body) for exchange in exchanges]
    ids = [int(match[2]) for exchange in exchanges if (match := _ID_PATH.fullmatch(exchange.path))]
    anonymizer = Anonymizer([*bodies, *ids])
    texts = [
        msgspec.json.format(_encode(_anonymize(exchange, body, anonymizer)), indent=1) + b"\n"
        for exchange, body in zip(exchanges, bodies, strict=True)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    for number, (exchange, text) in enumerate(zip(exchanges, texts, strict=True), 1):
        kind = "file" if _ID_PATH.fullmatch(exchange.path) else "files"
        write_file(folder / f"{number:03}-{kind}-{exchange.status}.json", text)
    write_file(folder / "README.md", _README.encode())
    return sum(map(len, texts))


class _OtherBody:
    """A body that is not JSON."""

    def __init__(self, text: str) -> None:
        self.text = text


def _decode(body: bytes) -> Any:
    try:
        return decode_json(body)
    except InvalidJsonError:
        return _OtherBody(body.decode("utf-8", "replace"))


def _anonymize(exchange: Exchange, body: Any, anonymizer: Anonymizer) -> dict[str, Any]:
    path = exchange.path
    if match := _ID_PATH.fullmatch(path):
        path = f"{match[1]}{anonymizer.replace_id(int(match[2]))}"
    recorded: dict[str, Any] = {
        "method": exchange.method,
        "path": path,
        "parameters": [list(pair) for pair in exchange.parameters],
        "status": exchange.status,
        "headers": {name: _replace_header(name, value, anonymizer) for name, value in exchange.headers},
    }
    if isinstance(body, _OtherBody):
        return {**recorded, "body_text": _replace_other(body.text, anonymizer)}
    is_error = exchange.status >= 400 or _is_error_body(exchange.body)
    return {**recorded, "body": anonymizer.replace_error(body) if is_error else anonymizer.replace(body)}


def _is_error_body(body: bytes) -> bool:
    try:
        members = dict(split_members(body))
    except JsonScanError:
        return False
    return parse_error_body(members).has_content and not {"id", "data"} & members.keys()


def _replace_header(name: str, value: str, anonymizer: Anonymizer) -> str:
    if name != "date":
        return value
    try:
        return format_datetime(anonymizer.shift(parsedate_to_datetime(value)), usegmt=True)
    except (ValueError, TypeError, OverflowError):
        return ""


def _replace_other(text: str, anonymizer: Anonymizer) -> str:
    if text.lstrip().startswith("<"):
        return "<!DOCTYPE html><html><body></body></html>"
    return anonymizer.replace_text(text[:_MAX_OTHER_CHARS])
