"""Scoring a library on a validation set with the user's own LM settings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tgrpo_dspy.records import Evaluation
from tgrpo_dspy.sampling.examples import Item
from tgrpo_dspy.sampling.executor import gather
from tgrpo_dspy.sampling.policy import Policy
from tgrpo_dspy.sampling.rollouts import Sampler


async def evaluate(policy: Policy, items: Sequence[Item], sampler: Sampler, *, repeats: int = 1) -> Evaluation | None:
    """``repeats`` runs per example; one that failed on the LM's or the metric's side has no score.

    None when the run had to stop before every example was run: a score on fewer examples compares with nothing.
    """
    runs = await gather(
        [
            partial(sampler.evaluate, policy, item, repeat=repeat, abort_after=len(items), lane=lane)
            for lane, item in enumerate(items)
            for repeat in range(repeats)
        ]
    )
    done = [run for run in runs if run is not None]
    if len(done) < len(runs):
        return None
    scores = [run.reward for run in done]
    return Evaluation(
        repeats=tuple(tuple(scores[i : i + repeats]) for i in range(0, len(scores), repeats)),
        ran=tuple(sorted({name for run in done for name in run.ran})),
    )
