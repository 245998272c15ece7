"""Measuring the experiences of a finished library: what is planned, what is concluded, what is dropped."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, permutations
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tgrpo_dspy.errors import ConfigurationError
from tgrpo_dspy.evaluation.effects import Plan, Subset, effects, plan, prune, record
from tgrpo_dspy.library.experience import Experience
from tgrpo_dspy.library.library import ExperienceLibrary
from tgrpo_dspy.records import Measured

pytestmark = pytest.mark.simulation

Game = Callable[[Subset], float]


def names(count: int) -> list[str]:
    return [f"e{number}" for number in range(1, count + 1)]


def played(
    planned: Plan, game: Game, *, examples: int, seed: int = 0, noise: float = 0.0
) -> dict[Subset, list[float | None]]:
    """Scores as a game gives them, with each example's own difficulty and with noise."""
    rng = random.Random(seed)
    difficulty = [rng.uniform(-0.2, 0.2) for _ in range(examples)]
    return {subset: [game(subset) + shift + rng.gauss(0, noise) for shift in difficulty] for subset in planned.subsets}


def additive(worth: Mapping[str, float]) -> Game:
    return lambda subset: sum(worth[i] for i in subset)


def shapley(game: Game, ids: Sequence[str]) -> dict[str, float]:
    """By all orders: the definition."""
    gains: dict[str, list[float]] = {i: [] for i in ids}
    for order in permutations(ids):
        for place, i in enumerate(order):
            gains[i].append(game(frozenset(order[: place + 1])) - game(frozenset(order[:place])))
    return {i: fmean(values) for i, values in gains.items()}


@given(st.integers(0, 9), st.integers(0, 1000), st.integers(1, 30), st.integers(0, 9))
@settings(max_examples=200, deadline=None)
def test_a_plan_keeps_within_its_budget(size: int, runs: int, examples: int, seed: int) -> None:
    if runs < 2 * examples:
        with pytest.raises(ConfigurationError, match="runs_allowed"):
            plan(names(size), runs_allowed=runs, evalset_size=examples, seed=seed)
        return
    planned = plan(names(size), runs_allowed=runs, evalset_size=examples, seed=seed)
    everything = frozenset(names(size))
    assert len(planned.subsets) * examples <= runs
    assert len(set(planned.subsets)) == len(planned.subsets)
    assert planned.subsets[0] == everything
    first = {everything, frozenset(), *(everything - {i} for i in everything)}
    assert set(planned.subsets[: len(first)]) <= first
    assert planned == plan(names(size), runs_allowed=runs, evalset_size=examples, seed=seed)
    for order, opposite in zip(planned.orders[::2], planned.orders[1::2], strict=True):
        assert order == opposite[::-1]
        assert {frozenset(order[:place]) for place in range(size + 1)} <= set(planned.subsets)


def test_more_budget_buys_leave_one_out_then_orders_then_all_subsets() -> None:
    def planned(subsets: int) -> Plan:
        return plan(names(5), runs_allowed=subsets * 10, evalset_size=10)

    assert (planned(4).method, len(planned(4).subsets)) == ("leave_one_out", 4)
    assert (planned(10).method, len(planned(10).subsets)) == ("leave_one_out", 7)
    assert planned(28).method == "shapley"
    assert 7 < len(planned(28).subsets) <= 28
    assert len(planned(10_000).subsets) == 2**5


def test_two_pairs_of_orders_are_too_few_to_tell_how_much_they_differ() -> None:
    methods = [plan(names(12), runs_allowed=14 + pairs * 20, evalset_size=1).method for pairs in (1, 2, 3)]
    assert methods == ["leave_one_out", "leave_one_out", "shapley"]


@pytest.mark.parametrize("subsets", [6, 40])
def test_without_noise_an_additive_library_is_taken_apart_exactly(subsets: int) -> None:
    worth = {"e1": 0.3, "e2": -0.2, "e3": 0.0, "e4": 0.1}
    planned = plan(list(worth), runs_allowed=subsets * 3, evalset_size=3)
    measured = effects(played(planned, additive(worth), examples=3), list(worth), planned)
    assert {i: round(e.mean, 9) for i, e in measured.items()} == worth
    assert all(e.standard_error < 1e-9 for e in measured.values())


def test_leave_one_out_misses_what_two_lessons_say_alike_and_shapley_shares_it() -> None:
    def either(subset: Subset) -> float:
        return 0.4 if subset & {"e1", "e2"} else 0.0

    ids = names(3)
    small, large = (plan(ids, runs_allowed=runs, evalset_size=2) for runs in (10, 40))
    left_out, shared = (effects(played(p, either, examples=2), ids, p) for p in (small, large))
    assert (small.method, [round(left_out[i].mean, 9) for i in ids]) == ("leave_one_out", [0.0, 0.0, 0.0])
    assert (large.method, [round(shared[i].mean, 9) for i in ids]) == ("shapley", [0.2, 0.2, 0.0])


def test_shapley_values_add_up_to_the_whole_gain() -> None:
    ids = names(6)
    planned = plan(ids, runs_allowed=34 * 8, evalset_size=8)
    scores = played(planned, additive(dict.fromkeys(ids, 0.05)), examples=8, noise=0.3)
    gains = (a - b for a, b in zip(scores[frozenset(ids)], scores[frozenset()], strict=True) if a and b)
    assert planned.method == "shapley"
    assert sum(e.mean for e in effects(scores, ids, planned).values()) == pytest.approx(fmean(gains))


def entangled(ids: Sequence[str]) -> Game:
    """Pairs and triples of lessons that help or disturb each other."""
    rng = random.Random(4)
    terms = {frozenset(part): rng.uniform(-0.1, 0.1) for size in (1, 2, 3) for part in combinations(ids, size)}
    return lambda subset: sum(worth for part, worth in terms.items() if part <= subset)


@pytest.mark.parametrize(("subsets", "method"), [(8, "leave_one_out"), (36, "shapley"), (64, "shapley")])
def test_estimates_are_within_two_standard_errors_of_the_truth(subsets: int, method: str) -> None:
    """For every experience in at least 90 of 100 seeds; the seed draws the orders too."""
    ids = names(6)
    game = entangled(ids)
    everything = frozenset(ids)
    loss = {i: game(everything) - game(everything - {i}) for i in ids}
    truth = loss if method == "leave_one_out" else shapley(game, ids)
    covered: Counter[str] = Counter()
    for seed in range(100):
        planned = plan(ids, runs_allowed=subsets * 30, evalset_size=30, seed=seed)
        assert planned.method == method
        measured = effects(played(planned, game, examples=30, seed=seed, noise=0.3), ids, planned)
        covered.update(i for i, e in measured.items() if abs(e.mean - truth[i]) <= 2 * e.standard_error)
    assert {i: covered[i] for i in ids if covered[i] < 90} == {}


def test_examples_and_subsets_without_a_score_are_left_out() -> None:
    ids = ["e1", "e2"]
    planned = plan(ids, runs_allowed=15, evalset_size=5)
    full, without1, without2 = frozenset(ids), frozenset(["e2"]), frozenset(["e1"])
    scores: dict[Subset, list[float | None]] = {
        full: [1.0, 1.0, None, 1.0, 0.0],
        without1: [0.0, 1.0, 0.0, None, 0.0],
    }
    measured = effects(scores, ids, planned)
    assert measured["e1"].mean == pytest.approx(1 / 3)
    assert measured["e1"].n == 3
    assert measured["e2"] == Measured(mean=0.0, standard_error=math.inf, n=0)
    scores[without2] = [None, None, None, None, 0.0]
    assert effects(scores, ids, planned)["e2"] == Measured(mean=0.0, standard_error=math.inf, n=1)


def test_a_shapley_plan_that_was_cut_short_uses_what_was_measured() -> None:
    worth = {"e1": 0.3, "e2": -0.2, "e3": 0.0, "e4": 0.1}
    planned = plan(list(worth), runs_allowed=16 * 3, evalset_size=3)
    scores = played(planned, additive(worth), examples=3)
    for subset in planned.subsets[8:]:
        del scores[subset]
    assert planned.method == "shapley"
    assert {i: round(e.mean, 9) for i, e in effects(scores, list(worth), planned).items()} == worth


LIBRARY = ExperienceLibrary(tuple(Experience(id=i, text=f"Lesson {i}.", effect=0.5) for i in names(4)), 9)


def test_prune_drops_what_was_measured_harmful_and_nothing_else() -> None:
    measured = {
        "e1": Measured(mean=0.2, standard_error=0.05, n=30),
        "e2": Measured(mean=-0.2, standard_error=0.05, n=30),
        "e3": Measured(mean=-0.2, standard_error=0.2, n=30),
    }
    pruned, dropped = prune(LIBRARY, measured)
    assert [e.id for e in pruned] == ["e1", "e3", "e4"]
    assert [e.id for e in dropped] == ["e2"]
    assert pruned.next_number == LIBRARY.next_number
    assert prune(LIBRARY, measured, level=1e-6) == (LIBRARY, ())


def test_prune_recovers_the_loss_from_planted_lessons() -> None:
    worth = dict.fromkeys(names(3), 0.1) | dict.fromkeys(["e4", "e5"], -0.25)
    library = ExperienceLibrary(tuple(Experience(id=i, text=f"Lesson {i}.") for i in worth))
    planned = plan(list(worth), runs_allowed=7 * 40, evalset_size=40)
    measured = effects(played(planned, additive(worth), examples=40, noise=0.3), list(worth), planned)
    pruned, dropped = prune(library, measured)
    assert {e.id for e in dropped} == {"e4", "e5"}
    assert [e.id for e in pruned] == names(3)


def test_effects_are_written_into_the_library_where_they_could_be_told() -> None:
    measured = {
        "e1": Measured(mean=-0.25, standard_error=0.1, n=9),
        "e2": Measured(mean=0.0, standard_error=math.inf, n=1),
    }
    recorded = record(LIBRARY, measured)
    assert [e.effect for e in recorded] == [-0.25, 0.5, 0.5, 0.5]
    assert recorded.next_number == LIBRARY.next_number
