"""Scoring a library on a validation set with the user's own LM settings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tgrpo_dspy.records import Evaluation
from tgrpo_dspy.sampling.examples import Item
from tgrpo_dspy.sampling.executor import gather
from tgrpo_dspy.sampling.policy import Policy
from tgrpo_dspy.sampling.rollouts import Sampler


async def evaluate(policy: Policy, items: Sequence[Item], sampler: Sampler) -> Evaluation:
    """One run per example; examples whose run failed on the LM's or the metric's side have no score."""
    runs = await gather(
        [partial(sampler.evaluate, policy, item, abort_after=len(items), lane=lane) for lane, item in enumerate(items)]
    )
    return Evaluation(scores=tuple(run.reward for run in runs))
