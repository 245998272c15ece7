"""How much a compiled program is to carry: a library, exemplars, or both, by validation score and prompt tokens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import dspy

from tgrpo_dspy.evaluation.scores import PairedDifference, mean_score, paired
from tgrpo_dspy.library.library import ExperienceLibrary
from tgrpo_dspy.records import Choice, Evaluation, Exemplar
from tgrpo_dspy.sampling import prompts

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a program could carry.

    Args:
        library, exemplars: what it is.
        evaluation: its score on the validation set; None: it is not known.
        prompt_tokens: tokens of a prompt without its inputs.
    """

    library: ExperienceLibrary
    exemplars: tuple[Exemplar, ...] = ()
    evaluation: Evaluation | None = None
    prompt_tokens: int = 0

    @property
    def label(self) -> str:
        """What it is, in words."""
        held = ["library"] if len(self.library) else []
        if shown := len(self.exemplars):
            held.append(f"{shown} exemplar{'s' if shown > 1 else ''}")
        return " + ".join(held) or "neither"


async def decide(
    library: ExperienceLibrary,
    beside: ExperienceLibrary,
    exemplars: Sequence[Exemplar],
    student: Evaluation | None,
    measure: Callable[[Offer], Awaitable[Offer]],
) -> tuple[Offer, list[Offer]]:
    """What to carry, and everything that was measured to decide it.

    Measured are the library alone, and all of the exemplars with and without experiences. Whichever of these two is the
    better is then measured with 1, 2, 4, … exemplars.

    Args:
        library: what is carried without exemplars.
        beside: the experiences to try beside exemplars. They may do together what they do not do alone.
        exemplars: the foremost first; not empty.
        student: the student's own score.
        measure: fills in the evaluation and the prompt tokens of an offer.
    """
    with_all = [Offer(library=beside, exemplars=tuple(exemplars))]
    if len(beside):
        with_all.append(replace(with_all[0], library=ExperienceLibrary()))
    measured = [await measure(offer) for offer in (Offer(library=library), *with_all)]
    better = choose(measured[1:], student)
    for count in _counts_below(len(exemplars)):
        measured.append(await measure(replace(better, exemplars=better.exemplars[:count])))
    return choose(measured, student), measured


def most_offers(limit: int) -> int:
    """How many offers ``decide`` measures at most beside the library alone, with at most ``limit`` exemplars.

    Example:
        >>> most_offers(0), most_offers(1), most_offers(8)
        (0, 2, 5)
    """
    return len(_counts_below(limit)) + 2 if limit else 0


def choose(found: Sequence[Offer], student: Evaluation | None) -> Offer:
    """The offer with the fewest prompt tokens of those that are as good as the best, as far as the scores can tell.

    As good means: at most one standard error of the paired difference below the best (the rule by which Breiman et al.
    1984 choose the size of a tree). What scored below the student is never taken, and among equals the first. When
    nothing can be compared with the student, it is the first.

    Args:
        found: what there is; the first is what would be taken without a choice.
        student: the student's own score.

    Example:
        >>> def offer(tokens, *scores):
        ...     evaluation = Evaluation(repeats=tuple((score,) for score in scores))
        ...     return Offer(library=ExperienceLibrary(), evaluation=evaluation, prompt_tokens=tokens)
        >>> student, small, large = offer(10, 0, 0, 0, 0), offer(20, 1, 1, 1, 0), offer(90, 1, 1, 1, 1)
        >>> choose([small, large], student.evaluation) is small, choose([student, large], student.evaluation) is large
        (True, True)
    """
    fit = [offer for offer in found if _is_at_least(_compare(offer.evaluation, student), 0)]
    if not fit:
        return found[0]
    best = fit[0]
    for offer in fit:
        if _compare(offer.evaluation, best.evaluation).mean > _ROUNDING:
            best = offer
    against_best = [(offer, _compare(offer.evaluation, best.evaluation)) for offer in fit]
    close = [offer for offer, difference in against_best if _is_at_least(difference, -difference.standard_error)]
    return min(close, key=lambda offer: offer.prompt_tokens)


def as_choices(found: Sequence[Offer], chosen: Offer) -> tuple[Choice, ...]:
    """The offers as the report tells them."""
    return tuple(
        Choice(
            label=offer.label,
            experiences=len(offer.library),
            exemplars=len(offer.exemplars),
            score=mean_score(offer.evaluation.repeats) if offer.evaluation else None,
            prompt_tokens=offer.prompt_tokens,
            chosen=offer is chosen,
        )
        for offer in found
    )


def prompt_tokens(program: dspy.Module) -> int:
    """Tokens (estimated) of a prompt without its inputs, averaged over the program's predictors.

    Example:
        >>> plain, shown = dspy.Predict("question -> answer"), dspy.Predict("question -> answer")
        >>> shown.demos = [dspy.Example(question="1 + 1?", answer="2")]
        >>> 0 < prompt_tokens(plain) < prompt_tokens(shown)
        True
    """
    return round(fmean(prompts.prompt_tokens(p.signature, p.demos, {}) for p in program.predictors()))


def _counts_below(most: int) -> list[int]:
    """1, 2, 4, … below ``most``."""
    return [2**power for power in range((most - 1).bit_length())]


def _compare(first: Evaluation | None, second: Evaluation | None) -> PairedDifference:
    return paired(first.repeats, second.repeats) if first and second else paired((), ())


def _is_at_least(difference: PairedDifference, bound: float) -> bool:
    """Whether two can be compared, and the first is better than the second by the bound."""
    return difference.n > 0 and difference.mean >= bound - _ROUNDING
