"""The key to the pages with rows: only who has the printed address reads them, not every user of this machine."""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from aiohttp import web

PARAMETER: Final = "key"


class AccessKey:
    """A random key for the life of the server. The browser gets it with the printed address and keeps it as a cookie.

    The cookie is not sent with requests that another site starts, and no script can read it.
    """

    def __init__(self) -> None:
        self.text = secrets.token_urlsafe(24)

    def is_offered_by(self, request: web.BaseRequest) -> bool:
        """Return whether the address has the key."""
        return self._is_equal(request.query.get(PARAMETER, ""))

    def is_held_by(self, request: web.BaseRequest) -> bool:
        """Return whether the request has the cookie."""
        return self._is_equal(request.cookies.get(_cookie_name(request), ""))

    def set_cookie(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Add the cookie to a response."""
        response.set_cookie(_cookie_name(request), self.text, httponly=True, samesite="Strict", path="/")

    def _is_equal(self, text: str) -> bool:
        return hmac.compare_digest(text.encode("utf-8", "replace"), self.text.encode())


def _cookie_name(request: web.BaseRequest) -> str:
    # Cookies ignore the port: two dashboards on one machine must not replace each other's.
    return f"scanlake-{request.host.rpartition(':')[2]}"
