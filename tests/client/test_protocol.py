"""What answers and their headers mean, tested with bytes only."""

from __future__ import annotations

import json
from contextlib import suppress
from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.clock import MAX_AHEAD_SECONDS, ServiceClock, parse_retry_after
from pipeline.client.error_bodies import describe_status
from pipeline.client.errors import AttemptError, RequestRejectedError, ThrottledError
from pipeline.client.protocol import (
    Detail,
    ListItem,
    NotFound,
    Response,
    parse_detail,
    parse_list,
    parse_report_order,
    parse_share,
)
from pipeline.errors import AuthenticationError, ProtocolError
from schemas.timestamps import SECOND
from tests.rows import every

MICROS = 1_704_067_200_000_000
TEXTS = {"Unauthenticated.": AuthenticationError, "Too Many Attempts.": ThrottledError, "Server Error": AttemptError}
NOTHING: tuple[Any, ...] = (None, [], {})


def reply(body: object = b"", status: int = 200, **headers: str) -> Response:
    """Return a response; a body that is not bytes is encoded as JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Response(status, {name.replace("_", "-"): value for name, value in headers.items()}, raw)


def test_items_keep_their_exact_bytes() -> None:
    """An item's raw bytes are exactly those of the answer, with spaces and digits, whether or not it is an object."""
    raws = [b'{"id": 7 , "x": 1.10}', b'{"updated_at":"2024-01-01T00:00:00Z","id":8}', b"1", b'[{"id":3}]', b"null"]
    page = parse_list(reply(b'\xef\xbb\xbf{"data": [ ' + b",".join(raws) + b"]}"))
    assert [item.raw for item in page.items] == raws
    assert [(item.id, item.updated_at) for item in page.items] == [(7, None), (8, MICROS), *[(None, None)] * 3]


def test_a_document_becomes_a_typed_object() -> None:
    """A user of the client gets typed objects; a value of another type is named by its key, never shown."""
    page = parse_list(
        reply(b'{"data":[{"id":"7","closed":1,"uploads":[{"id":5}]},{"id":8,"uploads":[{"id":"s3cr3t"}]}]}')
    )
    file = page.items[0].to_model()
    assert (file.id, file.closed, file.uploads[0].id) == (7, True, 5)
    with pytest.raises(ProtocolError, match=r"uploads\.0\.id") as raised:
        page.items[1].to_model()
    assert "s3cr3t" not in str(raised.value)
    for raw in (b"5", b'{"id":1,"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}"):
        with pytest.raises(ProtocolError):
            ListItem(None, None, None, raw).to_model()


@every(
    ("given_id", "expected_id"),
    [
        *((str(number), number) for number in (5, 2**63 - 1, 10**18 + 1)),
        *((f'"{number}"', number) for number in (5, 2**63 - 1)),
        *(("-0", 0), ('"\\u0035"', 5)),
        *((odd, None) for odd in ("9223372036854775808", "-9223372036854775809", "1" * 6000, "5.0", "5e0", "true")),
        *((odd, None) for odd in ('"007"', '"\u0665"', '" 5"', "null", "[5]")),
    ],
)
def test_ids_are_exact_or_none(given_id: str, expected_id: int | None) -> None:
    """An id is an exact integer or canonical text; anything else is None and never ends the page."""
    page = parse_list(reply(f'{{"data":[{{"id":{given_id}}},{{"id":2}}]}}'.encode()))
    assert [item.id for item in page.items] == [expected_id, 2]


@every(
    "odd",
    [
        b'{"id":1,"x":NaN,"updated_at":"2024-01-01T00:00:00Z"}',
        b'{"id":1,"x":"\\ud800","updated_at":"2024-01-01T00:00:00Z"}',
        b'{"id":1,"x":"\xff","updated_at":"2024-01-01T00:00:00Z"}',
        b'{"id":1,"file_id":"\xff","updated_at":"2024-01-01T00:00:00Z"}',
        b'{"id":1,"updated_at":"2024-01-01T00:00:00Z","x":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"i\\u0064":1,"x":[Infinity,-Infinity],"updated_at":"2024-01-01T00:00:00Z"}',
        b'{"id":1,"x":"brackets ]}[{ and \\" quotes","y":NaN,"updated_at":"2024-01-01T00:00:00Z"}',
    ],
)
def test_one_odd_document_does_not_cost_its_page(odd: bytes) -> None:
    """An element that strict JSON rejects is extracted exactly, with its id, its neighbours and the page counts."""
    page = parse_list(reply(b'{"data":[{"id":0},' + odd + b',{"id":2}],"total":"3"}'))
    assert [item.id for item in page.items] == [0, 1, 2]
    assert page.items[1].raw == odd
    assert page.items[1].updated_at == MICROS
    assert page.total == 3
    found = parse_detail(reply(odd), 1)
    assert found == Detail(1, None, MICROS, odd)


@every(
    ("body", "kind"),
    [
        (b"<!doctype html><p>maintenance", "html"),
        *(
            (body, "json")
            for body in (b"", b'{"data":[{"id":1},{"id":', b'{"data":[{"id":1}]', b'{"data":[{"id":1}]}x')
        ),
        *((b'{"data":[{"id":1%b]}' % rest, "json") for rest in (b'} {"id":2}', b',"x":NaN,"y":[1}}', b',"x":NaN')),
        *((b'{"data":%b}' % data, "shape") for data in (b"null", b"{}", b'"none"')),
        *((body, "shape") for body in (b"{}", b"[]", b"null")),
        (b'{"response":"error","status":"SOMETHING","data":[]}', "error-body"),
        (b'{"status":"error","reason":"broken","code":300,"data":[]}', "error-body"),
        (b'{"message":"Server Error"}', "error-body"),
    ],
)
def test_a_200_that_is_not_a_list_is_an_error(body: bytes, kind: str) -> None:
    """An HTML page, truncated JSON, or JSON without a `data` array is never an empty list."""
    with pytest.raises(AttemptError) as raised:
        parse_list(reply(body))
    assert raised.value.kind == kind
    assert raised.value.retryable
    assert raised.value.is_protocol_error == (kind == "shape")


def test_a_list_may_report_success() -> None:
    """A success text and empty errors beside the data are not an error."""
    body = {"data": [], "status": "success", "code": 200, "errors": [], "message": "ok"}
    assert parse_list(reply(body)).items == ()


@every("read", [parse_list, lambda answer: parse_detail(answer, 1), parse_share])
def test_statuses_mean_the_same_everywhere(read: object) -> None:
    """401 and 403 are authentication errors, 429 is a throttle, other redirects are protocol errors."""
    assert callable(read)
    for status in (401, 403):
        with pytest.raises(AuthenticationError):
            read(reply(b"", status))
    with pytest.raises(ThrottledError) as raised:
        read(reply(b"", 429, Retry_After="7"))
    assert raised.value.retry_after == 7
    with pytest.raises(ProtocolError):
        read(reply(b"", 302))
    with pytest.raises(AttemptError) as failed:
        read(reply(b"", 502))
    assert failed.value.retryable


@every(
    "answer",
    [
        *(reply(b"", status) for status in (404, 410, 204)),
        reply(b"<html>", 404),
        *(reply(body) for body in (b"", b" \r\n", b"null", b"[]", b"{}", b" [ ] ", b' { "data" :\n[ ]\t} ')),
        *(reply({"data": data}) for data in NOTHING),
        reply({"data": None, "status": "error", "reason": "NO FILE FOUND"}),
        reply({"status": "error", "reason": "no such file", "code": 300}),
        *(reply({**given, "response": "error", "status": "NO FILE FOUND"}) for given in ({}, {"id": None})),
        reply({"message": "No query results"}),
        reply({"code": 300}),
    ],
)
def test_every_form_of_not_found(answer: Response) -> None:
    """Every answer that means "not found" is recognized, and is the evidence."""
    found = parse_detail(answer, 5)
    assert isinstance(found, NotFound)
    assert found.evidence


@every(
    ("body", "expected"),
    [
        *(({"message": text}, error) for text, error in TEXTS.items()),
        *(
            ({"code": code, "reason": "x"}, error)
            for code, error in ((401, AuthenticationError), (" 403", AuthenticationError), (500, AttemptError))
        ),
        ({"status": "error", "reason": "Unauthorized"}, AuthenticationError),
        ({"data": None, "message": "Service temporarily unavailable"}, AttemptError),
    ],
)
def test_an_error_in_a_200_is_not_always_not_found(body: object, expected: type[Exception]) -> None:
    """An error text about the token, a limit or a temporary error is not "not found"."""
    with pytest.raises(expected):
        parse_detail(reply(body), 5)


@every(
    ("body", "kind"),
    [
        *((b"<html>", "html"), (b'{"id":5,"scan_code":"x', "json"), (b'{"id":5', "json")),
        *((body, "shape") for body in ({"scan_code": "x", "uploads": []}, {"id": "x"}, [{"id": 5}] * 2, b"5")),
        *((body, "other-file") for body in ({"id": 6}, {"data": {"id": 6}})),
    ],
)
def test_a_detail_that_is_not_a_file_is_an_error(body: object, kind: str) -> None:
    """An HTML page, truncated JSON, a file without an id or another file is an error."""
    with pytest.raises(AttemptError) as raised:
        parse_detail(reply(body), 5)
    assert raised.value.kind == kind


def test_a_detail_is_unwrapped() -> None:
    """The file is extracted from `data` or from a list of one, as its exact bytes; it may be named by its instance."""
    plain = b'{"id": 5, "file_id": "9", "updated_at": "2024-01-01T00:00:00Z"}'
    for body in (plain, b'{"data": ' + plain + b"}", b'{"data":[' + plain + b"]}", b"[" + plain + b"]"):
        for key in (5, 9):
            assert parse_detail(reply(body), key) == Detail(5, 9, MICROS, plain)
    marked = b"\xef\xbb\xbf" + plain
    assert parse_detail(reply(marked), 5) == Detail(5, 9, MICROS, marked)


def test_a_rejected_detail_is_not_retried() -> None:
    """A 4xx on one detail fails this file without a retry and does not stop the run."""
    with pytest.raises(AttemptError) as raised:
        parse_detail(reply(b"", 422), 5)
    assert not raised.value.retryable


def test_shares_and_orders() -> None:
    """A share returns its link, an order its URL, with any success status; rejections have the reason."""
    assert parse_share(reply({"response": "success", "status": "SHARE CREATED", "share_url": "https://s/1"})).url
    for status in (200, 201, 202):
        assert parse_report_order(reply({"url": "https://r/1"}, status)).url == "https://r/1"
    assert parse_report_order(reply({"data": {"url": "https://r/1"}}, 201)).url == "https://r/1"
    for status in (200, 404, 422):
        with pytest.raises(RequestRejectedError) as raised:
            parse_share(reply({"response": "error", "status": "NO FILE FOUND"}, status))
        assert raised.value.reason == "NO FILE FOUND"
    for answer in (reply(b"<html>"), reply({}), reply({"url": 5}, 201), reply(b"", 500)):
        with pytest.raises(AttemptError):
            parse_report_order(answer)


@every(
    ("body", "line"),
    [
        (
            {"message": "The given data was invalid.", "errors": {"limit": ["too large", "not a number"], "find": "x"}},
            "The given data was invalid. (limit: too large, not a number; find: x)",
        ),
        ({"errors": {"closed": "must be 0 or 1"}}, "closed: must be 0 or 1"),
        ({"errors": ["limit too large", "closed"]}, "limit too large; closed"),
        ({"errors": [{"field": "limit", "message": "too large"}]}, "field: limit, message: too large"),
        *(({"message": "no", "errors": errors}, "no") for errors in ("no", *NOTHING)),
        ({"status": "INVALID TIMEZONE", "response": "error"}, "INVALID TIMEZONE"),
        ({"message": "a\x1b[31mb", "errors": {"x\n": "y\u202ez"}}, "a [31mb (x : y z)"),
        ({"errors": {"settings": {"format": ["pdf only"]}}}, "settings: format: pdf only"),
        ({"errors": {"limit": ["x" * 500]}}, f"limit: {'x' * 290}..."),
        (
            {"message": "no", "errors": {f"p{number}": ["wrong"] for number in range(500)}},
            f"no ({'; '.join(f'p{number}: wrong' for number in range(10))})",
        ),
    ],
)
def test_a_message_quotes_the_parameters_that_the_service_names(body: Any, line: str) -> None:
    """The `errors` of the service follow its text: each parameter with what is wrong, on one line that is not long."""
    assert describe_status(422, json.dumps(body).encode()) == f"HTTP 422: {line}"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_json_is_a_value_or_a_known_error(body: object) -> None:
    """No JSON document causes an unexpected error."""
    for read in (parse_list, lambda answer: parse_detail(answer, 5), parse_share, parse_report_order):
        with suppress(AttemptError, AuthenticationError, ProtocolError, RequestRejectedError):
            read(reply(body))


NOW = 1_800_000_000


def date(seconds: float) -> str:
    """Return an HTTP date."""
    return formatdate(seconds, usegmt=True)


@every(
    ("text", "seconds"),
    [
        *((text, None) for text in (None, "", "abc", "-5", "nan", "inf", "\u0665", "Fri, 99 Foo 2099 00:00:00 GMT")),
        *(("5", 5.0), (" 5 ", 5.0), ("0", 0.0), ("1.5", 1.5), ("1000000000", 1e9), ("9" * 400, 1e12)),
        *((date(NOW + 90), 90.0), (date(NOW - 90), 0.0)),
    ],
)
def test_retry_after(text: str | None, seconds: float | None) -> None:
    """Seconds and dates are read, past dates are 0, invalid values are None."""
    assert parse_retry_after(text, date=date(NOW)) == seconds  # by the response's own date, not by a clock of ours


@given(st.text(max_size=70))
def test_retry_after_never_fails(text: str) -> None:
    """Any text gives a number that is not negative, or None."""
    found = parse_retry_after(text, date=text)
    assert found is None or found >= 0


class Ticking(ServiceClock):
    """A clock on a machine that shows NOW at its monotonic zero."""

    def __init__(self) -> None:
        self.ticks = 0.0
        super().__init__(lambda: self.ticks, lambda: int((NOW + self.ticks) * SECOND))


def test_the_clock_advances() -> None:
    """Without any `Date` the time is unknown; after one it advances with the monotonic clock."""
    clock = Ticking()
    for nothing in (None, "yesterday", "Mon, 01 Jan 99999 00:00:00 GMT"):
        clock.observe(nothing)
        assert clock.now() is None
    clock.observe(date(NOW))
    clock.ticks = 7.5
    assert clock.now() == NOW * SECOND + 7_500_000


def test_one_wrong_date_is_ignored() -> None:
    """A single response from 1970 or 2099 does not change the clock."""
    clock = Ticking()
    for second in range(10):
        clock.ticks = float(second)
        clock.observe(date(0 if second == 4 else 4_000_000_000 if second == 7 else NOW + second))
        assert clock.now() == (NOW + second) * SECOND


@every("ahead", [1_200, 86_400, 7_900 * 365 * 86_400])
def test_a_date_in_the_future_is_not_believed(ahead: int) -> None:
    """However far ahead a `Date` is, the clock is at most five minutes ahead of this machine's, and says how far."""
    clock = Ticking()
    clock.observe(date(min(NOW + ahead, 253_402_300_799)))
    assert clock.now() == (NOW + MAX_AHEAD_SECONDS) * SECOND
    assert (clock.seconds_ahead or 0) > 1_000


def test_the_past_is_told_again_with_later_dates() -> None:
    """The time at an earlier moment follows from all dates so far: one early lie is corrected by later answers."""
    clock = Ticking()
    clock.observe(date(NOW + 250))
    assert clock.at(0.0) == (NOW + 250) * SECOND
    for second in (1, 2, 3):
        clock.ticks = float(second)
        clock.observe(date(NOW + second))
    assert clock.at(0.0) == NOW * SECOND
