"""Whether a run may go on: what it has spent against its budget, and whether something has stopped it."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Literal

import anyio

from tgrpo_dspy.errors import LMUnavailableError
from tgrpo_dspy.records import Role, Usage
from tgrpo_dspy.runs.events import Announcer, BudgetSpent, RunStopped, Warned
from tgrpo_dspy.runs.secrets import Secrets
from tgrpo_dspy.settings import Budget

_Kind = Literal["run", "reflection"]
_ROLES: Mapping[_Kind, tuple[Role, ...]] = {"run": ("rollout", "evaluation", "metric"), "reflection": ("reflection",)}


class Spending:
    """Asked before every piece of work. Once it says no, the run only finishes what it has.

    Args:
        budget: the bounds.
        usage: the LM usage so far by role, in a call.
        announce: told when the run has to stop.
        secrets: what must not get into an error text.
        before: LM usage paid for before.
        runs: program runs paid for before.

    Attributes:
        stopped_by: what stopped the run, or None.
        lm_error: set when that was an LM.
    """

    def __init__(
        self,
        budget: Budget,
        usage: Callable[[], Mapping[Role, Usage]],
        announce: Announcer,
        secrets: Secrets,
        *,
        before: Usage | None = None,
        runs: int = 0,
    ) -> None:
        self._bounds = {name: bound for name, bound in vars(budget).items() if bound is not None}
        self._usage, self._before, self._runs = usage, before or Usage(), runs
        self._announce, self._secrets = announce, secrets
        self._started = time.monotonic()
        self._under_way: Counter[_Kind] = Counter()
        self._finished: Counter[_Kind] = Counter()
        self._one_ended = anyio.Event()
        self._aside: dict[Role, Usage] = {}
        self._runs_aside = 0
        self._warned = False
        self.stopped_by: str | None = None
        self.lm_error: LMUnavailableError | None = None

    def reserve(self, *, evaluation: Usage, runs: int, reflection: Usage) -> None:
        """Set aside what reflecting on a step and scoring its library take, so that rollouts never eat them up."""
        self._aside = {"rollout": evaluation + reflection, "reflection": evaluation}
        self._runs_aside = runs

    @asynccontextmanager
    async def start(self, role: Role) -> AsyncIterator[bool]:
        """Whether a piece of work may begin; it is under way for the length of the block.

        What is under way is taken to use what its like has used so far. Where that would reach a bound, nothing begins
        before it is known.
        """
        if not await self._may_start(role):
            yield False
            return
        kind: _Kind = "reflection" if role == "reflection" else "run"
        self._runs += kind == "run"
        self._under_way[kind] += 1
        try:
            yield True
        finally:
            self._under_way[kind] -= 1
            self._finished[kind] += 1
            self._one_ended.set()
            self._one_ended = anyio.Event()

    def stop(self, reason: str) -> None:
        """Stop the run. The first reason counts."""
        if self.stopped_by is None:
            self.stopped_by = reason
            self._announce(RunStopped(reason=reason))

    def lm_failed(self, error: Exception, what: str) -> None:
        """Stop the run because an LM fails for good: nothing more is started."""
        text = self._secrets.mask(f"{what}: {error}")
        if self.lm_error is None:
            self.lm_error = LMUnavailableError(text)
            # An error text with a secret in it must not be shown as the cause either.
            self.lm_error.__cause__ = error if self._secrets.mask(str(error)) == str(error) else None
        self.stop(f"lm: {text}")

    def tell(self) -> None:
        """Announce how near the budget is to its end, where there is one."""
        usage = self._total(self._usage())
        spent = {**_amounts(usage), "max_rollouts": self._runs, "max_seconds": self._seconds()}
        if self._bounds:
            bound, most = max(self._bounds.items(), key=lambda bound: spent[bound[0]] / bound[1])
            self._announce(BudgetSpent(bound=bound, spent=spent[bound], most=most))
        if usage.unpriced and "max_cost" in self._bounds and not self._warned:
            self._warned = True
            message = f"max_cost={self._bounds['max_cost']:g} bounds less than all: some LM calls have no known price"
            self._announce(Warned(message=f"{message}; max_lm_calls or max_tokens bound those too"))

    async def _may_start(self, role: Role) -> bool:
        while self.lm_error is None:
            if not self._bounds:
                return True
            used = self._usage()
            spent = self._spent(role, used)
            reached = next((f"{name}={bound:g}" for name, bound in self._bounds.items() if spent[name] >= bound), None)
            if reached is not None:
                self.stop(f"budget: {reached}")
                return False
            expected = self._expected(used)
            if all(spent[name] + expected.get(name, 0) < bound for name, bound in self._bounds.items()):
                return True
            await self._one_ended.wait()
        return False

    def _spent(self, role: Role, used: Mapping[Role, Usage]) -> dict[str, float]:
        """What is gone of every bound for a piece of work of this role."""
        runs = self._runs + (self._runs_aside if role == "rollout" else 0)
        return {
            **_amounts(self._total(used) + self._aside.get(role, Usage())),
            "max_rollouts": 0 if role == "reflection" else runs,
            "max_seconds": self._seconds(),
        }

    def _expected(self, used: Mapping[Role, Usage]) -> dict[str, float]:
        """What the work that is under way will use; before the first of its kind has ended, a call each."""
        expected: defaultdict[str, float] = defaultdict(float)
        for kind, under_way in self._under_way.items():
            finished = self._finished[kind]
            usage = sum((used.get(role, Usage()) for role in _ROLES[kind]), start=Usage())
            each = _amounts(usage if finished else Usage(calls=1))
            for name, amount in each.items():
                expected[name] += under_way * amount / max(1, finished)
        return expected

    def _total(self, used: Mapping[Role, Usage]) -> Usage:
        return sum(used.values(), start=self._before)

    def _seconds(self) -> float:
        return time.monotonic() - self._started


def _amounts(usage: Usage) -> dict[str, float]:
    return {
        "max_lm_calls": usage.calls,
        "max_tokens": usage.prompt_tokens + usage.completion_tokens,
        "max_cost": usage.cost,
    }
