"""Scoring a library on a validation set with the user's own LM settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tgrpo_dspy.records import Evaluation, Rollout
from tgrpo_dspy.sampling.examples import Item
from tgrpo_dspy.sampling.executor import gather
from tgrpo_dspy.sampling.policy import Policy
from tgrpo_dspy.sampling.rollouts import Sampler


class Evaluator:
    """Scores policies on one set of examples. A run that was made, or remembered, is not made again.

    Args:
        items: the examples; may be empty.
        sampler: runs the program.
    """

    def __init__(self, items: Sequence[Item], sampler: Sampler) -> None:
        self.items = items
        self._sampler = sampler
        self._known: dict[str, Evaluation] = {}

    def remember(self, policy: Policy, evaluation: Evaluation) -> None:
        """Take over what is known of a policy from elsewhere."""
        self._known[policy.identity] = evaluation

    async def evaluate(self, policy: Policy, *, repeats: int = 1) -> Evaluation | None:
        """``repeats`` runs per example; one that failed on the LM's or the metric's side has no score.

        None when the run had to stop before every example was run: a score on fewer examples compares with nothing.
        """
        known = self._known.get(policy.identity, Evaluation(repeats=((),) * len(self.items)))
        made = min(map(len, known.repeats), default=repeats)
        if made < repeats:
            more = await self._run(policy, range(made, repeats))
            if more is None:
                return None
            known = self._known[policy.identity] = Evaluation(
                repeats=tuple(a + b for a, b in zip(known.repeats, more.repeats, strict=True)),
                ran=tuple(sorted({*known.ran, *more.ran})),
            )
        return replace(known, repeats=tuple(scores[:repeats] for scores in known.repeats))

    async def _run(self, policy: Policy, repeats: range) -> Evaluation | None:
        runs = await self.runs(policy, repeats)
        done = [run for of_example in runs for run in of_example if run is not None]
        if len(done) < len(runs) * len(repeats):
            return None
        return Evaluation(
            repeats=tuple(tuple(run.reward if run else None for run in of_example) for of_example in runs),
            ran=tuple(sorted({name for run in done for name in run.ran})),
        )

    async def runs(self, policy: Policy, repeats: range) -> list[tuple[Rollout | None, ...]]:
        """The runs of every example with these numbers; None for those that could not be made any more."""
        runs = await gather(
            [
                partial(self._sampler.evaluate, policy, item, repeat=repeat, abort_after=len(self.items), lane=lane)
                for lane, item in enumerate(self.items)
                for repeat in repeats
            ]
        )
        size = len(repeats)
        return [tuple(runs[i : i + size]) for i in range(0, len(runs), size)]
