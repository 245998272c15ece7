"""Which library learning goes on from, and which one is returned."""

from __future__ import annotations

from dataclasses import replace

from tgrpo_dspy.evaluation.acceptance import Acceptance, Candidate, Verdict
from tgrpo_dspy.library.instructions import render_block
from tgrpo_dspy.library.library import ExperienceLibrary
from tgrpo_dspy.library.limits import estimate_tokens
from tgrpo_dspy.records import Evaluation


class Selection:
    """Keeps the student, the library that learning goes on from, and the best one so far.

    Args:
        acceptance: decides after every step.
        carried: the library the student carries.
        evaluation: the student's score, where there is a validation set.
    """

    def __init__(self, acceptance: Acceptance, carried: ExperienceLibrary, evaluation: Evaluation | None) -> None:
        self._acceptance, self.student_score = acceptance, evaluation
        self._student = self.current = self.best = _candidate(0, carried, evaluation)

    def start(self, library: ExperienceLibrary, evaluation: Evaluation | None) -> None:
        """Begin with another library than the student's; it is returned when nothing better comes."""
        new = _candidate(0, library, evaluation)
        self._judge(new)
        self.current = new

    def decide(self, step: int, library: ExperienceLibrary, evaluation: Evaluation | None) -> tuple[bool, str]:
        """Whether learning goes on from a step's library, and why."""
        new = _candidate(step, library, evaluation)
        verdict = self._judge(new)
        if verdict.continue_with == "new":
            self.current = new
        else:  # an id stands for one lesson only, also for one that was rolled back
            used = max(self.current.library.next_number, library.next_number)
            self.current = replace(self.current, library=replace(self.current.library, next_number=used))
        return verdict.continue_with == "new", verdict.reason

    def _judge(self, new: Candidate) -> Verdict:
        verdict = self._acceptance.decide(student=self._student, current=self.current, new=new, best=self.best)
        self.best = verdict.best
        return verdict


def _candidate(step: int, library: ExperienceLibrary, evaluation: Evaluation | None) -> Candidate:
    scores = evaluation.repeats if evaluation is not None else None
    return Candidate(step=step, library=library, scores=scores, prompt_tokens=estimate_tokens(render_block(library)))
