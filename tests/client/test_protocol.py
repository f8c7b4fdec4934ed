"""What answers mean, tested with bytes only."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from tests.rows import every

STAMP = "2024-01-01T00:00:00Z"
MICROS = 1_704_067_200_000_000


def reply(body: object = b"", status: int = 200, **headers: str) -> Response:
    """Return a response; a body that is not bytes is encoded as JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Response(status, {name.replace("_", "-"): value for name, value in headers.items()}, raw)


def test_items_keep_their_exact_bytes() -> None:
    """An item's raw bytes are exactly those of the answer, with spaces and digits."""
    page = parse_list(reply(b'{"data": [ {"id": 7 , "x": 1.10}, {"updated_at":"2024-01-01T00:00:00Z","id":8} ]}'))
    assert [item.raw for item in page.items] == [
        b'{"id": 7 , "x": 1.10}',
        b'{"updated_at":"2024-01-01T00:00:00Z","id":8}',
    ]
    assert [(item.id, item.updated_at) for item in page.items] == [(7, None), (8, MICROS)]


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
        ("5", 5),
        ('"5"', 5),
        ("9223372036854775807", 2**63 - 1),
        ('"9223372036854775807"', 2**63 - 1),
        ("9223372036854775808", None),
        ('"007"', None),
        ("5.0", None),
        ("5e0", None),
        ("true", None),
        ("null", None),
        ('"\u0665"', None),
        ('" 5"', None),
        ("[5]", None),
        ("1" * 6000, None),
        ("-0", 0),
        ("1000000000000000001", 10**18 + 1),
        ("-9223372036854775809", None),
        ('"\\u0035"', 5),
    ],
)
def test_ids_are_exact_or_none(given_id: str, expected_id: int | None) -> None:
    """An id is an exact integer or canonical text; anything else is None and never ends the page."""
    page = parse_list(reply(f'{{"data":[{{"id":{given_id}}},{{"id":2}}]}}'.encode()))
    assert [item.id for item in page.items] == [expected_id, 2]


def test_an_item_that_is_no_object_is_an_item() -> None:
    """Numbers, texts, lists and null become items without an id."""
    page = parse_list(reply(b'{"data":[1,"a",null,[{"id":3}],{"id":4}]}'))
    assert [item.id for item in page.items] == [None, None, None, None, 4]
    assert page.items[3].raw == b'[{"id":3}]'


@pytest.mark.parametrize(
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
    ids=["NaN", "surrogate", "not UTF-8", "an id that is not UTF-8", "deep", "escaped key", "brackets in text"],
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


def test_a_byte_order_mark_is_skipped() -> None:
    """A document with a byte order mark is read."""
    assert parse_list(reply(b'\xef\xbb\xbf{"data":[{"id":1}]}')).items[0].id == 1
    found = parse_detail(reply(b'\xef\xbb\xbf{"id":1}'), 1)
    assert isinstance(found, Detail)


@every(
    ("body", "kind"),
    [
        (b"<!doctype html><p>maintenance", "html"),
        (b"", "json"),
        (b'{"data":[{"id":1},{"id":', "json"),
        (b'{"data":[{"id":1}]', "json"),
        (b'{"data":[{"id":1}]}x', "json"),
        (b'{"data":[{"id":1} {"id":2}]}', "json"),
        (b'{"data":[{"id":1,"x":NaN,"y":[1}}]}', "json"),
        (b'{"data":[{"id":1,"x":NaN]}', "json"),
        (b"{}", "shape"),
        (b'{"data":null}', "shape"),
        (b'{"data":{}}', "shape"),
        (b'{"data":"none"}', "shape"),
        (b"[]", "shape"),
        (b"null", "shape"),
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


@every("status", [400, 404, 405, 410, 422, 418])
def test_a_rejected_list_is_a_protocol_error(status: int) -> None:
    """A 4xx on the list is not retried; the message has status, path and the service's text."""
    with pytest.raises(ProtocolError, match=f"GET /files: HTTP {status}: bad\\?query"):
        parse_list(reply({"message": "bad?query"}, status))


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
        reply(b"", 404),
        reply(b"<html>", 404),
        reply(b"", 410),
        reply(b"", 204),
        reply(b""),
        reply(b" \r\n"),
        reply(b"null"),
        reply(b"[]"),
        reply(b"{}"),
        reply({"data": None}),
        reply({"data": []}),
        reply({"data": {}}),
        reply({"data": None, "status": "error", "reason": "NO FILE FOUND"}),
        reply({"status": "error", "reason": "no such file", "code": 300}),
        reply({"response": "error", "status": "NO FILE FOUND"}),
        reply({"id": None, "response": "error", "status": "NO FILE FOUND"}),
        reply({"message": "No query results"}),
        reply({"code": 300}),
    ],
)
def test_every_form_of_not_found(answer: Response) -> None:
    """Every answer that means "not found" is recognized, and is the evidence."""
    found = parse_detail(answer, 5)
    assert isinstance(found, NotFound)
    assert found.evidence


@given(st.sampled_from([b"null", b"[]", b"{}", b'{"data":null}', b'{"data":[]}']), st.data())
def test_not_found_with_any_blanks(body: bytes, data: st.DataObject) -> None:
    """Blanks between the JSON tokens do not matter."""
    blanks = st.binary(max_size=3).map(lambda raw: bytes(b" \t\r\n"[byte % 4] for byte in raw))
    spelled = b"".join(data.draw(blanks) + bytes([byte]) if byte in b"{}[]:" else bytes([byte]) for byte in body)
    assert isinstance(parse_detail(reply(spelled + data.draw(blanks)), 5), NotFound)


@every(
    ("body", "expected"),
    [
        ({"status": "error", "reason": "Unauthorized"}, AuthenticationError),
        ({"message": "Unauthenticated."}, AuthenticationError),
        ({"code": 401, "reason": "no"}, AuthenticationError),
        ({"message": "Too Many Attempts."}, ThrottledError),
        ({"message": "Server Error"}, AttemptError),
        ({"code": 500, "reason": "x"}, AttemptError),
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
        (b"<html>", "html"),
        (b'{"id":5,"scan_code":"x', "json"),
        (b'{"id":5', "json"),
        ({"scan_code": "x", "uploads": []}, "shape"),
        ({"id": "x"}, "shape"),
        ({"id": 6}, "other-file"),
        ({"data": {"id": 6}}, "other-file"),
        ([{"id": 5}, {"id": 5}], "shape"),
        (b"5", "shape"),
    ],
)
def test_a_detail_that_is_not_a_file_is_an_error(body: object, kind: str) -> None:
    """An HTML page, truncated JSON, a file without an id or another file is an error."""
    with pytest.raises(AttemptError) as raised:
        parse_detail(reply(body), 5)
    assert raised.value.kind == kind


def test_a_detail_is_unwrapped() -> None:
    """The file is extracted from `data` or from a list of one, as its exact bytes."""
    plain = b'{"id": 5, "file_id": "9", "updated_at": "2024-01-01T00:00:00Z"}'
    for body in (plain, b'{"data": ' + plain + b"}", b'{"data":[' + plain + b"]}", b"[" + plain + b"]"):
        assert parse_detail(reply(body), 5) == Detail(5, 9, MICROS, plain)


def test_an_instance_id_matches_its_file() -> None:
    """A detail that was requested by its instance id is accepted."""
    found = parse_detail(reply({"id": 5, "file_id": 9}), 9)
    assert isinstance(found, Detail)
    assert (found.id, found.instance_id) == (5, 9)


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


def test_the_services_text_is_shortened() -> None:
    """At most 300 characters of the service's errors are quoted, on one line, without control characters."""
    with pytest.raises(ProtocolError) as raised:
        parse_list(reply({"errors": {"limit": ["\x1b[31mtoo\nlarge\u202e" + "x" * 500]}}, 422))
    shown = raised.value.message.partition("HTTP 422: ")[2].removesuffix(".")
    assert len(shown) == 300
    assert shown.isprintable()
    assert shown.startswith("limit: [31mtoo large x")


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
