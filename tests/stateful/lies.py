"""A service that lies: a table of lies about lists, counts, clocks and details, and the emulator that tells them.

A lie changes the truthful answer of one call. `HIDES` are lies that keep something back in a way that no client can
notice while the service tells them; all others must be noticed, or do no harm.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pipeline.emulator import Emulator
from pipeline.emulator.http import Response, format_date, to_html_response, to_json_response

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web
    from multidict import MultiDict

Document = dict[str, Any]
_ERROR: Final = {"response": "error", "status": "something went wrong"}


@dataclass
class Answer:
    """One truthful answer, to be changed: its body is decoded, None if it was not JSON."""

    path: str
    page: int
    response: Response
    body: Any

    @property
    def items(self) -> list[Document]:
        """The files of a list."""
        data: list[Document] = self.body["data"]
        return data

    def say(self, body: Any, status: int = 200) -> None:
        """Answer with another body and status."""
        self.response, self.body = replace(self.response, status=status), body


def _counts(**values: Any) -> Callable[[Answer], None]:
    def change(answer: Answer) -> None:
        for name, value in values.items():
            answer.body[name] = value(answer) if callable(value) else value

    return change


def _items(change: Callable[[list[Document]], list[Document]], *, keep_total: bool = True) -> Callable[[Answer], None]:
    def lie(answer: Answer) -> None:
        before = len(answer.items)
        answer.body["data"] = change(answer.items)
        if not keep_total:
            answer.body["total"] = max(0, answer.body["total"] - before + len(answer.items))

    return lie


def _each(**values: Any) -> Callable[[Answer], None]:
    return _items(lambda items: [item | values for item in items])


def _first(**values: Any) -> Callable[[Answer], None]:
    return _items(lambda items: [item | ({} if at else values) for at, item in enumerate(items)])


def _status(status: int) -> Callable[[Answer], None]:
    return lambda answer: answer.say(answer.body, status)


def _says(body: Any, status: int = 200) -> Callable[[Answer], None]:
    return lambda answer: answer.say(body, status)


def _empty(answer: Answer) -> None:
    answer.body |= {"data": [], "total": 0, "last_page": 1, "next_page_url": None}


def _html(answer: Answer) -> None:
    answer.response, answer.body = to_html_response("Please sign in"), None


def _cut(answer: Answer) -> None:
    answer.response = replace(answer.response, body=answer.response.body[: len(answer.response.body) // 2])
    answer.body = None


def _shift(items: list[Document], years: int) -> list[Document]:
    return [item | {"updated_at": f"{int(item['updated_at'][:4]) + years}{item['updated_at'][4:]}"} for item in items]


def _endless(answer: Answer) -> None:
    answer.body |= {"data": [], "total": 10**6, "last_page": 10**4, "next_page_url": f"{answer.path}?page=2"}


LISTS: Final[dict[str, Callable[[Answer], None]]] = {
    "an empty list": _empty,
    "an empty list, the total kept": _items(lambda _: []),
    "empty pages without end": _endless,
    "an empty first page with a next": lambda a: _endless(a) if a.page == 1 else None,
    "half of the list": _items(lambda items: items[::2], keep_total=False),
    "half of the list, the total kept": _items(lambda items: items[::2]),
    "all but the newest": _items(lambda items: sorted(items, key=lambda item: item["updated_at"])[:-1]),
    "the first file only": _items(lambda items: items[:1], keep_total=False),
    "a list of one file": _counts(data=lambda a: a.items[: a.page == 1], total=1, last_page=1, next_page_url=None),
    "every file twice": _items(lambda items: [*items, *items]),
    "the first page again and again": lambda a: a.body.update(current_page=1) if a.page > 1 else None,
    "total 0": _counts(total=0),
    "total 1": _counts(total=1),
    "total one less": _counts(total=lambda a: max(0, a.body["total"] - 1)),
    "total one more": _counts(total=lambda a: a.body["total"] + 1),
    "total doubled": _counts(total=lambda a: a.body["total"] * 2),
    "total of the page": _counts(total=lambda a: len(a.items), last_page=1, next_page_url=None),
    "total below the page": _counts(total=45, last_page=1, next_page_url=None),
    "total of the page, the last page right": _counts(total=lambda a: len(a.items), next_page_url=None),
    "the last page is 1, the total right": _counts(last_page=1, next_page_url=None),
    "the last page is 0": _counts(total=None, last_page=0, next_page_url=None),
    "total negative": _counts(total=-5),
    "total without end": _counts(total=10**15),
    "total a text": _counts(total="many"),
    "total a fraction": _counts(total=0.5),
    "total null": _counts(total=None, last_page=None),
    "the last page is 1": _counts(last_page=1, total=None, next_page_url=None),
    "the last page is far": _counts(last_page=10**9),
    "another page number": _counts(current_page=7, to=350),
    "a page size of one": _counts(per_page=1),
    "always a next page": _counts(next_page_url="/api/v2/files?page=2"),
    "never a next page": _counts(next_page_url=None, total=None, last_page=None),
    "HTTP 201": _status(201),
    "HTTP 203": _status(203),
    "HTTP 203 and empty": _says({"data": [], "total": 0}, 203),
    "HTTP 206": _status(206),
    "HTTP 204": _says(None, 204),
    "an HTML page": _html,
    "an error in a 200": _says(_ERROR),
    "null": _says(None),
    "an empty object": _says({}),
    "an empty array": _says([]),
    "data null": _says({"data": None}),
    "half of the bytes": _cut,
    "update times in ten years": _items(lambda items: _shift(items, 10)),
    "update times ten years ago": _items(lambda items: _shift(items, -10)),
    "one update time in the year 9999": _first(updated_at="9999-12-31 23:59:59"),
    "no update times": _each(updated_at=None),
    "one file without an update time": _first(updated_at=None),
    "one file twice, first as it was": _items(lambda items: [*_shift(items[:1], -1), *items]),
    "one file twice, then as it was": _items(lambda items: [*items[:1], *_shift(items[:1], -1), *items[1:]]),
    "ids null": _each(id=None),
    "one id a text": _first(id="seven"),
    "references exchanged for nothing": _each(scan_code=None),
}
DETAILS: Final[dict[str, Callable[[Answer], None]]] = {
    "no file": _says({"response": "error", "status": "NO FILE FOUND"}, 404),
    "gone": _says(None, 410),
    "null": _says(None),
    "an empty object": _says({}),
    "an empty array": _says([]),
    "an error in a 200": _says(_ERROR),
    "HTTP 203": _status(203),
    "HTTP 204": _says(None, 204),
    "HTTP 500": _says(_ERROR, 500),
    "an HTML page": _html,
    "half of the bytes": _cut,
    "another file": lambda a: a.body.update(id=987_654_321),
    "a list of files": lambda a: a.say([a.body, a.body]),
    "without an id": lambda a: a.body.pop("id"),
    "another update time": lambda a: a.body.update(updated_at="2001-01-01 00:00:00"),
}
REQUESTS: Final[dict[str, Callable[[MultiDict[str]], object]]] = {
    "updated_start is ignored": lambda args: args.popall("updated_start", None),
    "updated_end is ignored": lambda args: args.popall("updated_end", None),
    "both bounds are ignored": lambda args: (args.popall("updated_start", None), args.popall("updated_end", None)),
    "limit is ignored": lambda args: args.popall("limit", None),
    "page is ignored": lambda args: args.popall("page", None),
    "includes are ignored": lambda args: args.popall("include[]", None),
    "the reference is ignored": lambda args: args.popall("scan_code", None),
}
CLOCKS: Final[dict[str, Callable[[float], float | str | None]]] = {
    "a minute ahead": lambda now: now + 60,
    "20 minutes ahead": lambda now: now + 1_200,
    "a day ahead": lambda now: now + 86_400,
    "the year 9999": lambda _: "Fri, 31 Dec 9999 23:59:59 GMT",
    "20 minutes behind": lambda now: now - 1_200,
    "1970": lambda _: 0.0,
    "no date": lambda _: "soon",
    "none": lambda _: None,
}
UNSEEN: Final = "request: includes are ignored"
"""What only the list has is then in no answer, and no update time says so: `sync --full` reads all lists again."""
HIDES: Final = frozenset(
    f"list: {name}"
    for name in (
        "an empty list", "half of the list", "half of the list, the total kept", "the first file only",
        "a list of one file",
        "all but the newest", "an empty list, the total kept", "total of the page", "never a next page",
        "the last page is 1", "HTTP 203 and empty", "references exchanged for nothing",
    )
) | {UNSEEN, "detail: another update time"}  # fmt: skip
NAMES: Final = (
    *(f"list: {name}" for name in LISTS),
    *(f"detail: {name}" for name in DETAILS),
    *(f"request: {name}" for name in REQUESTS),
    *(f"clock: {name}" for name in CLOCKS),
)


@dataclass
class Lie:
    """A lie by its name, and how often it is told: for the first `times` answers it fits, with a probability."""

    name: str
    times: float = float("inf")
    probability: float = 1.0
    told: int = 0


class LyingEmulator(Emulator):
    """An emulator that tells `lies`; without any it is truthful."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.lies: list[Lie] = []
        self._dice = random.Random(self.plan.seed)

    def _pick(self, kind: str) -> str | None:
        """The name of the lie to tell in an answer of this kind, None for the truth."""
        for lie in self.lies:
            lie_kind, _, name = lie.name.partition(": ")
            if lie_kind == kind and lie.told < lie.times and self._dice.random() < lie.probability:
                lie.told += 1
                return name
        return None

    def _list_files(self, raw_path: str, args: MultiDict[str]) -> Response:
        if name := self._pick("request"):
            REQUESTS[name](args)
        return super()._list_files(raw_path, args)

    async def _respond(self, request: web.BaseRequest, path: str, query: str, endpoint: str) -> tuple[Response, str]:
        response, endpoint = await super()._respond(request, path, query, endpoint)
        name = self._pick(endpoint) if endpoint in {"list", "detail"} and response.status == 200 else None
        if name is None:
            return response, endpoint
        page = next((int(part[5:]) for part in query.split("&") if part.startswith("page=")), 1)
        answer = Answer(path, page, response, json.loads(response.body))
        (LISTS if endpoint == "list" else DETAILS)[name](answer)
        if answer.body is None and answer.response.body != response.body:
            return answer.response, endpoint
        empty = answer.response.status in {204, 410}
        changed = to_json_response(answer.body, answer.response.status)
        return (replace(changed, body=b"") if empty else changed), endpoint

    def _format_date(self) -> str | None:
        name = self._pick("clock")
        if name is None:
            return super()._format_date()
        told = CLOCKS[name](self.world.clock.now() / 1e6)
        return told if told is None or isinstance(told, str) else format_date(int(told))
