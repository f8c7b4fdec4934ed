"""GET /share: links for a file, and the e-mails that the service sends."""

import secrets
from dataclasses import dataclass, field
from functools import cache
from zoneinfo import available_timezones

from multidict import MultiMapping

from pipeline.emulator import timestamps
from pipeline.emulator.http import Response, to_json_response
from pipeline.emulator.world import World

_NO_CACHE = {"Cache-Control": "no-cache"}
_MAX_TEXT_LENGTH = 255
_LIST_RECIPIENTS = 3


@dataclass(slots=True)
class Shares:
    """References of the links of one service, and the e-mails for them, as (recipient, reference)."""

    world: World
    by_secret: dict[str, str] = field(default_factory=dict)
    emails: list[tuple[str, str]] = field(default_factory=list)

    def create(self, args: MultiMapping[str], origin: str) -> Response:
        """Create a link to a file with a reference."""
        for name in ("reference", "customer_reference"):
            if len(args.get(name, "")) > _MAX_TEXT_LENGTH:
                return build_error_response(422, f"{name.upper()} TOO LONG")
        if args.get("timezone", "UTC") not in list_time_zones():
            return build_error_response(422, "INVALID TIMEZONE")
        try:
            timestamps.parse_timestamp(args.get("expires", "2000-01-01"))
        except ValueError:
            return build_error_response(422, "INVALID EXPIRES")
        reference = args.get("reference", "")
        if not self.world.by_reference.get(reference):
            return build_error_response(404, "NO FILE FOUND")
        secret = secrets.token_urlsafe(24)
        self.by_secret[secret] = reference
        self._send_emails(args, reference)
        body = {"response": "success", "status": "SHARE CREATED", "share_url": f"{origin}/s/{secret}"}
        return to_json_response(body, 200, _NO_CACHE)

    def _send_emails(self, args: MultiMapping[str], reference: str) -> None:
        if args.get("send_email", "true").lower() in {"false", "0", "no", "off"}:
            return
        if args.get("email"):
            self.emails.append((args["email"], reference))
        if args.get("dl"):
            self.emails.extend((f"{args['dl']}#{n}", reference) for n in range(_LIST_RECIPIENTS))


def build_error_response(status: int, text: str) -> Response:
    """Return an error response of /share."""
    return to_json_response({"response": "error", "status": text}, status, _NO_CACHE)


@cache
def list_time_zones() -> frozenset[str]:
    """Return the names in the time zone database."""
    return frozenset(available_timezones())
