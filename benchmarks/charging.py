"""DSPy's cache, at full price: an answer that another cell has paid for is charged as if it were new.

Cells share most of their first calls, and on a slow model it matters not to make them twice. What a cell costs must not
depend on which cell ran before it, though. So the first time a cell is given an answer from the cache, its calls and
tokens are counted like those of an answer of the model; the second time it is the cell's own, and free.

A budget is counted and enforced at the same place, for every optimizer alike: a question that the cell has not asked
before costs as many calls as answers it asks for, whether the model or the cache gives them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dspy
from dspy.utils.exceptions import LMBillingError


class BudgetSpentError(LMBillingError):
    """The budget of the learning is spent: an LM without credit, so that nobody tries again."""


class ChargingCache:
    """Stands in for ``dspy.cache`` while a cell runs.

    Args:
        cache: keeps the answers.
        budget: most calls that may be spent; None: no bound.

    Attributes:
        charged: answers that came from the cache and were charged all the same.
        spent: calls that the cell has paid for, those of ``charged`` included.
        refused: calls that failed because the budget was spent.
    """

    def __init__(self, cache: Any, budget: int | None = None) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self._own: set[str] = set()
        self.budget = budget
        self.charged = self.spent = self.refused = 0

    def get(self, request: dict[str, Any], ignored: list[str] | None = None) -> Any:
        """The answer, charged to the LM usage of this context unless the cell has paid for it.

        An answer that does not tell its tokens cannot be charged, so it is asked for again.

        Raises:
            BudgetSpentError: when the cell has not asked before, and has no call left.
        """
        is_new = self._pay(request, ignored)
        answer = self._cache.get(request, ignored)
        if answer is None or not is_new:
            return answer
        usage = answer.get("usage") if isinstance(answer, dict) else None
        if usage is None:
            return None
        with self._lock:
            self.charged += 1
        if dspy.settings.usage_tracker:
            dspy.settings.usage_tracker.add_usage(_model(request), usage)
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def _pay(self, request: dict[str, Any], ignored: list[str] | None) -> bool:
        """Whether the question is new to the cell; then it is paid for, if it is one to an LM."""
        key = self._cache.cache_key(request, ignored)
        calls = int(request.get("n") or 1) if "messages" in request or "request" in request else 0
        with self._lock:
            if key in self._own:
                return False
            if self.budget is not None and self.spent + calls > self.budget:
                self.refused += 1
                raise BudgetSpentError(f"the budget of {self.budget} LM calls is spent")
            self._own.add(key)
            self.spent += calls
        return True


def _model(request: dict[str, Any]) -> str:
    return str(request.get("model") or request.get("request", {}).get("model", ""))


@contextmanager
def charging(budget: int | None = None) -> Iterator[ChargingCache]:
    """Charge for every answer inside the block once, whoever asked for it before, up to a budget in LM calls."""
    before = dspy.cache
    dspy.cache = ChargingCache(before, budget)
    try:
        yield dspy.cache
    finally:
        dspy.cache = before


def refused() -> int:
    """Calls that failed because the budget of the cell that is running was spent."""
    cache = dspy.cache
    return cache.refused if isinstance(cache, ChargingCache) else 0
