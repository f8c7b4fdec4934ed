"""What an error body means, and how much of it a message quotes."""

from __future__ import annotations

import json
from typing import Any

from pipeline.client.error_bodies import MAX_ERRORS_CHARS, describe_status
from tests.rows import every


@every(
    ("body", "line"),
    [
        (
            {"message": "The given data was invalid.", "errors": {"limit": ["too large", "not a number"], "find": "x"}},
            "HTTP 422: The given data was invalid. (limit: too large, not a number; find: x)",
        ),
        ({"errors": {"closed": "must be 0 or 1"}}, "HTTP 422: closed: must be 0 or 1"),
        ({"errors": ["limit too large", "closed"]}, "HTTP 422: limit too large; closed"),
        ({"errors": [{"field": "limit", "message": "too large"}]}, "HTTP 422: field: limit, message: too large"),
        ({"message": "no", "errors": "no"}, "HTTP 422: no"),
        ({"message": "no", "errors": {}}, "HTTP 422: no"),
        ({"status": "INVALID TIMEZONE", "response": "error"}, "HTTP 422: INVALID TIMEZONE"),
        ({"message": "a\x1b[31mb", "errors": {"x\n": "y\u202ez"}}, "HTTP 422: a [31mb (x : y z)"),
        ({"errors": {"settings": {"format": ["pdf only"]}}}, "HTTP 422: settings: format: pdf only"),
    ],
)
def test_a_message_quotes_the_parameters_that_the_service_names(body: Any, line: str) -> None:
    """The `errors` of the service follow its text: each parameter with what is wrong, on one line."""
    assert describe_status(422, json.dumps(body).encode()) == line


def test_a_long_list_of_errors_is_cut() -> None:
    """Of five hundred errors as many are quoted as fit a line."""
    body = {"message": "no", "errors": {f"parameter{number}": ["wrong " * 5] for number in range(500)}}
    line = describe_status(422, json.dumps(body).encode())
    assert len(line) < MAX_ERRORS_CHARS + 200
    assert line.startswith("HTTP 422: no (parameter0: wrong wrong")
    assert line.endswith("...)")
