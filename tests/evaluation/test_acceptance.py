"""Each rule of acceptance, with a case that would come out otherwise without it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tgrpo_dspy.errors import ConfigurationError
from tgrpo_dspy.evaluation.acceptance import Acceptance, Best, Candidate, Gate, Last, Verdict, acceptance_of
from tgrpo_dspy.library.experience import Experience
from tgrpo_dspy.library.library import ExperienceLibrary


def candidate(step: int, scores: Sequence[float | None] | None, tokens: int | None = None) -> Candidate:
    """One score per example; the student is step 0 and has no library."""
    library = ExperienceLibrary((Experience(id=f"e{step}", text=f"Lesson {step}."),) if step else ())
    return Candidate(
        step=step,
        library=library,
        scores=None if scores is None else tuple((score,) for score in scores),
        prompt_tokens=step * 10 if tokens is None else tokens,
    )


STUDENT = candidate(0, [0.0, 1.0, 0.0, 1.0])


def decide(
    acceptance: Acceptance,
    new: Candidate,
    *,
    best: Candidate | None = None,
    current: Candidate | None = None,
    student: Candidate = STUDENT,
) -> Verdict:
    best = best or student
    return acceptance.decide(student=student, current=current or best, new=new, best=best)


def test_best_returns_the_higher_mean_and_always_goes_on() -> None:
    better, worse = candidate(1, [1.0, 1.0, 0.0, 1.0]), candidate(2, [0.0, 0.0, 0.0, 1.0])
    first = decide(Best(), better)
    assert (first.best, first.continue_with) == (better, "new")
    second = decide(Best(), worse, best=better)
    assert (second.best, second.continue_with) == (better, "new")


@pytest.mark.parametrize("acceptance", [Best(), Gate()])
def test_what_scored_below_the_student_is_never_returned(acceptance: Acceptance) -> None:
    verdict = decide(acceptance, candidate(1, [0.0, 1.0, 0.0, 0.0]))
    assert verdict.best is STUDENT
    assert "below the student" in verdict.reason


def test_not_even_when_it_beats_the_best_on_the_few_examples_that_both_have() -> None:
    """An LM that failed on some examples makes 'better than' go in circles; the student breaks them."""
    student = candidate(0, [1.0, 1.0, 0.0, 0.0])
    best = candidate(1, [1.0, None, 0.5, None])
    new = candidate(2, [None, 0.0, 0.6, 0.0])
    assert decide(Best(), best, student=student).best is best
    assert decide(Best(), new, best=best, student=candidate(0, [1.0, 0.0, 0.0, 0.0])).best is new
    assert decide(Best(), new, best=best, student=student).best is best


def test_at_equal_means_the_shorter_library_is_returned() -> None:
    long, short = candidate(1, [1.0] * 4, tokens=80), candidate(2, [1.0] * 4, tokens=20)
    assert decide(Best(), short, best=long).best is short
    assert decide(Best(), long, best=short).best is short
    lesson_without_gain = candidate(1, [1.0, 0.0, 1.0, 0.0])
    assert decide(Best(), lesson_without_gain).best is STUDENT


def test_at_equal_means_and_lengths_the_earlier_step_is_returned() -> None:
    earlier, later = candidate(1, [1.0] * 4, tokens=20), candidate(2, [1.0] * 4, tokens=20)
    assert decide(Best(), later, best=earlier).best is earlier


def test_means_that_differ_by_rounding_alone_are_equal() -> None:
    long = candidate(1, [0.1 + 0.2, 0.0, 1.0, 1.0], tokens=80)
    short = candidate(2, [0.0, 0.3, 1.0, 1.0], tokens=20)
    assert decide(Best(), short, best=long).best is short


def test_candidates_are_compared_on_the_examples_both_have_a_score_for() -> None:
    """By its own mean the new one looks better; on the three examples they share it is worse."""
    best = candidate(1, [1.0, 1.0, 1.0, 0.0])
    assert decide(Best(), candidate(2, [1.0, 1.0, 0.9, None]), best=best).best is best


def test_repeats_count_as_their_mean() -> None:
    def repeated(step: int, *scores: tuple[float | None, ...]) -> Candidate:
        return Candidate(step=step, library=ExperienceLibrary(), scores=scores, prompt_tokens=step)

    student = repeated(0, (1.0, 0.0), (0.0, 0.0))
    better = repeated(1, (1.0, 1.0), (0.0, None))
    assert decide(Best(), better, student=student).best is better


@pytest.mark.parametrize("acceptance", [Best(), Gate()])
def test_what_could_not_be_measured_is_not_returned_in_place_of_what_was(acceptance: Acceptance) -> None:
    for new in (candidate(1, None), candidate(1, [None] * 4)):
        verdict = decide(acceptance, new)
        assert (verdict.best, verdict.continue_with) == (STUDENT, "new")
    best, shorter = candidate(1, [1.0] * 4, tokens=80), candidate(2, [None] * 4, tokens=20)
    assert decide(acceptance, shorter, best=best).best is best


@pytest.mark.parametrize("acceptance", [Best(), Gate(), Last()])
def test_without_validation_scores_the_last_library_is_returned(acceptance: Acceptance) -> None:
    verdict = decide(acceptance, candidate(3, None), best=candidate(2, None), student=candidate(0, None))
    assert (verdict.best.step, verdict.continue_with) == (3, "new")


def test_last_returns_the_last_library_whatever_it_scored() -> None:
    new = candidate(1, [0.0] * 4)
    verdict = decide(Last(), new)
    assert (verdict.best, verdict.continue_with) == (new, "new")


def test_the_gate_rolls_back_only_what_is_worse_beyond_chance() -> None:
    current = candidate(1, [1.0] * 10)
    slightly = candidate(2, [0.0] * 3 + [1.0] * 7)
    clearly = candidate(2, [0.0] * 4 + [1.0] * 6)
    student = candidate(0, [0.0] * 10)
    assert decide(Gate(), slightly, best=current, student=student).continue_with == "new"
    verdict = decide(Gate(), clearly, best=current, student=student)
    assert (verdict.continue_with, verdict.best) == ("current", current)
    assert "4 worse" in verdict.reason
    assert decide(Gate(level=0.05), clearly, best=current, student=student).continue_with == "new"


def test_the_gate_compares_with_the_library_the_step_started_from() -> None:
    """Not with the best and not with the student."""
    best = candidate(1, [1.0] * 10)
    current = candidate(2, [0.0] * 3 + [1.0] * 7)
    new = candidate(3, [0.0] * 4 + [1.0] * 6)
    verdict = decide(Gate(), new, best=best, current=current, student=candidate(0, [0.5] * 10))
    assert (verdict.continue_with, verdict.best) == ("new", best)


def test_the_gate_pairs_examples() -> None:
    """The same means: won and lost on different examples it is chance, lost on the same ones it is not."""
    current = candidate(1, [1.0] * 10 + [0.0] * 6)
    spread = candidate(2, [0.0] * 10 + [1.0] * 6)
    steady = candidate(2, [0.0] * 4 + [1.0] * 6 + [0.0] * 6)
    student = candidate(0, [0.0] * 16)
    assert decide(Gate(), spread, best=current, student=student).continue_with == "new"
    assert decide(Gate(), steady, best=current, student=student).continue_with == "current"


def test_the_gate_returns_the_best_of_what_it_let_through() -> None:
    better = candidate(2, [1.0, 1.0, 0.0, 1.0])
    assert decide(Gate(), better).best is better


@pytest.mark.parametrize("level", [0.0, 0.5, -1.0, 2.0])
def test_the_gates_level_is_a_small_chance(level: float) -> None:
    with pytest.raises(ConfigurationError, match="level"):
        Gate(level=level)


class Never:
    """An acceptance of the user's own."""

    def decide(self, *, student: Candidate, current: Candidate, new: Candidate, best: Candidate) -> Verdict:
        return Verdict(continue_with="current", best=student, reason="never")


def test_names_and_objects_both_name_an_acceptance() -> None:
    assert [acceptance_of(name) for name in ("best", "gate", "last")] == [Best(), Gate(), Last()]
    own, strict = Never(), Gate(level=0.01)
    assert acceptance_of(own) is own
    assert acceptance_of(strict) is strict


@pytest.mark.parametrize("choice", ["", "BEST", "majority", None, 3, Gate, len])
def test_anything_else_is_an_error_that_names_the_choices(choice: object) -> None:
    with pytest.raises(ConfigurationError, match="'best', 'gate', 'last'"):
        acceptance_of(choice)  # type: ignore[arg-type]
