"""Counting LM calls, tokens and their cost by role."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partialmethod
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback
from dspy.utils.usage_tracker import UsageTracker

from tgrpo_dspy.records import Role, Usage
from tgrpo_dspy.runs.prices import price


class Stopped(BaseException):
    """Ends the thread of a run that nobody waits for any more; no ``except Exception`` on its way can hold it."""


class UsageLedger:
    """Adds up LM usage by role; safe to use from many threads.

    Args:
        parents: ledgers to which everything counted here is added too.

    Example:
        >>> whole = UsageLedger()
        >>> part = UsageLedger(whole)
        >>> part.add({"rollout": Usage(calls=2)})
        >>> whole.total()["rollout"].calls
        2
    """

    def __init__(self, *parents: UsageLedger) -> None:
        self._parents = parents
        self._lock = threading.Lock()
        self._usage: defaultdict[Role, Usage] = defaultdict(Usage)

    @contextmanager
    def count(self, role: Role, watching: Sequence[BaseCallback] = ()) -> Iterator[Meter]:
        """Count every LM call made inside the block, in this context, for ``role``; it is added when the block ends.

        ``watching`` are told of what happens in the block too.
        """
        meter = Meter(dspy.settings.usage_tracker)
        told = Together(meter.callback, *watching)
        with dspy.context(usage_tracker=meter, callbacks=[*dspy.settings.callbacks, told]):
            try:
                yield meter
            finally:
                self.add({role: meter.usage()})

    def add(self, usage: Mapping[Role, Usage]) -> None:
        """Add usage that was counted elsewhere, such as in an earlier run."""
        with self._lock:
            for role, used in usage.items():
                if used != Usage():
                    self._usage[role] += used
        for parent in self._parents:
            parent.add(usage)

    def total(self) -> Mapping[Role, Usage]:
        """Usage by role so far; roles without a call are absent."""
        with self._lock:
            return dict(self._usage)


def difference(later: Mapping[Role, Usage], earlier: Mapping[Role, Usage]) -> Mapping[Role, Usage]:
    """What was used between two totals of one ledger.

    Example:
        >>> difference({"rollout": Usage(calls=3)}, {"rollout": Usage(calls=1)})["rollout"].calls
        2
    """
    used = {role: usage - earlier.get(role, Usage()) for role, usage in later.items()}
    return {role: delta for role, delta in used.items() if delta != Usage()}


class Meter(UsageTracker):
    """Counts the calls of one block: DSPy's tracker, which is told of every call that was not served from the cache."""

    def __init__(self, parent: UsageTracker | None) -> None:
        super().__init__()
        self._parent = parent
        self._lock = threading.Lock()
        self._answered = Usage()
        self._stopped = False
        self.callback = _CallCounter(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Meter:
        # dspy.Parallel hands each of its workers a deep copy; the calls of the workers are to be counted here too.
        return self

    def stop(self) -> None:
        """End the run: ``Stopped`` is raised in its thread after the LM call it is in, or else before its next one.

        What that call used still counts.
        """
        self._stopped = True

    def end_if_stopped(self) -> None:
        """Raise ``Stopped`` when the run was told to end."""
        if self._stopped:
            raise Stopped

    def add_usage(self, lm: str, usage_entry: dict[str, Any]) -> None:
        self._count(lm, usage_entry)
        self.end_if_stopped()

    def usage(self) -> Usage:
        """Everything counted. To be read once, when the block has ended."""
        # A tracker of the program's own keeps its calls to itself and hands them over here when it is done.
        for lm, entries in self.usage_data.items():
            for entry in entries:
                self._count(lm, entry)
        ended, failed = self.callback.ended, self.callback.failed
        # A failed call may still have been billed: DSPy then reports its usage although it raised.
        return replace(self._answered, cached=max(0, ended - self._answered.calls), failed=failed)

    def _count(self, lm: str, entry: Mapping[str, Any]) -> None:
        cost = price(lm, entry)
        used = Usage(
            calls=1,
            prompt_tokens=int(entry.get("prompt_tokens") or 0),
            completion_tokens=int(entry.get("completion_tokens") or 0),
            cost=cost or 0.0,
            unpriced=int(cost is None),
        )
        with self._lock:
            self._answered += used
        if self._parent is not None:
            self._parent.add_usage(lm, dict(entry))


class Together(BaseCallback):
    """Callbacks that count as one. DSPy looks up the handlers of each again for every call, at 50 µs a callback."""

    def __init__(self, *callbacks: BaseCallback) -> None:
        self._handlers: defaultdict[str, list[Callable[..., None]]] = defaultdict(list)
        for callback in callbacks:
            for name in _own(callback.__class__):
                self._handlers[name].append(getattr(callback, name))

    def _tell(self, name: str, **what: Any) -> None:
        for handler in self._handlers.get(name, ()):
            handler(**what)


_HANDLERS = frozenset(name for name in vars(BaseCallback) if name.startswith("on_"))
for _name in _HANDLERS:
    setattr(Together, _name, partialmethod(Together._tell, _name))


@cache
def _own(kind: type[BaseCallback]) -> frozenset[str]:
    """The handlers that a class has of its own."""
    return _HANDLERS.intersection(name for base in kind.__mro__ if base is not BaseCallback for name in vars(base))


class _CallCounter(BaseCallback):
    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._lock = threading.Lock()
        self.ended = 0
        self.failed = 0

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        self._meter.end_if_stopped()

    def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        answered = exception is None or isinstance(exception, Stopped)
        with self._lock:
            if answered:
                self.ended += 1
            else:
                self.failed += 1
