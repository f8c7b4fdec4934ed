"""Telling systemd how the service is: READY, STATUS, WATCHDOG, STOPPING, as sd_notify(3) has it."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from pipeline.logs import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

OF_SYSTEMD: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""Variables that concern the service's main process alone."""

_LONGEST: Final = 200


@dataclass(frozen=True, slots=True)
class Notifier:
    """Where to tell; nowhere when no systemd has started us. `watchdog`: seconds within which to be heard of."""

    address: str | None = None
    watchdog: float | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """As systemd's variables have it."""
        address = environment.get("NOTIFY_SOCKET") or None
        if address is not None and address[0] not in "/@":
            address = None  # vsock and the like: not ours to speak
        ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        limit = environment.get("WATCHDOG_USEC", "")
        return cls(address, int(limit) / 1e6 if address and ours and limit.isdigit() and int(limit) else None)

    def tell(self, *, status: str | None = None, **states: str) -> None:
        """Send states, `READY="1"` for example, and the status line. Nobody listening is no trouble."""
        if self.address is None:
            return
        lines = [f"{name}={value}" for name, value in states.items()]
        if status is not None:
            lines.append(f"STATUS={one_line(status)[:_LONGEST]}")
        # A leading @ stands for the NUL byte of the abstract name space.
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line:
                line.settimeout(0)
                line.sendto("\n".join(lines).encode(), address)
        except OSError:
            pass
