"""What answers mean, from bytes alone."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ContractBroken, TokenRefused
from pipeline.service.faults import Fault, RequestRefused, Throttled
from pipeline.service.protocol import (
    Detail,
    Gone,
    Reply,
    read_detail,
    read_list,
    read_report_order,
    read_share,
)

STAMP = "2024-01-01T00:00:00Z"
MICROS = 1_704_067_200_000_000


def reply(body: object = b"", status: int = 200, **headers: str) -> Reply:
    """A reply; a body that is not bytes is JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Reply(status, {name.replace("_", "-"): value for name, value in headers.items()}, raw)


def test_items_keep_their_exact_bytes() -> None:
    """An item's raw bytes are those that came, spaces and digits included."""
    page = read_list(reply(b'{"data": [ {"id": 7 , "x": 1.10}, {"updated_at":"2024-01-01T00:00:00Z","id":8} ]}'))
    assert [item.raw for item in page.items] == [
        b'{"id": 7 , "x": 1.10}',
        b'{"updated_at":"2024-01-01T00:00:00Z","id":8}',
    ]
    assert [(item.id, item.updated) for item in page.items] == [(7, None), (8, MICROS)]


@pytest.mark.parametrize(
    ("given_id", "judged"),
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
    ],
)
def test_ids_are_exact_or_none(given_id: str, judged: int | None) -> None:
    """An id is an exact integer or canonical text; anything else is None and never ends the page."""
    page = read_list(reply(f'{{"data":[{{"id":{given_id}}},{{"id":2}}]}}'.encode()))
    assert [item.id for item in page.items] == [judged, 2]


def test_an_item_that_is_no_object_is_an_item() -> None:
    """Numbers, texts, lists and null among the items come as items without an id."""
    page = read_list(reply(b'{"data":[1,"a",null,[{"id":3}],{"id":4}]}'))
    assert [item.id for item in page.items] == [None, None, None, None, 4]
    assert page.items[3].raw == b'[{"id":3}]'


@pytest.mark.parametrize(
    "odd",
    [
        b'{"id":1,"x":NaN,"updated_at":"2024-01-01T00:00:00Z"}',
        b'{"id":1,"x":"\\ud800","updated_at":"2024-01-01T00:00:00Z"}',
        b'{"id":1,"x":"\xff","updated_at":"2024-01-01T00:00:00Z"}',
        b'{"id":1,"updated_at":"2024-01-01T00:00:00Z","x":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"i\\u0064":1,"x":[Infinity,-Infinity],"updated_at":"2024-01-01T00:00:00Z"}',
        b'{"id":1,"x":"brackets ]}[{ and \\" quotes","y":NaN,"updated_at":"2024-01-01T00:00:00Z"}',
    ],
    ids=["NaN", "surrogate", "not UTF-8", "deep", "escaped key", "brackets in text"],
)
def test_one_odd_document_does_not_cost_its_page(odd: bytes) -> None:
    """What strict JSON refuses is cut out exactly, with its id, its neighbours and the page counts."""
    page = read_list(reply(b'{"data":[{"id":0},' + odd + b',{"id":2}],"total":"3"}'))
    assert [item.id for item in page.items] == [0, 1, 2]
    assert page.items[1].raw == odd
    assert page.items[1].updated == MICROS
    assert page.total == 3
    found = read_detail(reply(odd), 1)
    assert found == Detail(1, None, MICROS, odd)


def test_a_byte_order_mark_is_passed_over() -> None:
    """A document with a byte order mark is read."""
    assert read_list(reply(b'\xef\xbb\xbf{"data":[{"id":1}]}')).items[0].id == 1
    found = read_detail(reply(b'\xef\xbb\xbf{"id":1}'), 1)
    assert isinstance(found, Detail)


@pytest.mark.parametrize(
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
        (b'{"response":"error","status":"SOMETHING","data":[]}', "envelope"),
        (b'{"status":"error","reason":"broken","code":300,"data":[]}', "envelope"),
        (b'{"message":"Server Error"}', "envelope"),
    ],
)
def test_a_200_that_is_no_list_is_a_fault(body: bytes, kind: str) -> None:
    """A page, cut JSON, or JSON without a `data` array is never an empty list."""
    with pytest.raises(Fault) as raised:
        read_list(reply(body))
    assert raised.value.kind == kind
    assert raised.value.again
    assert raised.value.contract == (kind == "shape")


def test_a_list_may_speak_of_success() -> None:
    """Words of success, and empty errors, beside the data are no error."""
    body = {"data": [], "status": "success", "code": 200, "errors": [], "message": "ok"}
    assert read_list(reply(body)).items == ()


@pytest.mark.parametrize("status", [400, 404, 405, 410, 422, 418])
def test_a_refused_list_is_a_broken_contract(status: int) -> None:
    """A 4xx on the list is not repeated; the message names status, path and the service's words."""
    with pytest.raises(ContractBroken, match=f"GET /files: HTTP {status}: bad\\?query"):
        read_list(reply({"message": "bad?query"}, status))


@pytest.mark.parametrize("read", [read_list, lambda answer: read_detail(answer, 1), read_share])
def test_statuses_mean_the_same_everywhere(read: object) -> None:
    """401 and 403 refuse the token, 429 asks for less, redirects that arrive here break the contract."""
    assert callable(read)
    for status in (401, 403):
        with pytest.raises(TokenRefused):
            read(reply(b"", status))
    with pytest.raises(Throttled) as raised:
        read(reply(b"", 429, Retry_After="7"))
    assert raised.value.retry_after == 7
    with pytest.raises(ContractBroken):
        read(reply(b"", 302))
    with pytest.raises(Fault) as fault:
        read(reply(b"", 502))
    assert fault.value.again


@pytest.mark.parametrize(
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
def test_every_spelling_of_gone(answer: Reply) -> None:
    """Each way of saying that there is no such file is understood, and kept as a witness."""
    found = read_detail(answer, 5)
    assert isinstance(found, Gone)
    assert found.witness


@given(st.sampled_from([b"null", b"[]", b"{}", b'{"data":null}', b'{"data":[]}']), st.data())
def test_gone_whatever_the_blanks(body: bytes, data: st.DataObject) -> None:
    """Blanks between the tokens change nothing."""
    blanks = st.binary(max_size=3).map(lambda raw: bytes(b" \t\r\n"[byte % 4] for byte in raw))
    spelled = b"".join(data.draw(blanks) + bytes([byte]) if byte in b"{}[]:" else bytes([byte]) for byte in body)
    assert isinstance(read_detail(reply(spelled + data.draw(blanks)), 5), Gone)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"status": "error", "reason": "Unauthorized"}, TokenRefused),
        ({"message": "Unauthenticated."}, TokenRefused),
        ({"code": 401, "reason": "no"}, TokenRefused),
        ({"message": "Too Many Attempts."}, Throttled),
        ({"message": "Server Error"}, Fault),
        ({"code": 500, "reason": "x"}, Fault),
        ({"data": None, "message": "Service temporarily unavailable"}, Fault),
    ],
)
def test_an_error_in_a_200_is_not_always_gone(body: object, expected: type[Exception]) -> None:
    """An error text that tells of the token, a limit or trouble is not taken for a missing file."""
    with pytest.raises(expected):
        read_detail(reply(body), 5)


@pytest.mark.parametrize(
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
def test_a_detail_that_is_no_file_is_a_fault(body: object, kind: str) -> None:
    """A page, a cut document, a file without an id or another file is neither a file nor gone."""
    with pytest.raises(Fault) as raised:
        read_detail(reply(body), 5)
    assert raised.value.kind == kind


def test_a_detail_is_unwrapped() -> None:
    """The file is taken out of `data` and out of a list of one, as its exact bytes."""
    plain = b'{"id": 5, "file_id": "9", "updated_at": "2024-01-01T00:00:00Z"}'
    for body in (plain, b'{"data": ' + plain + b"}", b'{"data":[' + plain + b"]}", b"[" + plain + b"]"):
        assert read_detail(reply(body), 5) == Detail(5, 9, MICROS, plain)


def test_an_instance_is_the_file() -> None:
    """A detail asked by its instance's `file_id` is the right one."""
    found = read_detail(reply({"id": 5, "file_id": 9}), 9)
    assert isinstance(found, Detail)
    assert (found.id, found.instance) == (5, 9)


def test_an_odd_refusal_of_one_file_is_not_repeated() -> None:
    """A 4xx on one detail fails this file at once and does not stop the run."""
    with pytest.raises(Fault) as raised:
        read_detail(reply(b"", 422), 5)
    assert not raised.value.again


def test_shares_and_orders() -> None:
    """A share gives its link, an order its URL, with any of the good statuses; refusals carry the reason."""
    assert read_share(reply({"response": "success", "status": "SHARE CREATED", "share_url": "https://s/1"})).url
    for status in (200, 201, 202):
        assert read_report_order(reply({"url": "https://r/1"}, status)).url == "https://r/1"
    assert read_report_order(reply({"data": {"url": "https://r/1"}}, 201)).url == "https://r/1"
    for status in (200, 404, 422):
        with pytest.raises(RequestRefused) as raised:
            read_share(reply({"response": "error", "status": "NO FILE FOUND"}, status))
        assert raised.value.reason == "NO FILE FOUND"
    for answer in (reply(b"<html>"), reply({}), reply({"url": 5}, 201), reply(b"", 500)):
        with pytest.raises(Fault):
            read_report_order(answer)


def test_the_services_words_are_trimmed() -> None:
    """Of the service's own text at most 120 characters are shown, on one line, without control characters."""
    with pytest.raises(ContractBroken) as raised:
        read_list(reply({"errors": {"limit": ["\x1b[31mtoo\nlarge\u202e" + "x" * 500]}}, 422))
    shown = raised.value.message.partition("HTTP 422: ")[2]
    assert len(shown) == 120
    assert shown.isprintable()
    assert shown.startswith("[31mtoo large x")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_json_is_a_value_or_a_known_error(body: object) -> None:
    """No JSON whatever makes the reading fail in an unforeseen way."""
    for read in (read_list, lambda answer: read_detail(answer, 5), read_share, read_report_order):
        with suppress(Fault, TokenRefused, ContractBroken, RequestRefused):
            read(reply(body))
