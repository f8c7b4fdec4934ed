"""The charset of JSON: UTF-8 (RFC 8259). A body in another one is refused by name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pipeline.client.error_bodies import summarize_in_one_line
from pipeline.client.errors import AttemptError

if TYPE_CHECKING:
    from collections.abc import Iterable

_PARAMETER: Final = re.compile(r";\s*charset\s*=\s*[\"']?([^\"';,\s]+)", re.IGNORECASE)
_UTF8: Final = frozenset({"utf-8", "utf8"})
_DEFAULTS: Final = frozenset({"us-ascii", "iso-8859-1"})  # of servers, whatever the bytes are


def check_utf8(body: bytes, content_types: Iterable[str]) -> None:
    """Raise `AttemptError` if the headers name another charset. The parser checks a body that is called UTF-8."""
    labels = {label.lower() for label in _PARAMETER.findall("\n".join(content_types))} - _UTF8
    if not labels or body.lstrip()[:1] == b"<":  # an HTML page
        return
    try:
        body.decode()
        labels -= _DEFAULTS
    except UnicodeDecodeError:
        pass
    if labels:
        named = summarize_in_one_line(", ".join(sorted(labels)))
        raise AttemptError("charset", f"JSON in the charset {named}, not in UTF-8", is_protocol_error=True)
