"""What the service's answers mean: pure functions from a response to a value or an error, without sockets.

A 200 proves nothing: HTML pages, truncated JSON and error bodies come with a 200 too, so the body is checked.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Self

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pipeline.client.clock import parse_retry_after, parse_stated_pause
from pipeline.client.error_bodies import ERROR_BODY_KEYS, ErrorBody, decode_value, describe_status, parse_error_body
from pipeline.client.errors import AttemptError, RequestRejectedError, ThrottledError
from pipeline.errors import AuthenticationError, ProtocolError
from schemas.json_decode import InvalidJsonError, JsonNumber, decode_json, split_members
from schemas.timestamps import parse_instant_cached
from schemas.value_types import ID, INSTANT

_BOM: Final = b"\xef\xbb\xbf"
_ABSENT: Final = msgspec.Raw(b"")
_MAX_EMPTY_BODY_BYTES: Final = 1_000
_MAX_PAGE_ITEMS: Final = 10_000  # 40 times the largest limit
_UNCOUNTED_COMMAS: Final = 200_000  # of a body whose items take some 40 MB at most
_FILE_KEYS: Final = {"scan_code", "created_at", "updated_at", "uploads", "form_submits"}
_SIGN_IN: Final = re.compile(r"/(login|signin|sign-in|auth)([/?#]|$)")
_IDENTITY_KEYS: Final = {"id", "file_id", "updated_at"}
_MAX_USUAL_ID: Final = 10**18  # beyond it an id may not fit in 64 bits
_MAX_INSTANT_CHARS: Final = 40  # of a text that is worth a place in a cache
_EMPTY_VALUES: Final = {b"", b"null", b"[]", b"{}"}

_TOTAL: Final = ("total", "total_count")
_LAST: Final = ("last_page", "total_pages", "page_count", "pages")
_SIZE: Final = ("per_page", "page_size")
_PAGE: Final = ("current_page", "page")
_TO: Final = ("to",)
_NEXT: Final = ("next_page_url", "next")
_NESTED_KEYS: Final = ("meta", "pagination", "paging", "links")
_MAX_NESTING: Final = 2
_MAX_DIGITS: Final = 18
_PAGINATION_KEYS: Final = (*_TOTAL, *_LAST, *_SIZE, *_PAGE, *_TO, *_NEXT, *_NESTED_KEYS)


class Response(NamedTuple):
    """One answer: status, headers, and the complete decoded body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def header(self, name: str) -> str | None:
        """Return a header's value; upper and lower case are equal."""
        return next((value for key, value in self.headers.items() if key.lower() == name.lower()), None)


class Document(msgspec.Struct, frozen=True):
    """A file as the service sent it, with its exact bytes; `updated_at` is in microseconds UTC."""

    id: int | None
    instance_id: int | None
    updated_at: int | None
    raw: bytes


class ListItem(Document, frozen=True):
    """One entry of a list. `id` is None if it is not an exact integer."""


class ListPage(Struct, frozen=True):
    """One answer to `GET /files`. `total` is None without a usable one.

    `has_next` is None without any hint at a next page. `has_next_link` is by the link to it alone, for services whose
    counts are wrong.
    """

    items: tuple[ListItem, ...]
    total: int | None
    has_next: bool | None
    has_next_link: bool | None

    def without_counts(self) -> Self:
        """Return the page without the counts of a service whose counts are wrong."""
        return replace(self, total=None, has_next=self.has_next_link)


class Detail(Document, frozen=True):
    """One answer to `GET /files/{id}`, without the `data` object around it."""

    id: int


class NotFound(Struct, frozen=True):
    """The service does not have the file. `evidence` is its answer in short."""

    evidence: str


class Share(Struct, frozen=True):
    """A share link that was created. Its URL grants access: keep it out of logs."""

    url: str
    status: str


class ReportOrder(Struct, frozen=True):
    """A report that was ordered, and its future URL. The URL grants access: keep it out of logs."""

    url: str


class _Identity(msgspec.Struct):
    """Identity fields as decoded values of any type; `id` is UNSET if it is absent."""

    id: Any = msgspec.UNSET
    file_id: Any = None
    updated_at: Any = None
    data: msgspec.Raw = _ABSENT

    def parse(self) -> tuple[int | None, int | None, int | None]:
        """Return id, instance id and timestamp in microseconds; None for an unusable one."""
        return _to_id(self.id), _to_id(self.file_id), _to_instant(self.updated_at)


_decode_identity: Final = msgspec.json.Decoder(_Identity, float_hook=JsonNumber).decode
_decode_items: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_PageBody: Final = msgspec.defstruct(
    "_PageBody",
    [
        ("data", list[msgspec.Raw] | None, None),
        *((name, msgspec.Raw, _ABSENT) for name in dict.fromkeys((*_PAGINATION_KEYS, *ERROR_BODY_KEYS))),
    ],
)
_decode_page_body: Final = msgspec.json.Decoder(_PageBody).decode


def parse_list(response: Response, requested_page: int = 1) -> ListPage:
    """Return the page in an answer to `GET /files`.

    Raises `AttemptError`, `ThrottledError`, `AuthenticationError` or `ProtocolError`.
    """
    label = "GET /files"
    raise_for_status(response, label)
    if 400 <= response.status < 500:
        raise ProtocolError(f"{label}: {describe_status(response.status, response.body)}.")
    if response.status != 200:
        raise _status_error(response)
    _check_item_count(response.body)
    members, data = _split_page(response.body)
    error_body = parse_error_body(members)
    is_list = isinstance(data, list) or data[:1] == b"["
    if not is_list or error_body.is_error:
        _raise_for_error_body(error_body, label)
        if not is_list:
            raise AttemptError("shape", "a list without `data`", status=response.status, is_protocol_error=True)
        raise AttemptError("error-body", f"an error in a 200: {error_body.text}", status=response.status)
    items = tuple(map(_parse_list_item, data if isinstance(data, list) else _split_list(data)))
    hints = {key: decode_value(raw) for key, raw in members.items() if key in _PAGINATION_KEYS}
    return _read_page(hints, items, requested_page)


def _read_page(members: Mapping[str, Any], items: tuple[ListItem, ...], requested_page: int) -> ListPage:
    """Return a page with the counts beside `data`, or in an object beside `data`, in their usual spellings.

    The interface does not define these names; the field notes list the usual ones. No link is followed: it only shows
    whether there is a next page.
    """
    objects = list(_candidate_objects(members))
    total, last, size, page, to = (_number(objects, names) for names in (_TOTAL, _LAST, _SIZE, _PAGE, _TO))
    current = page or requested_page
    if total is None and size == 1:
        total = last if items or last != 1 else 0  # a page for each file
    listed = _items_up_to_page(len(items), current, size, to)
    link = _has_next_link(objects)
    if items and (last == 0 or (total is not None and total < listed)):
        # Counts below the page show no end of the list, nor does a link that is null beside them.
        total, last, link = None, None, link or None
    if last is not None and last < current and items:
        last = None
    hints = [link]
    if last is not None:
        hints.append(current < last)
    # Without a page size it is unknown how many files the pages before had.
    if total is not None and (current == 1 or size is not None or to is not None):
        hints.append(total > listed)
    known_hints = [hint for hint in hints if hint is not None]
    has_next = any(known_hints) if known_hints else None
    return ListPage(items, total, has_next, link)


def _candidate_objects(members: Mapping[str, Any], depth: int = 0) -> list[Mapping[str, Any]]:
    objects = [members]
    for name in _NESTED_KEYS:
        nested = members.get(name)
        if isinstance(nested, Mapping) and depth < _MAX_NESTING:
            objects += _candidate_objects(nested, depth + 1)
    return objects


def _number(objects: list[Mapping[str, Any]], names: tuple[str, ...]) -> int | None:
    for members in objects:
        for name in names:
            value = members.get(name)
            if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
                value = int(value.strip()[:_MAX_DIGITS])
            elif isinstance(value, float) and value.is_integer():
                value = int(value)
            if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
                return value
    return None


def _has_next_link(objects: list[Mapping[str, Any]]) -> bool | None:
    """Return whether there is a link to a next page, None if nothing names one. The link's text is not used."""
    has_link: bool | None = None
    for members in objects:
        for name in _NEXT:
            if name in members:
                has_link = has_link or _is_link(members[name])
        links = members.get("links")
        for link in links if isinstance(links, list) else ():
            if isinstance(link, Mapping) and "next" in str(link.get("label", "")).lower():
                has_link = has_link or _is_link(link.get("url"))
    return has_link


def _is_link(link: object) -> bool:
    return bool(link.strip()) if isinstance(link, str) else bool(link)


def _items_up_to_page(items: int, page: int, size: int | None, to: int | None) -> int:
    """Return how many of the total were listed up to and with this page."""
    if size is not None:
        return (max(page, 1) - 1) * size + items
    return to if to is not None and page > 1 else items


def parse_detail(response: Response, file_id: int) -> Detail | NotFound:
    """Return the file in an answer to `GET /files/{id}`, or `NotFound`.

    Raises `AttemptError`, `ThrottledError` or `AuthenticationError`. An id other than `file_id` is an error, unless
    `file_id` is the instance id of the file in the answer.
    """
    label = "GET /files/{id}"
    if response.status in {404, 410}:
        return NotFound(str(response.status))
    raise_for_status(response, label)
    if 400 <= response.status < 500:
        # One bad file must not stop the run. If every file fails like this, the crawl detects the outage.
        raise _status_error(response, retryable=False)
    if response.status == 204:
        return NotFound("204")
    if response.status != 200:
        raise _status_error(response)
    body = response.body.strip()
    if (empty := _empty_value(body)) is not None:
        return NotFound(empty or "empty body")
    return _parse_file(body, file_id, label)


def _parse_file(body: bytes, file_id: int, label: str) -> Detail | NotFound:
    identity = _read_identity(body)
    if identity is not None and identity.id is msgspec.UNSET and (data := bytes(identity.data).strip()):
        if _empty_value(data) is None:
            body = data
            identity = _read_identity(body)
        elif not parse_error_body(_split_members(body)).has_content:
            return NotFound(f"data: {_empty_value(data)}")
    if body[:1] == b"[":
        elements = _split_list(body)
        if len(elements) != 1:
            raise AttemptError("shape", "a list instead of one file", is_protocol_error=True)
        body = elements[0]
        identity = _read_identity(body)
    if identity is None:
        raise AttemptError("shape", "an answer that is neither a file nor empty", is_protocol_error=True)
    number, instance_id, updated_at = identity.parse()
    if number is None:
        return _parse_without_id(body, label)
    if file_id not in {number, instance_id}:
        raise AttemptError("other-file", "another file than the requested one", is_protocol_error=True)
    return Detail(number, instance_id, updated_at, bytes(body))


def _empty_value(raw: bytes) -> str | None:
    """Return an empty value without its blanks, None if the value is not empty."""
    if len(raw) > _MAX_EMPTY_BODY_BYTES:
        return None
    stripped = b"".join(raw.removeprefix(_BOM).split())
    return stripped.decode() if stripped in _EMPTY_VALUES else None


def _parse_without_id(body: bytes, label: str) -> NotFound:
    members = _split_members(body)
    error_body = parse_error_body(members)
    if not error_body.has_content or _FILE_KEYS & members.keys():
        raise AttemptError("shape", "a file without an id", is_protocol_error=True)
    _raise_for_error_body(error_body, label)
    return NotFound("error body")


def parse_share(response: Response) -> Share:
    """Return the link in an answer to `GET /share`. Raises `RequestRejectedError` with the service's reason."""
    return Share(*_parse_created_url(response, "GET /share", key="share_url"))


def parse_report_order(response: Response) -> ReportOrder:
    """Return the URL in an answer to `POST /reports`; 200, 201 and 202 are equal."""
    return ReportOrder(_parse_created_url(response, "POST /reports", key="url")[0])


def _parse_created_url(response: Response, label: str, *, key: str) -> tuple[str, str]:
    """Return the URL of what a call has created, and the service's text."""
    status = response.status
    if status in {401, 403, 429, 503} or 300 <= status < 400:
        raise_for_status(response, label)
    if status >= 500 or status in {408, 425}:
        raise _status_error(response)
    try:
        members = dict(split_members(response.body))
    except InvalidJsonError:
        members = {}
        if status < 300:
            raise AttemptError("json", "an answer that is not JSON", status=status) from None
    if (nested := members.get("data", b""))[:1] == b"{":
        members |= dict(split_members(nested))
    error_body, url = parse_error_body(members), decode_value(members.get(key, b""))
    if status < 300 and isinstance(url, str) and url and not error_body.is_error:
        return url, error_body.text
    if error_body.is_error or status >= 400:
        reason = error_body.text or f"HTTP {status}"
        if status < 300 and key == "url" and error_body.category != "token":  # the report may be made all the same
            raise AttemptError("error-body", f"an error in a {status}: {reason}", status=status)
        _raise_for_error_body(error_body, label)
        raise RequestRejectedError(f"{label} was rejected: {reason}.", status=status, reason=reason)
    raise AttemptError("shape", "an answer without its URL", status=status)


def raise_for_status(response: Response, label: str) -> None:
    """Raise for the statuses that mean the same for every call: redirects, authentication, limits."""
    status = response.status
    if status in {401, 403}:
        raise _authentication_error(label, describe_status(status, response.body))
    if status in {429, 503}:
        retry_after = parse_retry_after(response.header("Retry-After"), date=response.header("Date"))
        if retry_after is None:
            retry_after = parse_stated_pause(response.header)
        raise ThrottledError(status, retry_after, describe_status(status, response.body))
    if 300 <= status < 400:
        if _SIGN_IN.search(response.header("Location") or ""):
            raise AuthenticationError(f"{label}: redirected to a sign-in page.")
        hint = "Check base_url: the service may have moved, or may need https."
        raise ProtocolError(f"{label}: redirected (HTTP {status}) to another address.", hint=hint)
    if status in {408, 425}:
        raise _status_error(response)


def _raise_for_error_body(error_body: ErrorBody, label: str) -> None:
    """Raise if the text of an error body means more than "not found"."""
    if error_body.category == "token":
        raise _authentication_error(label, error_body.text)
    if error_body.category == "limit":
        raise ThrottledError(429, None, error_body.text)
    if error_body.category == "temporary":
        raise AttemptError("error-body", f"an error in a 200: {error_body.text}")


def _authentication_error(label: str, reason: str) -> AuthenticationError:
    return AuthenticationError(f"{label}: the service refused the token ({reason}).")


def _status_error(response: Response, *, retryable: bool = True) -> AttemptError:
    status, detail = response.status, describe_status(response.status, response.body)
    # Only a 200 answers with content: what a proxy made of an answer, or a part of it, does not show the service.
    is_odd = status < 300
    return AttemptError(f"status-{status}", detail, status=status, retryable=retryable, is_protocol_error=is_odd)


class _Element:
    """An element of `data`, of any type."""


class _CountedBody(Struct):
    data: list[_Element]


def _check_item_count(body: bytes) -> None:
    """Raise `AttemptError` for a page with far more items than its limit, before each of them takes memory.

    22 MiB of empty objects took 2 GB. The elements of a large body are decoded one by one until there are too many.
    """
    if body.count(b",") < _UNCOUNTED_COMMAS:
        return
    numbers = itertools.count(1)

    def count(_type: type, _element: object) -> _Element:
        if next(numbers) > _MAX_PAGE_ITEMS:
            raise AttemptError("size", f"a page of more than {_MAX_PAGE_ITEMS:,} items", retryable=False)
        return _Element()

    try:
        msgspec.json.decode(body, type=_CountedBody | list[_Element], dec_hook=count)
    except (msgspec.MsgspecError, RecursionError):  # smaller pages show what it has
        raise AttemptError("size", "a large page whose items cannot be counted", retryable=False) from None


def _split_page(body: bytes) -> tuple[dict[str, bytes], list[bytes] | bytes]:
    """Return the known members of a list's object as bytes, and its `data`: as a list of elements if possible."""
    try:
        page_body = _decode_page_body(body)
    except (msgspec.MsgspecError, RecursionError):
        members = _split_members(body)
        return members, members.pop("data", b"")
    members = {name: raw for name in _PageBody.__struct_fields__[1:] if (raw := bytes(getattr(page_body, name)))}
    data = getattr(page_body, "data")  # noqa: B009 - the type checker does not know defstruct's fields
    return members, b"" if data is None else [bytes(raw) for raw in data]


def _split_members(body: bytes) -> dict[str, bytes]:
    try:
        if body.removeprefix(_BOM).strip()[:1] == b"{":
            return dict(split_members(body))
        decode_json(body)
    except InvalidJsonError:
        if body.lstrip()[:1] == b"<":
            raise AttemptError("html", "an HTML page") from None
        raise AttemptError("json", "JSON that is truncated or invalid") from None
    return {}


def _split_list(data: bytes) -> list[bytes]:
    try:
        return [bytes(raw) for raw in _decode_items(data)]
    except (msgspec.MsgspecError, RecursionError):
        try:
            return [raw for _, raw in split_members(data)]
        except InvalidJsonError:
            raise AttemptError("json", "JSON that is truncated or invalid") from None


def _read_identity(raw: bytes) -> _Identity | None:
    """Return the identity fields of a file's object, None if it is not an object."""
    try:
        return _decode_identity(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        members = _split_members(raw)
        if raw.removeprefix(_BOM).lstrip()[:1] != b"{":
            return None
        data = msgspec.Raw(members.pop("data", b""))
        return _Identity(**{name: decode_value(members[name]) for name in _IDENTITY_KEYS & members.keys()}, data=data)


def _parse_list_item(raw: bytes) -> ListItem:
    try:
        identity = _read_identity(raw)
    except AttemptError:
        identity = None
    if identity is None:
        return ListItem(None, None, None, raw)
    return ListItem(*identity.parse(), raw)


def _to_id(value: object) -> int | None:
    if value is None or (type(value) is int and abs(value) <= _MAX_USUAL_ID):
        return value
    number: int | None = ID.convert_or_none(value)
    return number


def _to_instant(value: object) -> int | None:
    if type(value) is str and len(value) <= _MAX_INSTANT_CHARS:
        return parse_instant_cached(value)
    instant: int | None = INSTANT.convert_or_none(value)
    return instant
