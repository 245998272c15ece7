"""Means, paired comparisons and tests: by hand, by brute force, and by simulation."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tgrpo_dspy.errors import ConfigurationError
from tgrpo_dspy.evaluation.scores import judge, mean_score, paired, pass_at, t_tail
from tgrpo_dspy.records import Measured

pytestmark = pytest.mark.simulation

SCORES = st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0, None]), max_size=4), max_size=6)
SHARP = st.sampled_from([0.0, 1.0])
THIRDS = st.sampled_from([0.0, 1 / 3, 2 / 3, 1.0])
FINE = st.floats(0, 1).map(lambda score: round(score, 3))


def one_each(scores: list[float]) -> list[list[float | None]]:
    return [[score] for score in scores]


def test_the_mean_weighs_examples_alike_however_many_of_their_repeats_were_scored() -> None:
    estimate = mean_score([(1.0, 1.0, 1.0), (0.0, None, None), (None, None, None), ()])
    assert estimate == Measured(mean=0.5, standard_error=0.5, n=2)


def test_pass_at_k_by_hand() -> None:
    """Of 3 runs with 1 success, 2 chosen at random miss it in 1 of 3 cases."""
    estimate = pass_at(2, [(1.0, 0.0, 0.0), (0.0, 0.0, 0.0), (1.0, None, None)])
    assert estimate.n == 2
    assert estimate.mean == estimate.standard_error == pytest.approx(1 / 3)
    assert pass_at(1, [(0.5,), (0.4,)], success=0.5).mean == 0.5


def test_pass_at_k_is_unbiased() -> None:
    """With k of n runs it estimates what the k runs themselves would show."""
    rng = random.Random(0)
    long = [[float(rng.random() < 0.2) for _ in range(10)] for _ in range(4000)]
    assert pass_at(3, long).mean == pytest.approx(1 - 0.8**3, abs=0.015)
    assert pass_at(3, [runs[:3] for runs in long]).mean == pytest.approx(1 - 0.8**3, abs=0.025)


def test_pass_at_needs_a_run() -> None:
    with pytest.raises(ConfigurationError, match="k=0"):
        pass_at(0, [])


@given(SCORES, SCORES)
@settings(max_examples=200, deadline=None)
def test_everything_is_finite_and_consistent(first: list[list[float | None]], second: list[list[float | None]]) -> None:
    size = min(len(first), len(second))
    difference = paired(first[:size], second[:size])
    reverse = paired(second[:size], first[:size])
    assert difference.wins + difference.ties + difference.losses == difference.n <= size
    assert difference.wins == reverse.losses
    assert difference.mean == pytest.approx(-reverse.mean)
    assert 0 < difference.p_worse <= 1
    for estimate in (mean_score(first), pass_at(1, first), pass_at(2, first)):
        assert all(map(math.isfinite, (estimate.mean, estimate.standard_error)))
        assert estimate.n > 1 or estimate.standard_error == 0
        assert judge(estimate) in ("helpful", "unclear")


def test_only_examples_that_both_have_a_score_for_are_compared() -> None:
    difference = paired([(1.0, 0.0), (None, None), (1.0, None)], [(0.0, 0.0), (1.0, 1.0), (1.0, 1.0)])
    assert (difference.n, difference.wins, difference.ties, difference.losses) == (2, 1, 1, 0)
    assert difference.mean == 0.25


def test_scores_that_differ_by_rounding_alone_are_tied() -> None:
    assert paired([(0.1 + 0.2,)], [(0.3,)]).ties == 1


def test_two_valsets_cannot_be_paired() -> None:
    with pytest.raises(ValueError):
        paired([(1.0,)], [(1.0,), (0.0,)])


@given(st.sampled_from([SHARP, THIRDS, FINE]).flatmap(lambda score: st.lists(st.tuples(score, score), max_size=9)))
@settings(max_examples=200, deadline=None)
def test_the_randomisation_test_counts_all_signs(pairs: list[tuple[float, float]]) -> None:
    differences = [a - b for a, b in pairs]
    flips = [
        sum(s * d for s, d in zip(signs, differences, strict=True))
        for signs in itertools.product((1, -1), repeat=len(pairs))
    ]
    expected = sum(flip <= sum(differences) + 1e-7 for flip in flips) / len(flips)
    assert paired(one_each([a for a, _ in pairs]), one_each([b for _, b in pairs])).p_worse == pytest.approx(expected)


def test_with_right_and_wrong_answers_it_is_the_exact_sign_test_for_any_number_of_examples() -> None:
    first, second = [0.0] * 40 + [1.0] * 20 + [1.0] * 100, [1.0] * 40 + [0.0] * 20 + [1.0] * 100
    binomial = sum(math.comb(60, wins) for wins in range(21)) / 2**60
    assert paired(one_each(first), one_each(second)).p_worse == pytest.approx(binomial)


def test_three_losses_are_never_enough_four_are_at_a_tenth_and_five_at_a_twentieth() -> None:
    for losses, level, worse in [(3, 0.1, False), (4, 0.1, True), (4, 0.05, False), (5, 0.05, True)]:
        difference = paired(one_each([0.0] * losses + [1.0]), one_each([1.0] * losses + [1.0]))
        assert difference.is_worse(level) is worse


def test_equal_programs_are_never_worse() -> None:
    same = one_each([0.0, 1.0, 0.5])
    assert not paired(same, same).is_worse(0.49)
    assert not paired([], []).is_worse(0.49)


@pytest.mark.parametrize("size", [8, 60])
@pytest.mark.parametrize("values", ["few", "many"])
def test_equal_programs_are_called_worse_no_more_often_than_the_level(size: int, values: str) -> None:
    """``many`` values with 60 examples take the way by Student's t, the others count signs."""
    rng = random.Random(1)
    draw = {"few": lambda: float(rng.random() < 0.5), "many": rng.random}[values]
    runs, level = 300, 0.1
    worse = sum(
        paired(*(one_each([draw() for _ in range(size)]) for _ in range(2))).is_worse(level) for _ in range(runs)
    )
    assert worse / runs <= level + 2 * math.sqrt(level * (1 - level) / runs)
    assert worse / runs >= 0.02


def test_a_real_loss_is_found_with_many_values_too() -> None:
    rng = random.Random(2)
    second = [rng.random() for _ in range(60)]
    first = [score - 0.2 * rng.random() for score in second]
    assert paired(one_each(first), one_each(second)).is_worse(0.001)
    assert paired(one_each(second), one_each(first)).p_worse > 0.999


@pytest.mark.parametrize(
    ("t", "df", "tail"),
    [
        (6.3138, 1, 0.05),
        (2.9200, 2, 0.05),
        (2.3534, 3, 0.05),
        (4.0322, 5, 0.005),
        (1.8125, 10, 0.05),
        (1.6577, 120, 0.05),
    ],
)
def test_the_t_distribution_agrees_with_the_tables(t: float, df: int, tail: float) -> None:
    assert t_tail(t, df) == pytest.approx(tail, rel=1e-3)
    assert t_tail(0.0, df) == 0.5
    assert t_tail(math.inf, df) == 0.0


def test_the_t_distribution_passes_over_into_the_normal_one() -> None:
    assert t_tail(1.7, 1000) == pytest.approx(t_tail(1.7, 1001), rel=1e-2)


@pytest.mark.parametrize(
    ("mean", "error", "n", "expected"),
    [
        (-0.2, 0.05, 20, "harmful"),
        (0.2, 0.05, 20, "helpful"),
        (-0.05, 0.05, 20, "unclear"),
        (-0.2, 0.05, 2, "unclear"),
        (-0.2, 0.0, 1, "unclear"),
        (-0.2, 0.0, 5, "harmful"),
        (0.0, 0.0, 5, "unclear"),
        (0.0, math.inf, 50, "unclear"),
        (-0.2, math.inf, 50, "unclear"),
    ],
)
def test_the_judgement_asks_for_clear_evidence(mean: float, error: float, n: int, expected: str) -> None:
    assert judge(Measured(mean=mean, standard_error=error, n=n)) == expected


def test_a_stricter_level_judges_less() -> None:
    effect = Measured(mean=-0.2, standard_error=0.1, n=20)
    assert (judge(effect, level=0.05), judge(effect, level=0.01)) == ("harmful", "unclear")
