"""Notifications to systemd: READY, STATUS, WATCHDOG, STOPPING, see sd_notify(3)."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from pipeline.logs import to_one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

SYSTEMD_VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""Variables for the service's main process only."""

_MAX_STATUS_CHARS: Final = 200


@dataclass(frozen=True, slots=True)
class SystemdNotifier:
    """The socket of systemd; `address` is None if systemd did not start this process.

    `watchdog_seconds` is the longest time between two notifications.
    """

    address: str | None = None
    watchdog_seconds: float | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Return the notifier that systemd's variables describe."""
        address = environment.get("NOTIFY_SOCKET") or None
        if address is not None and address[0] not in "/@":
            address = None  # vsock and others are not supported
        is_main = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        limit = environment.get("WATCHDOG_USEC", "")
        has_watchdog = address and is_main and limit.isdigit() and int(limit)
        return cls(address, int(limit) / 1e6 if has_watchdog else None)

    def notify(self, *, status: str | None = None, **states: str) -> None:
        """Send states, `READY="1"` for example, and the status line; a missing receiver is ignored."""
        if self.address is None:
            return
        lines = [f"{name}={value}" for name, value in states.items()]
        if status is not None:
            lines.append(f"STATUS={to_one_line(status)[:_MAX_STATUS_CHARS]}")
        # A leading @ means the NUL byte of the abstract name space.
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
            connection.settimeout(0)
            connection.sendto("\n".join(lines).encode(), address)
