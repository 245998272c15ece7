"""Every test gets a DSPy cache of its own, in memory, and the default settings back afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import dspy
import pytest


@pytest.fixture(autouse=True)
def fresh_cache() -> Iterator[None]:
    before = dspy.cache
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)
    yield
    dspy.cache = before
