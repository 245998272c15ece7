"""Counting LM calls and tokens by role."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback
from dspy.utils.usage_tracker import UsageTracker

from tgrpo_dspy.records import Role, Usage


class UsageLedger:
    """Adds up LM usage by role; safe to use from many threads.

    Example:
        >>> ledger = UsageLedger()
        >>> with ledger.count("rollout"):
        ...     pass
        >>> ledger.total()
        {}
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._usage: defaultdict[Role, Usage] = defaultdict(Usage)

    @contextmanager
    def count(self, role: Role) -> Iterator[None]:
        """Count every LM call made inside the block, in this context, for ``role``."""
        parent = dspy.settings.usage_tracker
        meter = _Meter(parent)
        with dspy.context(usage_tracker=meter, callbacks=[*dspy.settings.callbacks, meter.callback]):
            try:
                yield
            finally:
                usage = meter.usage()
                if usage != Usage():
                    with self._lock:
                        self._usage[role] += usage

    def total(self) -> Mapping[Role, Usage]:
        """Usage by role so far; roles without a call are absent."""
        with self._lock:
            return dict(self._usage)


def difference(later: Mapping[Role, Usage], earlier: Mapping[Role, Usage]) -> Mapping[Role, Usage]:
    """What was used between two totals of one ledger."""
    used: dict[Role, Usage] = {}
    for role, usage in later.items():
        before = earlier.get(role, Usage())
        delta = Usage(**{name: getattr(usage, name) - getattr(before, name) for name in Usage.__dataclass_fields__})
        if delta != Usage():
            used[role] = delta
    return used


class _Meter(UsageTracker):
    """DSPy's tracker, which is told of every answered call that was not served from the cache."""

    def __init__(self, parent: UsageTracker | None) -> None:
        super().__init__()
        self._parent = parent
        self._lock = threading.Lock()
        self._answered = 0
        self._tokens = {"prompt_tokens": 0, "completion_tokens": 0}
        self.callback = _CallCounter()

    def __deepcopy__(self, memo: dict[int, Any]) -> _Meter:
        # dspy.Parallel hands each of its workers a deep copy; the calls of the workers are to be counted here too.
        return self

    def add_usage(self, lm: str, usage_entry: dict[str, Any]) -> None:
        with self._lock:
            self._answered += 1
            for name in self._tokens:
                self._tokens[name] += int(usage_entry.get(name) or 0)
        if self._parent is not None:
            self._parent.add_usage(lm, usage_entry)

    def usage(self) -> Usage:
        ended, failed = self.callback.ended, self.callback.failed
        # A failed call may still have been billed: DSPy then reports its usage although it raised.
        return Usage(calls=self._answered, cached=max(0, ended - self._answered), failed=failed, **self._tokens)


class _CallCounter(BaseCallback):
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.ended = 0
        self.failed = 0

    def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        with self._lock:
            if exception is None:
                self.ended += 1
            else:
                self.failed += 1
