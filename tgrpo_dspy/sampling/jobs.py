"""One run of a program on one example: what it takes, what comes of it, and who may carry it out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import dspy

from tgrpo_dspy.records import Role, Rollout
from tgrpo_dspy.runs.usage import UsageLedger
from tgrpo_dspy.sampling.examples import Item
from tgrpo_dspy.sampling.executor import Slots
from tgrpo_dspy.sampling.policy import Policy
from tgrpo_dspy.sampling.rewards import Metric
from tgrpo_dspy.settings import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """How a policy is run, as plain data.

    Args:
        role: what its LM calls are counted for.
        number: its place among the runs of the example, from 0.
        rollout_id: tells its LM calls from those of every other run; None: they are the same calls.
        temperature: at which its LMs sample; None: they keep the user's own settings.
        scored: whether the metric is asked.
        keep_demonstrations: whether to record what it takes to show the run to later ones.
    """

    role: Role
    number: int
    rollout_id: int | None = None
    temperature: float | None = None
    scored: bool = True
    keep_demonstrations: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """A policy to be run on an example."""

    policy: Policy
    item: Item
    draw: Draw

    def program(self) -> tuple[dspy.Module, dspy.BaseLM | None]:
        """A copy of the program to run, and the LM of its context."""
        draw = self.draw
        if draw.temperature is None or draw.rollout_id is None:
            return self.policy.as_is(draw.rollout_id)
        return self.policy.sampled(draw.rollout_id, draw.temperature)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a job.

    Args:
        rollout: the record of it.
        error: what the LM or the metric raised, when the rollout's failure is theirs.
    """

    rollout: Rollout
    error: Exception | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What all jobs of a run have in common.

    Args:
        student: the program without a library; every job runs a variant of it.
        metric: scores the results.
        sampling: reward of a failure, and the deadline.
        slots: places to run in. Who awaits a runner holds one, so no more jobs are under way than there are places.
    """

    student: dspy.Module
    metric: Metric
    sampling: Sampling
    slots: Slots


Runner: TypeAlias = Callable[[Job, UsageLedger], Awaitable[Outcome]]
"""Carries out a job and enters the LM usage of it in the ledger.

What goes wrong in the program, the LM or the metric is in the outcome. ``MetricError`` is raised when the metric
returns no reward; every other exception ends the run.
"""


class Executor(Protocol):
    """Where programs run. An object with this method can be given as ``executor`` to ``TrainingFreeGRPO``."""

    def open(self, terms: Terms) -> AbstractContextManager[Runner]:
        """Make ready for a run, before anything is spent, and give the places back at its end.

        Raises:
            ConfigurationError: when the program, the LMs or the metric cannot work there.
        """
