"""systemd is told as sd_notify(3) has it."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from pipeline.watching.notify import Notifier

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("abstract", [False, True])
def test_states_arrive(tmp_path: Path, abstract: bool) -> None:  # noqa: FBT001
    """States and the status arrive as one datagram, at a path or in the abstract name space."""
    name = f"@scanlake-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0" + name[1:] if abstract else name)
        systemd.settimeout(5)
        Notifier.of({"NOTIFY_SOCKET": name}).tell(READY="1", status="all is\nwell")
        assert systemd.recv(4096) == b"READY=1\nSTATUS=all is well"


def test_nobody_listening_is_no_trouble(tmp_path: Path) -> None:
    """Without systemd, or with one that has gone, nothing happens."""
    Notifier.of({}).tell(READY="1")
    Notifier.of({"NOTIFY_SOCKET": str(tmp_path / "gone")}).tell(READY="1")


def test_the_watchdog_is_heard_of_only_where_it_is_ours() -> None:
    """The watchdog's limit counts for the process that it was set for."""
    base = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "30000000"}
    assert Notifier.of(base).watchdog == 30
    assert Notifier.of({**base, "WATCHDOG_PID": str(os.getpid())}).watchdog == 30
    assert Notifier.of({**base, "WATCHDOG_PID": "1"}).watchdog is None
    assert Notifier.of({**base, "WATCHDOG_USEC": "often"}).watchdog is None
    assert Notifier.of({"NOTIFY_SOCKET": "vsock:2:1234"}).address is None
