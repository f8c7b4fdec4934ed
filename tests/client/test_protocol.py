"""What answers and their headers mean, tested with bytes only."""

from __future__ import annotations

import json
import tracemalloc
from contextlib import suppress
from email.utils import formatdate
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.client.clock import MAX_AHEAD_SECONDS, ServiceClock, parse_retry_after
from pipeline.client.error_bodies import describe_status
from pipeline.client.errors import AttemptError, RequestRejectedError, ThrottledError
from pipeline.client.protocol import (
    Detail,
    Response,
    parse_detail,
    parse_list,
    parse_report_order,
    parse_share,
)
from pipeline.errors import AuthenticationError, ProtocolError
from schemas.timestamps import SECOND
from tests.rows import every

if TYPE_CHECKING:
    from collections.abc import Callable

MICROS = 1_704_067_200_000_000
NOTHING: tuple[Any, ...] = (None, [], {})


def reply(body: object = b"", status: int = 200, **headers: str) -> Response:
    """Return a response; a body that is not bytes is encoded as JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Response(status, {name.replace("_", "-"): value for name, value in headers.items()}, raw)


def replies(*bodies: object) -> list[Response]:
    """Return a response for each body."""
    return [reply(body) for body in bodies]


def test_items_keep_their_exact_bytes() -> None:
    """An item's raw bytes are exactly those of the answer, with spaces and digits, whether or not it is an object."""
    raws = [b'{"id": 7 , "x": 1.10}', b'{"updated_at":"2024-01-01T00:00:00Z","id":8}', b"1", b'[{"id":3}]', b"null"]
    page = parse_list(reply(b'\xef\xbb\xbf{"data": [ ' + b",".join(raws) + b"]}"))
    assert [item.raw for item in page.items] == raws
    assert [(item.id, item.updated_at) for item in page.items] == [(7, None), (8, MICROS), *[(None, None)] * 3]


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


READERS: Final[dict[str, Callable[[Response], object]]] = {
    "list": parse_list,
    "detail": lambda answer: parse_detail(answer, 5),
    "share": parse_share,
    "order": parse_report_order,
}
_LOST: Final = {"response": "error", "status": "NO FILE FOUND"}


@every("element", [b"{}", b"1", b"[]", b'""', b"NaN"])
def test_a_page_of_a_million_items_is_refused_early(element: bytes) -> None:
    """A page with far more items than its limit is refused before memory is taken for them; a large one is not."""
    problem = "items cannot be counted" if element == b"NaN" else "more than 10,000 items"
    for start, end in ((b'{"data":[', b"{}]}"), (b"[", b"{}]")):
        body = start + (element + b",") * 1_000_000 + end
        tracemalloc.start()
        try:
            with pytest.raises(AttemptError, match=problem) as refused:
                parse_list(Response(200, {}, body))
            assert tracemalloc.get_traced_memory()[1] < 4_000_000
        finally:
            tracemalloc.stop()
        assert (refused.value.kind, refused.value.retryable) == ("size", False)
    uploads = b",".join([b'{"id":1,"comment":"x"}'] * 40_000)
    page = parse_list(Response(200, {}, b'{"data":[' + b",".join([b'{"id":1,"uploads":[%b]}' % uploads] * 5) + b"]}"))
    assert len(page.items) == 5


@every(
    ("calls", "outcome", "answers"),
    [
        # The statuses mean the same everywhere.
        ("list detail share", "AuthenticationError", [reply(status=401), reply(status=403)]),
        ("list detail share", "status-429 7.0", [reply(status=429, Retry_After="7")]),
        ("list detail share", "status-503 7.0", [reply(status=503, Retry_After="7")]),
        ("list detail share", "ProtocolError", [reply(status=302)]),
        ("list detail share", "status-502", [reply(status=502)]),
        ("list detail share", "status-408", [reply(status=408)]),
        ("list detail share", "status-425", [reply(status=425)]),
        # A page, truncated JSON or JSON without `data` is never an empty list; a text of success is no error.
        ("list", "html", [reply(b"<!doctype html><p>maintenance")]),
        ("list", "json", replies(b"", b'{"data":[{"id":1},{"id":', b'{"data":[{"id":1}]', b'{"data":[{"id":1}]}x')),
        ("list", "json", [reply(b'{"data":[{"id":1%b]}' % rest) for rest in (b'} {"id":2}', b',"x":NaN,"y":[1}}')]),
        ("list", "json", [reply(b'{"data":[{"id":1,"x":NaN]}')]),
        ("list", "shape of protocol", replies({"data": None}, {"data": {}}, {"data": "none"}, {}, [], None)),
        ("list", "error-body", [reply({"response": "error", "status": "SOMETHING", "data": []})]),
        ("list", "error-body", [reply({"status": "error", "reason": "broken", "code": 300, "data": []})]),
        ("list", "error-body", [reply({"message": "Server Error"})]),
        ("list", "ListPage", [reply({"data": [], "status": "success", "code": 200, "errors": [], "message": "ok"})]),
        # Every form of "not found".
        ("detail", "NotFound", [*(reply(b"", status) for status in (404, 410, 204)), reply(b"<html>", 404)]),
        ("detail", "NotFound", replies(b"", b" \r\n", b"null", b"[]", b"{}", b" [ ] ", b' { "data" :\n[ ]\t} ')),
        ("detail", "NotFound", replies(*({"data": data} for data in NOTHING))),
        ("detail", "NotFound", [reply({"data": None, "status": "error", "reason": "NO FILE FOUND"})]),
        ("detail", "NotFound", [reply({"status": "error", "reason": "no such file", "code": 300})]),
        ("detail", "NotFound", replies(_LOST, _LOST | {"id": None}, {"message": "No query results"}, {"code": 300})),
        # An error text about the token, a limit or a temporary error is not "not found".
        ("detail", "AuthenticationError", replies({"message": "Unauthenticated."}, {"code": 401, "reason": "x"})),
        ("detail", "AuthenticationError", [reply({"code": " 403", "reason": "x"})]),
        ("detail", "AuthenticationError", [reply({"status": "error", "reason": "Unauthorized"})]),
        ("detail", "status-429 None", [reply({"message": "Too Many Attempts."})]),
        ("detail", "error-body", replies({"message": "Server Error"}, {"code": 500, "reason": "x"})),
        ("detail", "error-body", [reply({"data": None, "message": "Service temporarily unavailable"})]),
        # Another file, or none, is an error. A 4xx fails this file without a retry, and does not stop the run.
        ("detail", "html", [reply(b"<html>")]),
        ("detail", "json", replies(b'{"id":5,"scan_code":"x', b'{"id":5')),
        ("detail", "shape of protocol", replies({"scan_code": "x", "uploads": []}, {"id": "x"}, [{"id": 5}] * 2, b"5")),
        ("detail", "other-file of protocol", replies({"id": 6}, {"data": {"id": 6}})),
        ("detail", "status-422 at once", [reply(status=422)]),
        # A share returns its link, an order its URL; a rejection has the reason.
        (
            "share",
            "https://s/1",
            [reply({"response": "success", "status": "SHARE CREATED", "share_url": "https://s/1"})],
        ),
        ("order", "https://r/1", [reply({"url": "https://r/1"}, status) for status in (200, 201, 202)]),
        ("order", "https://r/1", [reply({"data": {"url": "https://r/1"}}, 201)]),
        ("share", "NO FILE FOUND", [reply(_LOST, status) for status in (200, 404, 422)]),
        *(("order", "json", [reply(b"<html>")]), ("order", "status-500", [reply(status=500)])),
        ("order", "shape", [reply({}), reply({"url": 5}, 201)]),
    ],
)
def test_what_an_answer_means(calls: str, outcome: str, answers: list[Response]) -> None:
    """Each answer is a value, a rejection with its reason, or an error of a kind, to be repeated or not."""
    for call, answer in product(calls.split(), answers):
        assert describe_outcome(READERS[call], answer) == outcome, answer


def describe_outcome(read: Callable[[Response], object], answer: Response) -> str:
    """Return the type or the URL of a result, or what an error is."""
    try:
        found = read(answer)
    except AttemptError as error:
        seconds = f" {error.retry_after}" if isinstance(error, ThrottledError) else ""
        return f"{error.kind}{seconds}{' of protocol' * error.is_protocol_error}{'' if error.retryable else ' at once'}"
    except (AuthenticationError, ProtocolError, RequestRejectedError) as error:
        return str(getattr(error, "reason", type(error).__name__))
    assert getattr(found, "evidence", True)
    return str(getattr(found, "url", type(found).__name__))


def test_a_detail_is_unwrapped() -> None:
    """The file is extracted from `data` or from a list of one, as its exact bytes; it may be named by its instance."""
    plain = b'{"id": 5, "file_id": "9", "updated_at": "2024-01-01T00:00:00Z"}'
    for body in (plain, b'{"data": ' + plain + b"}", b'{"data":[' + plain + b"]}", b"[" + plain + b"]"):
        for key in (5, 9):
            assert parse_detail(reply(body), key) == Detail(5, 9, MICROS, plain)
    marked = b"\xef\xbb\xbf" + plain
    assert parse_detail(reply(marked), 5) == Detail(5, 9, MICROS, marked)


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
    for read in READERS.values():
        with suppress(AttemptError, AuthenticationError, ProtocolError, RequestRejectedError):
            read(reply(body))


NOW = 1_800_000_000


def date(seconds: float) -> str:
    """Return an HTTP date."""
    return formatdate(seconds, usegmt=True)


@every(
    ("text", "seconds"),
    [
        *((text, None) for text in (None, "", "abc", "-5", "nan", "inf", "1.2.3", "\u0665")),
        ("Fri, 99 Foo 2099 00:00:00 GMT", None),
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


LIES: Final = [0, 1, 2, 3, -NOW, 5, 6, 4_000_000_000 - NOW, 8, 9]


@every(
    ("dates", "moment", "expected"),  # seconds after NOW, or a text; the dates are those of the first seconds
    [
        *((dates, 0.0, None) for dates in ([None], ["yesterday"], ["Mon, 01 Jan 99999 00:00:00 GMT"])),
        ([0], 7.5, 7.5),
        *((LIES[: second + 1], second, second) for second in range(10)),
        *(([250], 0.0, 250), ([250, 1, 2, 3], 0.0, 0)),
    ],
)
def test_the_clock_advances(dates: list[Any], moment: float, expected: float | None) -> None:
    """Without a `Date` the time is unknown; later ones correct one that is wrong, also for earlier moments."""
    clock = Ticking()
    for second, sent in enumerate(dates):
        clock.ticks = float(second)
        clock.observe(date(NOW + sent) if isinstance(sent, int) else sent)
    clock.ticks = moment
    assert clock.now() == clock.at(moment) == (None if expected is None else (NOW + expected) * SECOND)


@every("ahead", [1_200, 86_400, 7_900 * 365 * 86_400])
def test_a_date_in_the_future_is_not_believed(ahead: int) -> None:
    """However far ahead a `Date` is, the clock is at most five minutes ahead of this machine's, and says how far."""
    clock = Ticking()
    clock.observe(date(min(NOW + ahead, 253_402_300_799)))
    assert clock.now() == (NOW + MAX_AHEAD_SECONDS) * SECOND
    assert (clock.seconds_ahead or 0) > 1_000
