"""Scores with their uncertainty: means over examples, paired differences, and what may be concluded from them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Literal

from tgrpo_dspy.records import Measured
from tgrpo_dspy.settings import require

Scores = Sequence[Sequence[float | None]]
"""One sequence of repeats per example; None where the LM or the metric failed."""

Judgement = Literal["harmful", "helpful", "unclear"]

_ROUNDING = 1e-9
_MAX_SUMS = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """How much better one program scored than another on the examples both have a score for.

    Args:
        mean: mean difference; positive when the first is better.
        standard_error: over examples; 0 with fewer than two.
        n: examples that both have a score for.
        wins, ties, losses: examples on which the first is better, equal, worse.
        p_worse: chance of a mean this low or lower if the two were equally good, 0 to 1 (see ``paired``).
    """

    mean: float
    standard_error: float
    n: int
    wins: int
    ties: int
    losses: int
    p_worse: float

    def is_worse(self, level: float) -> bool:
        """Whether the first is worse than the second; wrong with a chance of at most ``level`` when they are equal."""
        return self.p_worse <= level


def mean_score(scores: Scores) -> Measured:
    """Mean@k: the mean over examples of the mean over their k repeats, with its standard error over examples.

    Examples without any score are left out. The standard error is 0 with fewer than two examples.

    Example:
        >>> mean_score([(1.0, 0.0), (1.0, None), (None, None)])
        Measured(mean=0.75, standard_error=0.25, n=2)
    """
    return over_examples(_means(scores))


def pass_at(k: int, scores: Scores, *, success: float = 1.0) -> Measured:
    """Pass@k: the chance that at least one of k runs succeeds, with its standard error over examples.

    With n repeats, c of them successful, an example counts as 1 - C(n-c, k) / C(n, k), which is unbiased
    (Chen et al. 2021, arXiv 2107.03374). Examples with fewer than k scores are left out.

    Args:
        k: runs, 1 or more.
        scores: repeats per example.
        success: a run succeeds when its score is at least this; the top of the scale by default.

    Raises:
        ConfigurationError: when k is below 1.

    Example:
        >>> pass_at(1, [(1.0, 0.0), (1.0, 1.0)]).mean, pass_at(2, [(1.0, 0.0), (1.0, 1.0)]).mean
        (0.75, 1.0)
    """
    require(k >= 1, "k", k, "use 1 or more")
    chances = []
    for repeats in map(_scored, scores):
        failures = sum(score < success - _ROUNDING for score in repeats)
        if len(repeats) >= k:
            chances.append(1 - math.comb(failures, k) / math.comb(len(repeats), k))
    return over_examples(chances)


def paired(first: Scores, second: Scores) -> PairedDifference:
    """Compare two programs example by example, each example by the mean over its repeats.

    ``p_worse`` comes from Fisher's randomisation test (1935): were the two equally good, each difference could as well
    have had the other sign. All signs are counted out, so that it is exact for any number of examples as long as the
    scores take few values, and for up to 13 examples whatever they take; beyond, Student's t takes over.

    Raises:
        ValueError: when the two do not have the same number of examples.

    Example:
        >>> difference = paired([[0.0]] * 5 + [[1.0]], [[1.0]] * 6)
        >>> difference.losses, difference.ties, difference.p_worse, difference.is_worse(0.05)
        (5, 1, 0.03125, True)
    """
    pairs = [(_scored(a), _scored(b)) for a, b in zip(first, second, strict=True)]
    differences = [fmean(a) - fmean(b) for a, b in pairs if a and b]
    differences = [0.0 if abs(d) < _ROUNDING else d for d in differences]
    estimate = over_examples(differences)
    return PairedDifference(
        mean=estimate.mean,
        standard_error=estimate.standard_error,
        n=estimate.n,
        wins=sum(d > 0 for d in differences),
        ties=differences.count(0.0),
        losses=sum(d < 0 for d in differences),
        p_worse=_sign_flip(differences),
    )


def judge(effect: Measured, *, level: float = 0.05) -> Judgement:
    """Whether an effect is clearly negative, clearly positive, or neither.

    Each is a one-sided t test with n - 1 degrees of freedom, so an effect of zero is called harmful with a chance of
    ``level``, and helpful with the same. Fewer than two examples never suffice.

    Example:
        >>> judge(Measured(mean=-0.2, standard_error=0.05, n=20))
        'harmful'
        >>> judge(Measured(mean=-0.2, standard_error=0.05, n=2))
        'unclear'
    """
    if effect.n < 2 or abs(effect.mean) < _ROUNDING or math.isinf(effect.standard_error):
        return "unclear"
    # Examples that all say exactly the same are as likely as a coin that falls alike every time.
    alike = effect.standard_error == 0
    chance = 0.5**effect.n if alike else t_tail(abs(effect.mean) / effect.standard_error, effect.n - 1)
    if chance > level:
        return "unclear"
    return "harmful" if effect.mean < 0 else "helpful"


def over_examples(values: Sequence[float]) -> Measured:
    """The mean of one value per example, with its standard error (0 with fewer than two).

    Example:
        >>> over_examples([])
        Measured(mean=0.0, standard_error=0.0, n=0)
    """
    n = len(values)
    error = stdev(values) / math.sqrt(n) if n > 1 else 0.0
    return Measured(mean=fmean(values) if n else 0.0, standard_error=error, n=n)


def t_tail(t: float, df: int) -> float:
    """Chance that Student's t with ``df`` (1 or more) degrees of freedom exceeds ``t`` (0 or more).

    The closed form for whole degrees of freedom (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4); the normal
    distribution beyond 1000.

    Example:
        >>> round(t_tail(2.015, 5), 4), round(t_tail(6.314, 1), 4)
        (0.05, 0.05)
    """
    if df > 1000 or math.isinf(t):
        return NormalDist().cdf(-t)
    angle = math.atan(t / math.sqrt(df))
    odd = df % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for k in range(odd, df - 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (k + 1) / (k + 2)
    total *= math.sin(angle)
    inside = (angle + total) * 2 / math.pi if odd else total
    return max(0.0, (1 - inside) / 2)


def _scored(repeats: Iterable[float | None]) -> list[float]:
    return [score for score in repeats if score is not None]


def _means(scores: Scores) -> list[float]:
    return [fmean(repeats) for repeats in map(_scored, scores) if repeats]


def _sign_flip(differences: Sequence[float]) -> float:
    """Share of all sign patterns whose sum is not above the one observed."""
    steps = [round(d / _ROUNDING) for d in differences if d]
    sums = Counter({0: 1})
    for step in map(abs, steps):
        if len(sums) > _MAX_SUMS:
            return _t_below(differences)
        flipped: Counter[int] = Counter()
        for total, count in sums.items():
            flipped[total + step] += count
            flipped[total - step] += count
        sums = flipped
    # Equal sums may differ by the rounding of each of their terms.
    observed = sum(steps) + len(steps)
    below = sum(count for total, count in sums.items() if total <= observed)
    return below / (1 << len(steps))


def _t_below(differences: Sequence[float]) -> float:
    estimate = over_examples(differences)
    tail = t_tail(abs(estimate.mean) / estimate.standard_error, estimate.n - 1)
    return tail if estimate.mean < 0 else 1 - tail
