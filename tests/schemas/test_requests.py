"""What we send: in the interface's words, within its limits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import ValidationError

from schemas.file_query import FileQuery
from schemas.includes import INCLUDES
from schemas.requests import ReportRequest, ReportSettings, ShareRequest
from tests.rows import every

SECRET = "s3cr3t-value"


def test_a_query_without_wishes_asks_for_the_largest_page() -> None:
    """Without a limit the largest that the service allows is asked for: 250 plain, 50 with any include."""
    assert FileQuery().parameters() == [("limit", "250"), ("format", "json")]
    assert FileQuery(include=("forms",)).page_size == 50


def test_every_parameter_is_spelled_as_the_interface_says() -> None:
    """The names and values of `GET /files` are those of section 4.1."""
    texts: dict[str, Any] = {"reference": "AB 1/ü", "find": "AB", "lang": "de"}
    days: dict[str, Any] = {"startdate": "2024-01-01", "enddate": "2024-01-31"}
    start = datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)
    end = datetime(2024, 1, 2, 3, 4, 6, tzinfo=timezone(timedelta(hours=1)))
    others: dict[str, Any] = {"closed": False, "limit": 20, "include": INCLUDES, "field_id": {7: "x", 8: ""}}
    query = FileQuery(updated_start=start, updated_end=end, **texts, **days, **others)
    assert query.parameters() == [
        *(("limit", "20"), ("format", "json")),
        *texts.items(),
        ("closed", "0"),
        *days.items(),
        *(("updated_start", "2024-01-02T03:04:05Z"), ("updated_end", "2024-01-02T02:04:06Z")),
        *[("include[]", name) for name in ("uploads", "geocoding", "forms", "fields", "locations", "workflows")],
        *(("field_id[7]", "x"), ("field_id[8]", "")),
    ]


def test_a_time_may_be_text() -> None:
    """A text is sent as the instant that it says; a date stays one."""
    query = FileQuery(
        enddate=" 2024-01-31", updated_start="2024-01-02 03:04:05.5", updated_end="2024-01-02T03:04:05.5+01:00"
    )
    assert query.parameters()[2:] == [
        ("enddate", "2024-01-31"),
        ("updated_start", "2024-01-02T03:04:05Z"), ("updated_end", "2024-01-02T02:04:06Z"),
    ]  # fmt: skip
    assert ("expires", "2024-01-02T03:04:05Z") in ShareRequest(
        reference="A", expires="2024-01-02T03:04:05Z"
    ).parameters()


def test_a_fraction_of_a_second_widens_the_range() -> None:
    """The service takes whole seconds: a lower bound goes down, an upper bound goes up."""
    half = datetime(2024, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)
    query = dict(FileQuery(startdate=half, updated_start=half, enddate=half, updated_end=half).parameters())
    assert query["startdate"] == query["updated_start"] == "2024-01-01T00:00:00Z"
    assert query["enddate"] == query["updated_end"] == "2024-01-01T00:00:01Z"


def test_a_share_says_no_to_mail_unless_told() -> None:
    """`send_email` is always sent, and is false unless the caller says otherwise: silence would mean yes."""
    assert ShareRequest(reference="A").parameters() == [("reference", "A"), ("send_email", "false")]
    assert ("send_email", "true") in ShareRequest(reference="A", send_email=True).parameters()


def test_every_parameter_of_a_share_is_spelled_as_the_interface_says() -> None:
    """The names of `GET /share` are those of section 4.3."""
    texts = {"customer_reference": "C", "language": "de", "dl": "D", "email": "a@b.example"}
    texts |= {"timezone": "UTC", "username": "u"}
    share = ShareRequest(reference="A", expires="2030-01-01", **texts)  # type: ignore[arg-type]
    sent = {"reference": "A", "send_email": "false", "expires": "2030-01-01", "lang": "de", **texts}
    assert dict(share.parameters()) == sent


def test_a_report_is_spelled_as_the_interface_says() -> None:
    """The body of `POST /reports` is that of section 4.4, and holds only what was given."""
    settings = ReportSettings(locale="en-US", format="pdf", timezone="UTC", datetime_format="Y-m-d")
    order = ReportRequest(files=(3, 1), template=2, filename="f", settings=settings, asynchronous=False)
    assert order.body() == {
        "files": [3, 1],
        "asynchronous": False,
        "template": 2,
        "filename": "f",
        "settings": {"locale": "en-US", "format": "pdf", "dateTime": {"zone": "UTC", "format": "Y-m-d"}},
    }
    assert ReportRequest(files=(1,)).body() == {"files": [1], "asynchronous": True}
    assert ReportSettings(timezone="UTC").body() == {"dateTime": {"zone": "UTC"}}


@every(
    ("model", "given"),
    [
        *((FileQuery, {"limit": limit}) for limit in (0, 251, 5.5, True, SECRET)),
        *((FileQuery, {name: [SECRET]}) for name in ("reference", "find", "lang", "closed", "include")),
        *((FileQuery, {name: None}) for name in ("include", "field_id")),
        (FileQuery, {"limit": 51, "include": ("uploads",)}),
        *((FileQuery, {"updated_start": day}) for day in (SECRET, "2024-02-30", "\uff12\uff10\uff12\uff14-01-01")),
        *((FileQuery, {"field_id": fields}) for fields in ({SECRET: "x"}, {7: [SECRET]}, {True: "x"}, {-5: "x"})),
        *((FileQuery, given) for given in ({"include": (SECRET,)}, {"reference": ""}, {"closed": SECRET})),
        *((FileQuery, {"unheard_of": SECRET}), (ShareRequest, {})),
        *((ShareRequest, {"reference": "A", **given}) for given in ({"language": SECRET}, {"send_email": SECRET})),
        (ShareRequest, {"reference": "A" * 256}),
        (ShareRequest, {"reference": "A", "customer_reference": SECRET * 30}),
        *((ReportRequest, {"files": files}) for files in ((), tuple(range(101)), (1, 1), (SECRET,), (True,))),
        *((ReportRequest, {"files": (1,), **given}) for given in ({"filename": ""}, {"settings": {"format": SECRET}})),
    ],
)
def test_what_the_interface_refuses_never_leaves_the_machine(model: type[Any], given: dict[str, Any]) -> None:
    """A request beyond the limits cannot be made, and the error shows no value."""
    with pytest.raises(TypeError if "unheard_of" in given else ValueError) as refused:
        model(**given)
    assert SECRET not in f"{refused.value} {refused.value!r}"
    if isinstance(refused.value, ValidationError):
        assert SECRET not in str(refused.value.errors(include_input=False, include_context=False))


def test_the_limits_themselves_are_allowed() -> None:
    """Exactly the interface's largest values can be sent."""
    assert FileQuery(limit=250).page_size == 250
    assert FileQuery(limit=50, include=INCLUDES).page_size == 50
    assert ShareRequest(reference="A" * 255, customer_reference="B" * 255).parameters()
    assert FileQuery(reference="A" * 256).parameters()[-1] == ("reference", "A" * 256)  # 255 is a limit of /share
    assert len(ReportRequest(files=tuple(range(100))).files) == 100
