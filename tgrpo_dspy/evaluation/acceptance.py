"""What becomes of a step once its library is measured: does learning go on from it, and is it the one to return?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from tgrpo_dspy.errors import ConfigurationError
from tgrpo_dspy.evaluation.scores import PairedDifference, paired
from tgrpo_dspy.library.library import ExperienceLibrary
from tgrpo_dspy.settings import require

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A library that could be returned.

    Args:
        step: the step that made it; 0: the student, or the library that learning started from.
        library: the library.
        scores: its repeats per validation example, in the order of the valset; None: it was not measured.
        prompt_tokens: tokens that the library adds to a prompt.
    """

    step: int
    library: ExperienceLibrary
    scores: tuple[tuple[float | None, ...], ...] | None
    prompt_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What an ``Acceptance`` decided.

    Args:
        continue_with: which library the next step starts from.
        best: the candidate to return if learning ended now.
        reason: why, in words, with the numbers.
    """

    continue_with: Literal["new", "current"]
    best: Candidate
    reason: str


@runtime_checkable
class Acceptance(Protocol):
    """Decides after every step. Must not depend on anything but its arguments, so that a resumed run decides alike."""

    def decide(self, *, student: Candidate, current: Candidate, new: Candidate, best: Candidate) -> Verdict:
        """Judge the ``new`` candidate of a step that started from ``current``.

        ``best`` is what would be returned so far; ``student`` is the program as it was handed in, the first ``best``.
        """
        ...


@dataclass(frozen=True, slots=True)
class Last:
    """The paper's rule: every step is accepted and the last library is returned."""

    def decide(self, *, student: Candidate, current: Candidate, new: Candidate, best: Candidate) -> Verdict:
        """Always the new one."""
        return Verdict(continue_with="new", best=new, reason="the last library is returned, as in the paper")


@dataclass(frozen=True, slots=True)
class Best:
    """Learning goes on from every step; the best library by validation score is returned.

    Two candidates are compared by their mean over the examples both have a score for. At equal means the shorter one is
    better, then the earlier one. A candidate that scored below the student is never returned. Without validation
    scores it is ``Last``.
    """

    def decide(self, *, student: Candidate, current: Candidate, new: Candidate, best: Candidate) -> Verdict:
        """Go on with the new one; return the better of it and the best so far."""
        if new.scores is None and best.scores is None:
            return Last().decide(student=student, current=current, new=new, best=best)
        better, reason = _better(student, new, best)
        return Verdict(continue_with="new", best=better, reason=reason)


@dataclass(frozen=True, slots=True)
class Gate:
    """A step whose library scores worse than the one it started from is rolled back; of the others the best returns.

    Worse means: on the examples both have a score for, by Fisher's randomisation test (see ``scores.paired``). Four
    examples lost and none won are enough at the default level, three never are. Without validation scores it is
    ``Last``.

    Args:
        level: chance, above 0 and below 0.5, at which a step that changes nothing may be rolled back. A wrong rollback
            costs one step, a wrong acceptance all that build on it; so the default is not stricter.

    Raises:
        ConfigurationError: for a level out of range.
    """

    level: float = 0.1

    def __post_init__(self) -> None:
        require(0 < self.level < 0.5, "level", self.level, "use a chance above 0 and below 0.5")

    def decide(self, *, student: Candidate, current: Candidate, new: Candidate, best: Candidate) -> Verdict:
        """Go back to the current one when the new one is worse; else as ``Best``."""
        difference = _compare(new, current)
        if difference.is_worse(self.level):
            reason = f"rolled back, worse than the library it started from: {_in_words(difference)}"
            return Verdict(continue_with="current", best=best, reason=reason)
        return Best().decide(student=student, current=current, new=new, best=best)


def always_goes_on(acceptance: Acceptance) -> bool:
    """Whether the next step starts from a step's library whatever its score, so that it need not wait for it."""
    return type(acceptance) in (Best, Last)


_BY_NAME: dict[str, Acceptance] = {"best": Best(), "gate": Gate(), "last": Last()}


def acceptance_of(choice: str | Acceptance) -> Acceptance:
    """The acceptance of that name, or the object itself when it has a ``decide`` of its own.

    Raises:
        ConfigurationError: for anything else.

    Example:
        >>> acceptance_of("gate")
        Gate(level=0.1)
        >>> acceptance_of("majority")
        Traceback (most recent call last):
        ...
        tgrpo_dspy.errors.ConfigurationError: acceptance='majority' cannot work: use 'best', 'gate', 'last', or an ...
    """
    if isinstance(choice, str) and choice in _BY_NAME:
        return _BY_NAME[choice]
    if isinstance(choice, Acceptance) and not isinstance(choice, type):
        return choice
    names = ", ".join(map(repr, _BY_NAME))
    raise ConfigurationError(
        f"acceptance={choice!r} cannot work: use {names}, or an object with decide(*, student, current, new, best)"
    )


def _better(student: Candidate, new: Candidate, best: Candidate) -> tuple[Candidate, str]:
    """The better of the two, and why. ``best`` is never below the student, so only ``new`` is held against it."""
    against_student, against_best = _compare(new, student), _compare(new, best)
    if against_best.n == 0:
        return best, f"no example has a score for both it and step {best.step}"
    if against_student.mean < -_ROUNDING:
        return best, f"below the student: {_in_words(against_student)}"
    gap = 0.0 if abs(against_best.mean) < _ROUNDING else against_best.mean
    if (-gap, new.prompt_tokens, new.step) < (0.0, best.prompt_tokens, best.step):
        return new, f"the best so far: {_in_words(against_best)}"
    return best, f"not better than step {best.step}: {_in_words(against_best)}"


def _compare(first: Candidate, second: Candidate) -> PairedDifference:
    if first.scores is None or second.scores is None:
        return paired((), ())
    return paired(first.scores, second.scores)


def _in_words(difference: PairedDifference) -> str:
    d = difference
    return (
        f"{d.mean:+.3f} ± {d.standard_error:.3f} on {d.n} examples ({d.wins} better, {d.ties} equal, {d.losses} worse)"
    )
