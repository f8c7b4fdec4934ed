"""The table of promises in docs/architecture.md: each has a test, and each test exists."""

import re
from typing import Final

from tests.docs.documents import DOCUMENTS, ROOT

_TEST: Final = re.compile(r"`(\w+): (test_\w+)`")


def test_every_promise_has_a_test_that_exists() -> None:
    """Each row names at least one test, by its folder, and the folder has a function of that name."""
    rows = DOCUMENTS["docs/architecture.md"].table("promise")
    assert len(rows) >= 40
    missing = []
    for promise, tests in rows:
        named = _TEST.findall(tests)
        assert named, promise
        for folder, name in named:
            sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests" / folder).rglob("test_*.py"))
            if f"def {name}(" not in sources:
                missing.append(f"{promise}: tests/{folder} has no {name}")
    assert not missing
