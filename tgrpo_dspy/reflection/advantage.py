"""The semantic advantage: why the better rollouts of a group beat the worse, and the edits that follow from it."""

from __future__ import annotations

from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

from tgrpo_dspy.reflection import demonstrations
from tgrpo_dspy.reflection.parsing import lines_to_proposals, salvage
from tgrpo_dspy.reflection.signatures import (
    FirstLessons,
    FirstLessonsByAgreement,
    ReviseLessons,
    ReviseLessonsByAgreement,
)
from tgrpo_dspy.reflection.trajectory import NO_LESSONS
from tgrpo_dspy.sampling.policy import rollout_id, sample_lm

_RETRY_TEMPERATURE = 0.7


class SemanticAdvantage(dspy.Module):
    """Compares the attempts of a few groups and proposes edits to the lessons (the paper's semantic advantage).

    While there are no lessons yet, it asks for rules, one a line; afterwards for edits. An answer that does not parse
    is asked again under a fresh rollout id and, at the last attempt, in the simpler form of rules.

    Args:
        attempts: how often to ask in all, 1 or more.
        with_labels: whether the attempts come with rewards and right answers; else with how far they agree.
    """

    def __init__(self, attempts: int = 3, *, with_labels: bool = True) -> None:
        super().__init__()
        self.attempts = attempts
        self.first = dspy.Predict(FirstLessons if with_labels else FirstLessonsByAgreement)
        self.first.demos = demonstrations.for_first_lessons(with_labels=with_labels)
        self.revise = dspy.Predict(ReviseLessons if with_labels else ReviseLessonsByAgreement)
        self.revise.demos = demonstrations.for_revision(with_labels=with_labels)

    def forward(self, task: str, lessons: str, attempts: str) -> dspy.Prediction:
        """Propose edits.

        Args:
            task: what the program does.
            lessons: the current library with ids.
            attempts: graded attempts as text, best first.

        Returns:
            A prediction with ``advantage`` (text) and ``edits`` (list of ``ProposedEdit``).

        Raises:
            AdapterParseError: when no attempt gave a readable answer.
        """
        for attempt in range(self.attempts):
            last = attempt == self.attempts - 1
            try:
                if lessons == NO_LESSONS or (last and attempt > 0):
                    answer = self._ask(self.first, attempt, task=task, attempts=attempts)
                    return dspy.Prediction(advantage=answer.advantage, edits=lines_to_proposals(answer.rules))
                answer = self._ask(self.revise, attempt, task=task, lessons=lessons, attempts=attempts)
                return dspy.Prediction(advantage=answer.advantage, edits=answer.edits)
            except AdapterParseError as error:
                edits = salvage(str(error.lm_response))
                if edits:
                    return dspy.Prediction(advantage="", edits=edits)
                if last:
                    raise
        raise AssertionError("unreachable: attempts is 1 or more")

    def _ask(self, predictor: dspy.Predict, attempt: int, **inputs: Any) -> dspy.Prediction:
        lm = predictor.lm or dspy.settings.lm
        if attempt:
            lm = sample_lm(lm, rollout_id("reflection", attempt), _RETRY_TEMPERATURE)
        return predictor(lm=lm, **inputs)
