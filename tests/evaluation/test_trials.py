"""The experiment inside the learning rollouts: its masks are balanced, and what it reads off known effects is true."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tgrpo_dspy.errors import ConfigurationError
from tgrpo_dspy.evaluation.scores import judge
from tgrpo_dspy.evaluation.trials import Observation, estimate_effects, masks
from tgrpo_dspy.records import Measured

pytestmark = pytest.mark.simulation

EFFECTS = {"e1": 0.1, "e2": 0.05, "e3": 0.0, "e4": 0.0, "e5": -0.2, "e6": 0.05, "e7": 0.0, "e8": -0.15}


def names(count: int) -> list[str]:
    return [f"e{number}" for number in range(1, count + 1)]


def observe(
    effects: Mapping[str, float],
    *,
    seed: int,
    groups: int,
    group_size: int,
    steps: int = 1,
    count: int | None = None,
    share: float = 1.0,
) -> list[Observation]:
    """Right or wrong answers with a base rate of each example's own; an effect acts on a ``share`` of the examples."""
    rng = random.Random(seed)
    ids = list(effects)
    examples = [
        (rng.uniform(0.35, 0.65), {i: effect / share if rng.random() < share else 0.0 for i, effect in effects.items()})
        for _ in range(groups)
    ]
    observed = []
    for step in range(1, steps + 1):
        for number, (base, own) in enumerate(examples):
            for left_out in masks(ids, group_size=group_size, step=step, seed=seed, group=number, count=count):
                chance = base + sum(effect for i, effect in own.items() if i not in left_out)
                assert 0 <= chance <= 1
                reward = float(rng.random() < chance)
                observed.append(Observation(group=f"x{number}", step=step, left_out=left_out, reward=reward))
    return observed


# The masks


@given(
    st.integers(0, 12),
    st.integers(2, 13),
    st.integers(1, 5),
    st.integers(0, 99),
    st.integers(0, 9),
    st.none() | st.integers(2, 30),
)
@settings(max_examples=150, deadline=None)
def test_every_id_is_left_out_of_half_of_every_group(
    size: int, group_size: int, step: int, seed: int, group: int, count: int | None
) -> None:
    ids = names(size)
    drawn = masks(ids, group_size=group_size, step=step, seed=seed, group=group, count=count)
    assert len(drawn) == group_size
    for i in ids:
        assert sum(i in left_out for left_out in drawn) in (group_size // 2, -(-group_size // 2))
    assert frozenset().union(*drawn) == frozenset(ids)


@given(st.integers(1, 8), st.sampled_from([3, 5, 7]), st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_half_of_an_odd_group_is_rounded_down_and_up_in_turn_over_steps(size: int, group_size: int, seed: int) -> None:
    for i in names(size):
        out = [
            sum(i in left_out for left_out in masks(names(size), group_size=group_size, step=step, seed=seed))
            for step in (1, 2, 3, 4)
        ]
        assert out[0] != out[1]
        assert sum(out) == 2 * group_size


@given(st.integers(0, 20), st.integers(2, 9), st.integers(2, 24))
@settings(max_examples=100, deadline=None)
def test_a_step_has_at_most_as_many_different_masks_as_asked_for(size: int, group_size: int, count: int) -> None:
    drawn = {
        left_out
        for group in range(30)
        for left_out in masks(names(size), group_size=group_size, step=1, seed=0, group=group, count=count)
    }
    assert len(drawn) <= count


def test_with_few_ids_one_set_of_masks_serves_every_group() -> None:
    assert len({masks(names(3), group_size=5, step=1, seed=0, group=group) for group in range(10)}) == 1


@pytest.mark.parametrize("size", [2, 3, 4, 8, 12, 20])
@pytest.mark.parametrize("group_size", [3, 4, 5, 6, 8])
def test_all_ids_can_be_told_apart_within_one_step(size: int, group_size: int) -> None:
    """At standard errors at most half again as large as an experiment with one id would have."""
    alone = 1 / math.sqrt(120 * group_size)
    for seed in range(3):
        observed = observe(dict.fromkeys(names(size), 0.0), seed=seed, groups=120, group_size=group_size)
        estimates = estimate_effects(observed, names(size))
        assert max(e.standard_error for e in estimates.values()) < 1.5 * alone


@given(st.integers(2, 6), st.sampled_from([5, 6, 7, 8]), st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_no_two_ids_share_a_pattern_or_have_opposite_ones(size: int, group_size: int, seed: int) -> None:
    """Even with no more different masks than a group has rollouts."""
    group = masks(names(size), group_size=group_size, step=1, seed=seed, count=group_size)
    patterns = [[i in left_out for left_out in group] for i in names(size)]
    unsigned = {tuple(bit == pattern[0] for bit in pattern) for pattern in patterns}
    assert len(unsigned) == size


def test_the_masks_follow_from_seed_and_step_alone() -> None:
    draw = partial(masks, group_size=5, group=1)
    first = draw(names(9), step=2, seed=7)
    assert first == draw(tuple(names(9)), step=2, seed=7)
    assert first != draw(names(9), step=2, seed=8)
    assert first != draw(names(9), step=3, seed=7)


def test_no_place_in_a_group_is_special() -> None:
    """Rollout 0 has an id as often as any other rollout has it."""
    out = Counter(
        place
        for seed in range(400)
        for place, left_out in enumerate(masks(["e1", "e2"], group_size=4, step=1, seed=seed))
        if "e1" in left_out
    )
    assert all(abs(out[place] - 200) < 40 for place in range(4))


@pytest.mark.parametrize("wrong", [{"group_size": 1}, {"group_size": 4, "count": 1}])
def test_what_cannot_be_a_trial_is_an_error(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match="use 2 or more"):
        masks(["e1"], step=1, seed=0, **wrong)


# The estimates

SETTINGS = [
    pytest.param({"groups": 40, "group_size": 6}, id="40 groups of 6"),
    pytest.param({"groups": 40, "group_size": 5}, id="40 groups of 5"),
    pytest.param({"groups": 20, "group_size": 5, "steps": 3}, id="three steps over the same 20 examples"),
    pytest.param({"groups": 12, "group_size": 5}, id="only 12 groups"),
]


@pytest.mark.parametrize("setting", SETTINGS)
def test_estimates_are_within_two_standard_errors_of_the_truth(setting: dict[str, int]) -> None:
    """For every experience in at least 90 of 100 seeds, and right on average."""
    covered: Counter[str] = Counter()
    means: dict[str, list[float]] = {i: [] for i in EFFECTS}
    for seed in range(100):
        for i, estimate in estimate_effects(observe(EFFECTS, seed=seed, **setting), list(EFFECTS)).items():
            covered[i] += abs(estimate.mean - EFFECTS[i]) <= 2 * estimate.standard_error < math.inf
            means[i].append(estimate.mean)
    assert {i: covered[i] for i in EFFECTS if covered[i] < 90} == {}
    assert all(fmean(means[i]) == pytest.approx(effect, abs=0.04) for i, effect in EFFECTS.items())


def test_and_when_a_lesson_matters_to_a_fifth_of_the_examples_only() -> None:
    """Here classical standard errors would be too small: they take what differs between examples for chance."""
    effects = {"e1": -0.07, "e2": 0.0, "e3": 0.0}
    covered: Counter[str] = Counter()
    for seed in range(100):
        observed = observe(effects, seed=seed, groups=40, group_size=10, share=0.2)
        estimates = estimate_effects(observed, list(effects))
        covered.update(i for i, e in estimates.items() if abs(e.mean - effects[i]) <= 2 * e.standard_error)
    assert min(covered[i] for i in effects) >= 90


def test_planted_harm_is_ranked_lowest_and_judged_harmful_in_most_seeds() -> None:
    lowest = found = 0
    for seed in range(100):
        estimates = estimate_effects(observe(EFFECTS, seed=seed, groups=40, group_size=6), list(EFFECTS))
        ranked = sorted(EFFECTS, key=lambda i: estimates[i].mean)
        lowest += set(ranked[:2]) == {"e5", "e8"}
        found += judge(estimates["e5"]) == "harmful"
    assert lowest >= 75
    assert found >= 80


@pytest.mark.parametrize(("groups", "group_size"), [(40, 6), (12, 5), (5, 4)])
def test_what_has_no_effect_is_judged_harmful_no_more_often_than_the_level(groups: int, group_size: int) -> None:
    nothing = dict.fromkeys(names(4), 0.0)
    judgements = Counter(
        judge(estimate, level=0.05)
        for seed in range(150)
        for estimate in estimate_effects(
            observe(nothing, seed=seed, groups=groups, group_size=group_size), list(nothing)
        ).values()
    )
    judged = sum(judgements.values())
    tolerated = 0.05 + 2 * math.sqrt(0.05 * 0.95 / judged)
    assert judgements["harmful"] / judged <= tolerated
    assert judgements["helpful"] / judged <= tolerated


def test_a_single_experience_is_the_mean_difference_within_groups() -> None:
    observed = observe({"e1": 0.2}, seed=3, groups=10, group_size=4)
    differences = [
        fmean(o.reward for o in observed if o.group == group and not o.left_out)
        - fmean(o.reward for o in observed if o.group == group and o.left_out)
        for group in dict.fromkeys(o.group for o in observed)
    ]
    estimate = estimate_effects(observed, ["e1"])["e1"]
    assert estimate.mean == pytest.approx(fmean(differences))
    assert estimate.n == 10


def test_without_noise_the_effects_come_out_exactly() -> None:
    effects = {"e1": 0.3, "e2": -0.1, "e3": 0.0}
    observed = [
        Observation(
            group=f"x{number}",
            step=1,
            left_out=left_out,
            reward=number + sum(effect for i, effect in effects.items() if i not in left_out),
        )
        for number in range(6)
        for left_out in masks(list(effects), group_size=5, step=1, seed=0, group=number)
    ]
    estimates = estimate_effects(observed, list(effects))
    assert {i: round(e.mean, 9) for i, e in estimates.items()} == effects
    assert [judge(estimates[i]) for i in effects] == ["helpful", "harmful", "unclear"]


def test_experiences_that_always_went_together_are_unidentified_and_the_others_are_not() -> None:
    observed = [
        Observation(
            group=o.group,
            step=o.step,
            left_out=o.left_out | {"e9"} if "e2" in o.left_out else o.left_out,
            reward=o.reward,
        )
        for o in observe({"e1": 0.2, "e2": 0.1, "e3": 0.0}, seed=0, groups=30, group_size=6)
    ]
    estimates = estimate_effects(observed, ["e1", "e2", "e3", "e9"])
    assert [math.isinf(estimates[i].standard_error) for i in ("e1", "e2", "e3", "e9")] == [False, True, False, True]
    assert estimates["e2"].mean == estimates["e9"].mean == 0.0
    assert judge(estimates["e2"]) == "unclear"
    alone = estimate_effects(observe({"e1": 0.2, "e2": 0.1, "e3": 0.0}, seed=0, groups=30, group_size=6), ["e1"])
    assert estimates["e1"].mean == pytest.approx(alone["e1"].mean)
    assert estimates["e1"].standard_error == pytest.approx(alone["e1"].standard_error)


def test_too_few_masks_for_one_step_are_made_up_for_by_the_next_steps() -> None:
    def identified(steps: int) -> int:
        observed = observe(EFFECTS, seed=0, groups=10, group_size=5, steps=steps, count=5)
        return sum(math.isfinite(e.standard_error) for e in estimate_effects(observed, list(EFFECTS)).values())

    assert identified(steps=1) < 8
    assert identified(steps=4) == 8


def test_what_never_varied_or_has_too_little_data_is_unidentified() -> None:
    unknown = Measured(mean=0.0, standard_error=math.inf, n=0)
    assert estimate_effects([], ["e1"]) == {"e1": unknown}
    same = [Observation(group="x", step=1, left_out=frozenset(["e1"]), reward=r) for r in (0.0, 1.0)]
    assert estimate_effects(same, ["e1", "e2"]) == {"e1": unknown, "e2": unknown}
    one = observe({"e1": 0.2}, seed=0, groups=1, group_size=6)
    assert math.isinf(estimate_effects(one, ["e1"])["e1"].standard_error)


def test_a_few_examples_that_agree_by_luck_are_no_proof() -> None:
    """The clustered standard error is 0 here, although every rollout is as good as a coin toss."""
    rewards = {("e1",): (0.0, 0.0), (): (0.0, 1.0)}
    observed = [
        Observation(group=group, step=1, left_out=frozenset(left_out), reward=reward)
        for group in ("a", "b")
        for left_out, both in rewards.items()
        for reward in both
    ]
    estimate = estimate_effects(observed, ["e1"])["e1"]
    assert estimate.mean == 0.5
    assert estimate.standard_error > 0.2
    assert judge(estimate) == "unclear"


def test_groups_in_which_nobody_or_everybody_was_left_out_change_nothing() -> None:
    observed = observe({"e1": 0.2, "e2": 0.0}, seed=0, groups=20, group_size=6)
    others = [
        Observation(group=f"y{number}", step=9, left_out=left_out, reward=reward)
        for number, left_out in enumerate([frozenset[str](), frozenset(["e1"])] * 5)
        for reward in (0.0, 100.0)
    ]
    assert estimate_effects([*observed, *others], ["e1", "e2"]) == estimate_effects(observed, ["e1", "e2"])


def test_experiences_dropped_since_then_are_adjusted_for() -> None:
    """A strong one that has left the library explains rewards of the steps it was in, and is not reported."""
    observed = observe({"e1": 0.0, "e2": -0.3}, seed=1, groups=40, group_size=6)
    both, one = estimate_effects(observed, ["e1", "e2"]), estimate_effects(observed, ["e1"])
    assert list(one) == ["e1"]
    assert one["e1"] == both["e1"]


def test_rollouts_with_an_older_text_do_not_count_for_the_new_one() -> None:
    """The old text of e1 did harm, the one of step 2 helps; they are two lessons with one id."""
    old = [o for o in observe({"e1": -0.3, "e2": 0.0}, seed=0, groups=40, group_size=6, steps=2) if o.step == 1]
    new = [o for o in observe({"e1": 0.3, "e2": 0.0}, seed=0, groups=40, group_size=6, steps=2) if o.step == 2]
    mixed = estimate_effects([*old, *new], ["e1"])["e1"]
    apart = estimate_effects([*old, *new], ["e1"], since={"e1": 1})["e1"]
    assert abs(mixed.mean) < 0.15
    assert apart.mean > 0.2


def test_sixty_experiences_and_ten_thousand_rollouts_take_little_time() -> None:
    rng = random.Random(0)
    ids = names(60)
    observed = [
        Observation(
            group=f"x{number // 5}",
            step=1,
            left_out=frozenset(i for i in ids if rng.random() < 0.5),
            reward=float(rng.random() < 0.5),
        )
        for number in range(10_000)
    ]
    started = time.process_time()
    estimates = estimate_effects(observed, ids)
    assert time.process_time() - started < 4  # about 1.3 s; room for slow machines
    assert all(0 < e.standard_error < 0.02 for e in estimates.values())


def test_further_groups_of_an_example_are_no_further_examples() -> None:
    effects = {"e1": 0.3, "e2": 0.0}
    seen = observe(effects, seed=1, groups=6, group_size=4)
    again = [replace(o, group=f"{o.group}+1") for o in observe(effects, seed=2, groups=6, group_size=4)]
    measured = estimate_effects([*seen, *again], list(effects))
    assert {effect.n for effect in measured.values()} == {6}
    apart = [replace(o, group=f"other {o.group}") for o in again]
    assert {effect.n for effect in estimate_effects([*seen, *apart], list(effects)).values()} == {12}
