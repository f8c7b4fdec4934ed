"""The machine of `lake_machine.py`, for as long as one likes: `make soak`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.soaking import SOAKING
from tests.stateful.lake_machine import DONE, LakeMachine

if TYPE_CHECKING:
    import pytest

EXAMPLES = int(os.environ.get("SOAK_EXAMPLES", "25"))
STEPS = int(os.environ.get("SOAK_STEPS", "12"))


def test_whatever_happens_nothing_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever happens to service and lake, in any order: after a quiet sync and a verify they are equal."""
    run_state_machine_as_test(
        LakeMachine,
        settings=settings(
            settings.default,
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            # A failure is printed as it was found: shrinking real syncs takes hours. The blob repeats it.
            phases=(Phase.explicit, Phase.reuse, Phase.generate),
            suppress_health_check=list(HealthCheck),
            deadline=None,
            print_blob=True,
        ),
    )
    assert DONE["comparisons"] >= EXAMPLES
    if SOAKING:
        with capsys.disabled():
            print(", ".join(f"{count:,} {what}" for what, count in sorted(DONE.items())))
