"""GET /share: links for a file, and the e-mails they set off."""

import secrets
from dataclasses import dataclass, field
from zoneinfo import ZoneInfo

from multidict import MultiMapping

from pipeline.emulator import stamps
from pipeline.emulator.wire import Answer, html_answer, json_answer
from pipeline.emulator.world import World

_NO_CACHE = {"Cache-Control": "no-cache"}
_LONGEST = 255
_DL_RECIPIENTS = 3
_LANGUAGE = 2


@dataclass(frozen=True, slots=True)
class Share:
    """A link that was created; `expires` is a moment or None for never."""

    key: int
    reference: str
    customer_reference: str | None
    expires: int | None
    language: str | None
    username: str | None
    timezone: str
    secret: str


@dataclass(slots=True)
class Shares:
    """All links of one service and the e-mails sent for them, as (recipient, reference)."""

    world: World
    made: dict[str, Share] = field(default_factory=dict)
    emails: list[tuple[str, str]] = field(default_factory=list)

    def create(self, args: MultiMapping[str], origin: str) -> Answer:
        """Create a link for a reference; the newest file that bears it is shared."""
        for name in ("reference", "customer_reference"):
            if len(args.get(name, "")) > _LONGEST:
                return _refusal(422, f"{name.upper()} TOO LONG")
        zone = args.get("timezone", "UTC")
        if not is_zone(zone):
            return _refusal(422, "INVALID TIMEZONE")
        try:
            expires = stamps.read(args["expires"]) if "expires" in args else None
        except ValueError:
            return _refusal(422, "INVALID EXPIRES")
        reference = args.get("reference", "")
        keys = self.world.by_reference.get(reference)
        if not keys:
            return _refusal(404, "NO FILE FOUND")
        language = args.get("language") or args.get("lang")
        share = Share(
            key=max(keys, key=lambda key: self.world.records[key].updated),
            reference=reference,
            customer_reference=args.get("customer_reference"),
            expires=expires,
            language=language if language and len(language) == _LANGUAGE and language.isalpha() else None,
            username=args.get("username"),
            timezone=zone,
            secret=secrets.token_urlsafe(24),
        )
        self.made[share.secret] = share
        self._write(args, reference)
        body = {"response": "success", "status": "SHARE CREATED", "share_url": f"{origin}/s/{share.secret}"}
        return json_answer(body, 200, _NO_CACHE)

    def view(self, secret: str) -> Answer:
        """Return the page a recipient sees, which needs no token."""
        share = self.made.get(secret)
        if share is None:
            return html_answer("No such share", 404)
        if share.expires is not None and share.expires < self.world.clock.now():
            return html_answer("This share has expired", 410)
        return html_answer("Shared file")

    def _write(self, args: MultiMapping[str], reference: str) -> None:
        if args.get("send_email", "true").lower() in {"false", "0", "no", "off"}:
            return
        if args.get("email"):
            self.emails.append((args["email"], reference))
        if args.get("dl"):
            self.emails.extend((f"{args['dl']}#{n}", reference) for n in range(_DL_RECIPIENTS))


def unauthorized() -> Answer:
    """Return the answer of /share for a missing or invalid token."""
    return _refusal(401, "Unauthorized")


def _refusal(status: int, text: str) -> Answer:
    return json_answer({"response": "error", "status": text}, status, _NO_CACHE)


def is_zone(name: str) -> bool:
    """Return whether a name is in the time zone database."""
    try:
        ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        # ZoneInfo raises IsADirectoryError for "Europe" and KeyError's child for unknown names.
        return False
    return True
