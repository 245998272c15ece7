"""Every test gets a DSPy cache of its own, in memory, and the default settings back afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator

import dspy
import pytest
from hypothesis import HealthCheck, settings

# In CI the same examples every time, fewer, and no complaint about a slow machine; elsewhere new ones at every run.
settings.register_profile("ci", derandomize=True, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture(scope="session", autouse=True)
def no_disk_cache() -> None:
    """Before the fixtures of whole modules too, else DSPy opens its cache on the user's disk."""
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)


@pytest.fixture(autouse=True)
def fresh_cache() -> Iterator[None]:
    before = dspy.cache
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)
    yield
    dspy.cache = before
