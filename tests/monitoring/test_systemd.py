"""systemd is told as sd_notify(3) has it."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from pipeline.monitoring.systemd import SystemdNotifier

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("abstract", [False, True])
def test_states_arrive(tmp_path: Path, abstract: bool) -> None:  # noqa: FBT001
    """States and the status arrive as one datagram, at a path or in the abstract name space."""
    name = f"@scanlake-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0" + name[1:] if abstract else name)
        systemd.settimeout(5)
        SystemdNotifier.from_environment({"NOTIFY_SOCKET": name}).notify(READY="1", status="all is\nwell")
        assert systemd.recv(4096) == b"READY=1\nSTATUS=all is well"


def test_nobody_listening_is_no_trouble(tmp_path: Path) -> None:
    """Without systemd, or with one that has gone, nothing happens."""
    SystemdNotifier.from_environment({}).notify(READY="1")
    SystemdNotifier.from_environment({"NOTIFY_SOCKET": str(tmp_path / "gone")}).notify(READY="1")


def test_the_watchdog_is_heard_of_only_where_it_is_ours() -> None:
    """The watchdog's limit counts for the process that it was set for."""
    base = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "30000000"}
    assert SystemdNotifier.from_environment(base).watchdog_seconds == 30
    assert SystemdNotifier.from_environment({**base, "WATCHDOG_PID": str(os.getpid())}).watchdog_seconds == 30
    assert SystemdNotifier.from_environment({**base, "WATCHDOG_PID": "1"}).watchdog_seconds is None
    assert SystemdNotifier.from_environment({**base, "WATCHDOG_USEC": "often"}).watchdog_seconds is None
    assert SystemdNotifier.from_environment({"NOTIFY_SOCKET": "vsock:2:1234"}).address is None
