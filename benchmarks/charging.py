"""DSPy's cache, at full price: an answer that another cell has paid for is charged as if it were new.

Cells share most of their first calls, and on a slow model it matters not to make them twice. What a cell costs must not
depend on which cell ran before it, though. So the first time a cell is given an answer from the cache, its calls and
tokens are counted like those of an answer of the model; the second time it is the cell's own, and free.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dspy


class ChargingCache:
    """Stands in for ``dspy.cache`` while a cell runs.

    Args:
        cache: keeps the answers.
    """

    def __init__(self, cache: Any) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self._own: set[str] = set()
        self.charged = 0

    def get(self, request: dict[str, Any], ignored: list[str] | None = None) -> Any:
        """The answer, charged to the LM usage of this context unless the cell has paid for it.

        An answer that does not tell its tokens cannot be charged, so it is asked for again.
        """
        answer = self._cache.get(request, ignored)
        if answer is None or not self._is_new(request, ignored):
            return answer
        usage = answer.get("usage") if isinstance(answer, dict) else None
        if usage is None:
            return None
        with self._lock:
            self.charged += 1
        if dspy.settings.usage_tracker:
            dspy.settings.usage_tracker.add_usage(_model(request), usage)
        return answer

    def put(self, request: dict[str, Any], value: Any, ignored: list[str] | None = None, *more: Any) -> None:
        """Keep an answer that the cell has paid for."""
        self._is_new(request, ignored)
        self._cache.put(request, value, ignored, *more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def _is_new(self, request: dict[str, Any], ignored: list[str] | None) -> bool:
        key = self._cache.cache_key(request, ignored)
        with self._lock:
            new = key not in self._own
            self._own.add(key)
        return new


def _model(request: dict[str, Any]) -> str:
    return str(request.get("model") or request.get("request", {}).get("model", ""))


@contextmanager
def charging() -> Iterator[ChargingCache]:
    """Charge for every answer inside the block once, whoever asked for it before."""
    before = dspy.cache
    dspy.cache = ChargingCache(before)
    try:
        yield dspy.cache
    finally:
        dspy.cache = before
