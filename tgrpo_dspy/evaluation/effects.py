"""What each experience of a finished library is worth: which parts of the library to run, and what the scores say."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean, variance
from typing import Literal

from tgrpo_dspy.evaluation.scores import judge, over_examples
from tgrpo_dspy.library.experience import Experience
from tgrpo_dspy.library.library import ExperienceLibrary
from tgrpo_dspy.records import Measured
from tgrpo_dspy.settings import require

Subset = frozenset[str]
"""The ids of the experiences that are in."""

_MIN_PAIRS = 3
_MAX_PAIRS = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which parts of a library to score, and how to read the scores.

    Args:
        method: ``leave_one_out``: the effect of an experience is what the full library loses without it; ``shapley``:
            what adding it gains on average, over the orders in which the library could be built up.
        subsets: the parts to score, the most telling first; a run that ends early measures fewer ids.
        orders: ``shapley``: orders in which the library is built up, each followed by its reverse.
    """

    method: Literal["leave_one_out", "shapley"]
    subsets: tuple[Subset, ...]
    orders: tuple[tuple[str, ...], ...] = ()


def plan(ids: Sequence[str], *, runs_allowed: int, evalset_size: int, seed: int = 0) -> Plan:
    """Plan the measurement of every experience as well as the budget allows.

    The full library, the empty one, and the full one without each single experience come first, as many as can be paid
    for. If at least three pairs of orders can be paid for beyond these, the plan is for Shapley values by sampled
    orders (Castro et al. 2009). Each order comes with its reverse, so that what two lessons do to each other cancels
    out of the error (Mitchell et al. 2022, arXiv 2104.12199). A pair costs at most 2 (k - 2) more subsets for k ids,
    and there are at most 25.

    Args:
        ids: the experiences, the most interesting first, each once.
        runs_allowed: runs of the program that may be spent.
        evalset_size: runs that scoring one subset takes (examples times repeats).
        seed: draws the orders.

    Raises:
        ConfigurationError: when the budget does not allow two subsets, so that nothing could be compared.

    Example:
        >>> chosen = plan(["e1", "e2", "e3"], runs_allowed=50, evalset_size=10)
        >>> chosen.method, [sorted(subset) for subset in chosen.subsets]
        ('leave_one_out', [['e1', 'e2', 'e3'], [], ['e2', 'e3'], ['e1', 'e3'], ['e1', 'e2']])
        >>> plan(["e1", "e2", "e3"], runs_allowed=80, evalset_size=10).method
        'shapley'
    """
    allowed = runs_allowed // max(1, evalset_size)
    require(allowed >= 2, "runs_allowed", runs_allowed, f"to compare two libraries takes {2 * evalset_size} runs")
    everything = frozenset(ids)
    base = dict.fromkeys([everything, frozenset(), *(everything - {i} for i in ids)])
    subsets = dict(base)
    orders: list[tuple[str, ...]] = []
    random = Random(seed)
    for _ in range(_MAX_PAIRS):
        order = tuple(random.sample(list(ids), len(ids)))
        pair = (order, order[::-1])
        with_pair = subsets | dict.fromkeys(part for one in pair for part in _built_up(one))
        if len(with_pair) > allowed:
            break
        subsets = with_pair
        orders += pair
    if len(orders) < 2 * _MIN_PAIRS:
        return Plan(method="leave_one_out", subsets=tuple(base)[:allowed])
    return Plan(method="shapley", subsets=tuple(subsets), orders=tuple(orders))


def effects(scores: Mapping[Subset, Sequence[float | None]], ids: Sequence[str], plan: Plan) -> dict[str, Measured]:
    """The effect of each experience in units of the score: how much it raises the score to have it in.

    Everything is compared example by example. The standard error is over examples; for Shapley values also over the
    sampled orders (two-way clustering, Cameron et al. 2011), where a pair of opposite orders counts as one.

    Args:
        scores: for each subset one score per example, always in the same order; None where the LM or the metric failed
            (for repeats: their mean). Subsets that are missing were not measured.
        ids: the experiences, as the plan was made for.
        plan: the plan.

    Returns:
        For every id its estimate, where ``n`` is the number of examples. The standard error is infinite (and the mean
        0) with fewer than two.

    Example:
        >>> chosen = plan(["e1", "e2"], runs_allowed=12, evalset_size=3)
        >>> full, only1, only2 = frozenset(["e1", "e2"]), frozenset(["e1"]), frozenset(["e2"])
        >>> scores = {full: [1, 1, 1], only1: [1, 0, 1], only2: [1, 1, 1], frozenset(): [1, 0, 0]}
        >>> measured = effects(scores, ["e1", "e2"], chosen)
        >>> [(i, round(e.mean, 2), round(e.standard_error, 2)) for i, e in measured.items()]
        [('e1', 0.17, 0.17), ('e2', 0.5, 0.29)]
    """
    if plan.method == "leave_one_out":
        everything = frozenset(ids)
        return {i: _estimate([_gain(scores, everything, i)]) for i in ids}
    gains = {i: _gains_by_pair(scores, plan.orders, i) for i in ids}
    # Few pairs of orders tell their own variance badly; the ids together tell it better.
    between = {i: _variance_between_pairs(gains[i]) for i in ids}
    common = fmean(between.values()) if between else 0.0
    return {i: _estimate(gains[i], max(between[i], common, 0.0)) for i in ids}


def prune(
    library: ExperienceLibrary, effects: Mapping[str, Measured], *, level: float = 0.05
) -> tuple[ExperienceLibrary, tuple[Experience, ...]]:
    """The library without the experiences that were measured harmful (see ``scores.judge``), and those that had to go.

    Example:
        >>> library = ExperienceLibrary((Experience(id="e1", text="Be brief."), Experience(id="e2", text="Guess.")))
        >>> measured = {"e2": Measured(mean=-0.3, standard_error=0.1, n=20)}
        >>> [[e.id for e in part] for part in prune(library, measured)]
        [['e1'], ['e2']]
    """
    harmful = {i for i, effect in effects.items() if judge(effect, level=level) == "harmful"}
    return library.only(library.ids - harmful), tuple(e for e in library if e.id in harmful)


def record(library: ExperienceLibrary, effects: Mapping[str, Measured]) -> ExperienceLibrary:
    """The library with every effect that could be told written into its experience."""
    told = {i: effect.mean for i, effect in effects.items() if math.isfinite(effect.standard_error)}
    return replace(library, experiences=tuple(replace(e, effect=told.get(e.id, e.effect)) for e in library))


def _built_up(order: Sequence[str]) -> Iterator[Subset]:
    return (frozenset(order[:size]) for size in range(len(order) + 1))


def _gain(scores: Mapping[Subset, Sequence[float | None]], subset: Subset, identifier: str) -> dict[int, float]:
    """By number of the example, what the subset gains by having the id in; of those with both scores."""
    with_it, without = scores.get(subset), scores.get(subset - {identifier})
    if with_it is None or without is None:
        return {}
    pairs = enumerate(zip(with_it, without, strict=True))
    return {n: a - b for n, (a, b) in pairs if a is not None and b is not None}


def _gains_by_pair(
    scores: Mapping[Subset, Sequence[float | None]], orders: Sequence[Sequence[str]], identifier: str
) -> list[dict[int, float]]:
    """``_gain`` in each order, the two of a pair as their mean."""
    gains = [_gain(scores, frozenset(order[: order.index(identifier) + 1]), identifier) for order in orders]
    return [_mean_of(pair) for pair in zip(gains[::2], gains[1::2], strict=True)]


def _mean_of(parts: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """By example, the mean over the parts that know it."""
    examples = sorted({n for part in parts for n in part})
    return {n: fmean(part[n] for part in parts if n in part) for n in examples}


def _estimate(gains: Sequence[Mapping[int, float]], variance_between: float = 0.0) -> Measured:
    """Mean over examples and pairs of orders, whose variances add up."""
    by_example = list(_mean_of(gains).values())
    if len(by_example) < 2:
        return Measured(mean=0.0, standard_error=math.inf, n=len(by_example))
    estimate = over_examples(by_example)
    return replace(estimate, standard_error=math.sqrt(estimate.standard_error**2 + variance_between))


def _variance_between_pairs(gains: Sequence[Mapping[int, float]]) -> float:
    """What the draw of the orders adds to the variance of the mean: that between pairs, less that within them."""
    by_pair = [fmean(pair.values()) for pair in gains if pair]
    cells = [value for pair in gains for value in pair.values()]
    if len(by_pair) < 2:
        return 0.0
    return variance(by_pair) / len(by_pair) - variance(cells) / len(cells)
