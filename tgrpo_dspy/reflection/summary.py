"""Long attempts in a few sentences, so that two of them can be compared in one prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import dspy

from tgrpo_dspy.records import Group, Rollout
from tgrpo_dspy.reflection.asking import Asker
from tgrpo_dspy.reflection.signatures import SummarizeAttempt
from tgrpo_dspy.reflection.trajectory import Summaries, oversized, render_groups
from tgrpo_dspy.sampling.executor import gather


class Summarizer:
    """Summarises the attempts that would not fit a prompt, and no others.

    Args:
        asker: calls the module.
        task: what the student does, as text.
        max_tokens: bound on the attempts of a reflection prompt, and on the one in a prompt of its own.
        with_labels: whether the right answers are shown.
    """

    def __init__(self, *, asker: Asker, task: str, max_tokens: int, with_labels: bool) -> None:
        self._asker, self._task = asker, task
        self._max_tokens, self._with_labels = max_tokens, with_labels
        self._module = dspy.Predict(SummarizeAttempt)

    async def summaries(self, groups: Sequence[Group]) -> Summaries:
        """Summaries of the attempts to be shown that are too long; without those that the LM did not give."""
        long = oversized(groups, max_tokens=self._max_tokens, with_labels=self._with_labels)
        texts = await gather([partial(self._summary, group, rollout) for group, rollout in long])
        return {(group.key, rollout.number): text for (group, rollout), text in zip(long, texts, strict=True) if text}

    async def _summary(self, group: Group, rollout: Rollout) -> str:
        alone = replace(group, rollouts=(rollout,))
        attempt = render_groups([alone], max_tokens=self._max_tokens, with_labels=self._with_labels)
        answer = await self._asker.ask(self._module, task=self._task, attempt=attempt)
        return str(getattr(answer, "summary", "")).strip()
