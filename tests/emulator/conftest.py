"""All async tests of this folder run in virtual time."""

from tests.virtual_time import VirtualLoop


def pytest_asyncio_loop_factories() -> dict[str, type[VirtualLoop]]:
    """Run each test in virtual time."""
    return {"loop": VirtualLoop}
