"""What the service's answers mean: a pure function from a reply to a value or an error, no sockets.

An answer is a value, *gone*, a `Fault` (repeat), `TokenRefused` or `ContractBroken`. A 200 proves nothing
by itself: its body is looked into (HTML pages, cut JSON and error envelopes come with a 200 as well).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from pipeline.errors import ContractBroken, TokenRefused
from pipeline.service.clock import read_retry_after
from pipeline.service.envelopes import ENVELOPE_KEYS, Envelope, look_into, say
from pipeline.service.faults import Fault, RequestRefused, Throttled
from pipeline.service.paging import HINTS, read_paging
from pipeline.service.slices import Uncut, members
from schemas.documents import Unreadable, read_json
from schemas.instants import parse_instant
from schemas.kinds import ID, INSTANT, Misfit

if TYPE_CHECKING:
    from collections.abc import Mapping

_CANONICAL: Final = re.compile(rb'"?(0|-?[1-9]\d{0,17})"?')
_NOTHING: Final = msgspec.Raw(b"")
_BLANKS: Final = 1_000
_FILE_KEYS: Final = {"scan_code", "created_at", "updated_at", "uploads", "form_submits"}
_EMPTY: Final = {b"", b"null", b"[]", b"{}"}


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer: status, headers (looked up in any case), and the whole body, decompressed."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def header(self, name: str) -> str | None:
        """The header's value, in whichever case its name came."""
        wanted = name.lower()
        return next((value for key, value in self.headers.items() if key.lower() == wanted), None)


@dataclass(frozen=True, slots=True)
class ListItem:
    """One entry of a list. `id` is None where it is no exact integer; `updated` is in microseconds UTC."""

    id: int | None
    instance: int | None
    updated: int | None
    raw: bytes


@dataclass(frozen=True, slots=True)
class ListPage:
    """One answer to `GET /files`. `more` is None when the service gave no hint whether there is more."""

    items: tuple[ListItem, ...]
    total: int | None
    last_page: int | None
    per_page: int | None
    more: bool | None
    page: int | None


@dataclass(frozen=True, slots=True)
class Detail:
    """One answer to `GET /files/{id}`: the file's exact bytes, taken out of `data` if it was wrapped."""

    id: int
    instance: int | None
    updated: int | None
    raw: bytes


@dataclass(frozen=True, slots=True)
class Gone:
    """The service has no such file. `witness` says how it said so."""

    witness: str


@dataclass(frozen=True, slots=True)
class Share:
    """A share link that was created. The URL is a capability: keep it out of logs."""

    url: str
    status: str


@dataclass(frozen=True, slots=True)
class ReportOrder:
    """A report that was ordered, and where it will appear. The URL is a capability: keep it out of logs."""

    url: str


class _Peek(msgspec.Struct):
    id: msgspec.Raw = _NOTHING
    file_id: msgspec.Raw = _NOTHING
    updated_at: msgspec.Raw = _NOTHING
    data: msgspec.Raw = _NOTHING


_Id = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Plain(msgspec.Struct):
    """What tells a file, as nearly every service sends it. Whatever does not fit takes the way of `_Peek`."""

    id: _Id
    file_id: _Id | None = None
    updated_at: str | None = None

    @property
    def updated(self) -> int | None:
        """The stamp, microseconds."""
        return None if self.updated_at is None else parse_instant(self.updated_at)


_peek: Final = msgspec.json.Decoder(_Peek).decode
_plain: Final = msgspec.json.Decoder(_Plain).decode
_items: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_Envelope: Final = msgspec.defstruct(
    "_Envelope",
    [
        ("data", list[msgspec.Raw] | None, None),
        *((name, msgspec.Raw, _NOTHING) for name in dict.fromkeys((*HINTS, *ENVELOPE_KEYS))),
    ],
)
_envelope: Final = msgspec.json.Decoder(_Envelope).decode


def read_list(reply: Reply, asked: int = 1) -> ListPage:
    """The page of an answer to `GET /files`; `asked` is the number of the page that was asked for.

    Raises `Fault`, `Throttled`, `TokenRefused` or `ContractBroken`.
    """
    what = "GET /files"
    refuse_status(reply, what)
    if 400 <= reply.status < 500:
        raise ContractBroken(f"{what}: {say(reply.status, reply.body)}")
    if reply.status not in {200, 203}:
        raise Fault(f"status-{reply.status}", say(reply.status, reply.body), status=reply.status)
    given, data = _page_of(reply.body)
    envelope = look_into(given)
    is_list = isinstance(data, list) or data[:1] == b"["
    if not is_list or envelope.failed:
        _refuse_envelope(envelope, what)
        if not is_list:
            raise Fault("shape", "a list without `data`", status=reply.status, contract=True)
        raise Fault("envelope", f"an error in a 200: {envelope.text}", status=reply.status)
    items = tuple(map(_list_item, data if isinstance(data, list) else _elements(data)))
    hints = {key: _value(raw) for key, raw in given.items() if key in HINTS}
    paging = read_paging(hints, items=len(items), asked=asked)
    return ListPage(items, paging.total, paging.last_page, paging.per_page, paging.more, paging.page)


def read_detail(reply: Reply, file_id: int) -> Detail | Gone:
    """The file of an answer to `GET /files/{id}`, or that it is gone.

    Raises `Fault`, `Throttled` or `TokenRefused`. An id other than the one asked for is a fault, unless
    the asked one is the instance (`file_id`) of the file that came.
    """
    what = "GET /files/{id}"
    if reply.status in {404, 410}:
        return Gone(str(reply.status))
    refuse_status(reply, what)
    if 400 <= reply.status < 500:
        # One odd file must not stop the run; if every file fails so, nothing succeeds, and that does.
        raise Fault(f"status-{reply.status}", say(reply.status, reply.body), status=reply.status, again=False)
    if reply.status == 204:
        return Gone("204")
    if reply.status not in {200, 203}:
        raise Fault(f"status-{reply.status}", say(reply.status, reply.body), status=reply.status)
    body = reply.body.strip()
    if (nothing := _nothing(body)) is not None:
        return Gone(nothing or "empty body")
    return _read_file(body, file_id, what)


def _read_file(body: bytes, file_id: int, what: str) -> Detail | Gone:
    try:
        plain = _plain(body)
    except (msgspec.MsgspecError, RecursionError):
        pass
    else:
        if file_id in {plain.id, plain.file_id}:
            return Detail(plain.id, plain.file_id, plain.updated, body)
    peek = _peek_into(body)
    if peek is not None and not bytes(peek.id) and (data := bytes(peek.data).strip()):
        if _nothing(data) is None:
            body = data
            peek = _peek_into(body)
        elif not _envelope_of(body).spoke:
            return Gone(f"data: {_nothing(data)}")
    if body[:1] == b"[":
        elements = _elements(body)
        if len(elements) != 1:
            raise Fault("shape", "a list where one file belongs", contract=True)
        body = elements[0]
        peek = _peek_into(body)
    if peek is None:
        raise Fault("shape", "neither a file nor nothing", contract=True)
    number = _id_of(bytes(peek.id))
    instance = _id_of(bytes(peek.file_id))
    if number is None:
        return _without_id(body, what)
    if file_id not in {number, instance}:
        raise Fault("other-file", "another file than the one asked for", contract=True)
    return Detail(number, instance, _instant_of(bytes(peek.updated_at)), bytes(body))


def _nothing(raw: bytes) -> str | None:
    """An empty value without its blanks, or None when there is something."""
    if len(raw) > _BLANKS:
        return None
    bare = b"".join(raw.removeprefix(b"\xef\xbb\xbf").split())
    return bare.decode() if bare in _EMPTY else None


def _without_id(body: bytes, what: str) -> Gone:
    given = _cut(body)
    envelope = look_into(given)
    if not envelope.spoke or _FILE_KEYS & given.keys():
        raise Fault("shape", "a file without an id", contract=True)
    _refuse_envelope(envelope, what)
    return Gone("error envelope")


def read_share(reply: Reply) -> Share:
    """The link of an answer to `GET /share`. Raises `RequestRefused` with the service's reason."""
    envelope, given = _read_answer(reply, "GET /share")
    url = _text(given.get("share_url"))
    if reply.status >= 300 or url is None or envelope.failed:
        _refuse_answer(reply, envelope, "GET /share")
    return Share(url or "", envelope.text)


def read_report_order(reply: Reply) -> ReportOrder:
    """The URL of an answer to `POST /reports`: 200, 201 and 202 are all the same."""
    envelope, given = _read_answer(reply, "POST /reports")
    url = _text(given.get("url"))
    if reply.status >= 300 or url is None or envelope.failed:
        _refuse_answer(reply, envelope, "POST /reports")
    return ReportOrder(url or "")


def _read_answer(reply: Reply, what: str) -> tuple[Envelope, dict[str, bytes]]:
    if reply.status in {401, 403, 429} or 300 <= reply.status < 400:
        refuse_status(reply, what)
    if reply.status >= 500 or reply.status in {408, 425}:
        raise Fault(f"status-{reply.status}", say(reply.status, reply.body), status=reply.status)
    try:
        given = dict(members(reply.body))
    except Uncut:
        given = {}
        if reply.status < 300:
            raise Fault("json", "an answer that is no JSON", status=reply.status) from None
    if isinstance(nested := given.get("data"), bytes) and nested[:1] == b"{":
        given |= dict(members(nested))
    return look_into(given), given


def _refuse_answer(reply: Reply, envelope: Envelope, what: str) -> None:
    if envelope.failed or reply.status >= 400:
        _refuse_envelope(envelope, what)
        reason = envelope.text or f"HTTP {reply.status}"
        raise RequestRefused(f"{what} was refused: {reason}", status=reply.status, reason=reason)
    raise Fault("shape", "an answer without its URL", status=reply.status)


def refuse_status(reply: Reply, what: str) -> None:
    """Raise what a status means wherever it comes: redirects, a refused token, limits."""
    status = reply.status
    if status in {401, 403}:
        raise TokenRefused(f"{what}: the service refused the token ({say(status, reply.body)})")
    if status in {429, 503}:
        told = read_retry_after(reply.header("Retry-After"), date=reply.header("Date"))
        raise Throttled(status, told, say(status, reply.body))
    if 300 <= status < 400:
        raise ContractBroken(f"{what}: redirected (HTTP {status}), and not to the service itself")
    if status in {408, 425}:
        raise Fault(f"status-{status}", say(status, reply.body), status=status)


def _refuse_envelope(envelope: Envelope, what: str) -> None:
    """Raise what the text of an error in a 200 means, where it means more than 'nothing here'."""
    if envelope.means == "token":
        raise TokenRefused(f"{what}: the service refused the token ({envelope.text})")
    if envelope.means == "limit":
        raise Throttled(429, None, envelope.text)
    if envelope.means == "trouble":
        raise Fault("envelope", f"an error in a 200: {envelope.text}")


def _page_of(body: bytes) -> tuple[dict[str, bytes], list[bytes] | bytes]:
    """The members of a list's object that matter, as bytes, and its `data`: cut into its elements where it can be."""
    try:
        found = _envelope(body)
    except (msgspec.MsgspecError, RecursionError):
        given = _cut(body)
        return given, given.pop("data", b"")
    names = _Envelope.__struct_fields__[1:]
    given = {name: raw for name in names if (raw := bytes(getattr(found, name)))}
    data = getattr(found, "data")  # noqa: B009 - the type checker knows no made structs
    return given, b"" if data is None else [bytes(raw) for raw in data]


def _cut(body: bytes) -> dict[str, bytes]:
    try:
        if body.removeprefix(b"\xef\xbb\xbf").strip()[:1] == b"{":
            return dict(members(body))
        read_json(body)
    except (Uncut, Unreadable):
        kind = "html" if body.lstrip()[:1] == b"<" else "json"
        raise Fault(kind, "an HTML page" if kind == "html" else "JSON that is cut or broken") from None
    return {}


def _elements(data: bytes) -> list[bytes]:
    try:
        return [bytes(raw) for raw in _items(data)]
    except (msgspec.MsgspecError, RecursionError):
        try:
            return [raw for _, raw in members(data)]
        except Uncut:
            raise Fault("json", "JSON that is cut or broken") from None


def _peek_into(raw: bytes) -> _Peek | None:
    """The identifying members of a file's object, or None when it is no object."""
    try:
        return _peek(raw)
    except (msgspec.MsgspecError, RecursionError):
        given = _cut(raw)
        if raw.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] != b"{":
            return None
        return _Peek(*(msgspec.Raw(given.get(name, b"")) for name in _Peek.__struct_fields__))


def _list_item(raw: bytes) -> ListItem:
    try:
        plain = _plain(raw)
    except (msgspec.MsgspecError, RecursionError):
        pass
    else:
        return ListItem(plain.id, plain.file_id, plain.updated, raw)
    try:
        peek = _peek_into(raw)
    except Fault:
        peek = None
    if peek is None:
        return ListItem(None, None, None, raw)
    return ListItem(_id_of(bytes(peek.id)), _id_of(bytes(peek.file_id)), _instant_of(bytes(peek.updated_at)), raw)


def _envelope_of(body: bytes) -> Envelope:
    return look_into(_cut(body))


def _value(raw: bytes) -> object:
    try:
        return read_json(raw) if raw else None
    except Unreadable:
        return None


def _text(raw: bytes | None) -> str | None:
    value = _value(raw or b"")
    return value if isinstance(value, str) and value else None


def _id_of(raw: bytes) -> int | None:
    found = _CANONICAL.fullmatch(raw)
    if found is not None:
        return int(found[1])
    try:
        judged = ID.judge(_value(raw))
    except Misfit:
        return None
    return judged if isinstance(judged, int) else None


def _instant_of(raw: bytes) -> int | None:
    if raw[:1] == b'"' and b"\\" not in raw and raw.isascii():
        return parse_instant(raw[1:-1].decode())
    try:
        judged = INSTANT.judge(_value(raw))
    except Misfit:
        return None
    return judged if isinstance(judged, int) else None
