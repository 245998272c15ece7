"""Whether a run may go on: what it has spent against its budget, and whether something has stopped it."""

from __future__ import annotations

import time
from collections.abc import Callable

from tgrpo_dspy.errors import LMUnavailableError
from tgrpo_dspy.records import Role, Usage
from tgrpo_dspy.runs.events import Announcer, BudgetSpent, RunStopped, Warned
from tgrpo_dspy.runs.secrets import Secrets
from tgrpo_dspy.settings import Budget

_RUNS = ("rollout", "evaluation")


class Spending:
    """Asked before every piece of work. Once it says no, the run only finishes what it has.

    Args:
        budget: the bounds.
        usage: the LM usage so far, in a call.
        announce: told when the run has to stop.
        secrets: what must not get into an error text.
        runs: program runs paid for before.

    Attributes:
        stopped_by: what stopped the run, or None.
        lm_error: set when that was an LM.
    """

    def __init__(
        self, budget: Budget, usage: Callable[[], Usage], announce: Announcer, secrets: Secrets, *, runs: int = 0
    ) -> None:
        self._budget, self._usage, self._runs = budget, usage, runs
        self._announce, self._secrets = announce, secrets
        self._started = time.monotonic()
        self._aside: dict[Role, Usage] = {}
        self._runs_aside = 0
        self._warned = False
        self.stopped_by: str | None = None
        self.lm_error: LMUnavailableError | None = None

    def reserve(self, *, evaluation: Usage, runs: int, reflection: Usage) -> None:
        """Set aside what reflecting on a step and scoring its library take, so that rollouts never eat them up."""
        self._aside = {"rollout": evaluation + reflection, "reflection": evaluation}
        self._runs_aside = runs

    def may_start(self, role: Role) -> bool:
        """Whether a piece of work may begin; a run of the program that may is counted."""
        if self.lm_error is not None:
            return False
        bound = self._reached(role)
        if bound is not None:
            self.stop(f"budget: {bound}")
            return False
        self._runs += role in _RUNS
        return True

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
        usage = self._usage()
        spent = self._spent(usage, self._runs)
        if spent:
            self._announce(max(spent, key=lambda event: event.spent / event.most))
        if usage.unpriced and self._budget.max_cost is not None and not self._warned:
            self._warned = True
            message = (
                f"max_cost={self._budget.max_cost:g} bounds less than all: the price of some LM calls is not known"
            )
            self._announce(Warned(message=f"{message}; max_lm_calls or max_tokens bound those too"))

    def _reached(self, role: Role) -> str | None:
        """The bound that leaves no room for a piece of work."""
        runs = self._runs + (self._runs_aside if role == "rollout" else 0)
        spent = self._spent(self._usage() + self._aside.get(role, Usage()), runs if role in _RUNS else 0)
        return next((f"{event.bound}={event.most:g}" for event in spent if event.spent >= event.most), None)

    def _spent(self, usage: Usage, runs: int) -> list[BudgetSpent]:
        """What has been used of every bound that is set."""
        spent = {
            "max_rollouts": runs,
            "max_lm_calls": usage.calls,
            "max_tokens": usage.prompt_tokens + usage.completion_tokens,
            "max_cost": usage.cost,
            "max_seconds": time.monotonic() - self._started,
        }
        bounds = {name: getattr(self._budget, name) for name in spent}
        return [
            BudgetSpent(bound=name, spent=value, most=bounds[name])
            for name, value in spent.items()
            if bounds[name] is not None
        ]
