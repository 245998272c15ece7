"""The trial of a run: who goes without what, when an experience is dropped or freed, and how often that is wrong."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from typing import cast

import dspy
import pytest

from tests.evaluation.rules import library_of
from tgrpo_dspy.errors import ConfigurationError
from tgrpo_dspy.evaluation.trial import Trial
from tgrpo_dspy.library.edits import Edit
from tgrpo_dspy.library.instructions import read_library
from tgrpo_dspy.library.library import ExperienceLibrary
from tgrpo_dspy.records import Group, Rollout
from tgrpo_dspy.sampling.policy import Policy
from tgrpo_dspy.settings import Sampling

LIBRARY = library_of("Be brief.", "Guess.", "Say please.", "Use digits.")
NOTHING = dict.fromkeys((e.id for e in LIBRARY), 0.0)
STEPS, GROUPS, SIZE = 3, 12, 6
LEVEL = 0.05


ON = Sampling(trial="randomized", trial_level=LEVEL)


def left_out_of(
    trial: Trial, library: ExperienceLibrary, step: int, *, size: int = SIZE
) -> list[list[tuple[str, ...]]]:
    """By group and rollout, what it goes without."""
    variants = trial.variants(lambda part: cast(Policy, part), library, size, step)  # no program is run here
    return [[variant.left_out for variant in variants(lane)] for lane in range(GROUPS)]


def play(
    trial: Trial, library: ExperienceLibrary, step: int, effects: Mapping[str, float], *, luck: random.Random
) -> None:
    """A step in which right answers have a chance of a half, and what every experience adds to it."""
    groups = []
    for number, masks in enumerate(left_out_of(trial, library, step)):
        rollouts = []
        for place, left_out in enumerate(masks):
            chance = 0.5 + sum(effect for i, effect in effects.items() if i in library and i not in left_out)
            rollouts.append(Rollout(number=place, reward=float(luck.random() < chance), left_out=left_out))
        groups.append(Group(key=f"x{number}", inputs={}, labels={}, rollouts=tuple(rollouts)))
    trial.observe(groups, step)


def run(
    effects: Mapping[str, float], *, seed: int, looks: int, steps: int = STEPS
) -> tuple[list[str], ExperienceLibrary, Trial]:
    """A run of several steps: whom it dropped, what is left, and its trial."""
    trial, library, luck = Trial(ON, seed, looks), LIBRARY, random.Random(seed)
    gone = []
    for step in range(1, steps + 1):
        play(trial, library, step, effects, luck=luck)
        library, dropped, _ = trial.judge(library)
        gone += [e.id for e in dropped]
    return gone, library, trial


def on_trial(trial: Trial, library: ExperienceLibrary, step: int = STEPS + 1) -> set[str]:
    return {i for group in left_out_of(trial, library, step) for left_out in group for i in left_out}


def test_every_experience_is_left_out_of_half_of_every_group() -> None:
    for masks in left_out_of(Trial(ON, 0), LIBRARY, 1):
        assert [sum(e.id in left_out for left_out in masks) for e in LIBRARY] == [SIZE // 2] * len(LIBRARY)


@pytest.mark.parametrize(("settings", "size"), [(Sampling(), SIZE), (ON, 1)])
def test_without_a_trial_or_a_group_every_rollout_has_the_whole_library(settings: Sampling, size: int) -> None:
    trial = Trial(settings, 0)
    assert left_out_of(trial, LIBRARY, 1, size=size) == [[()] * size] * GROUPS


def test_without_a_trial_nothing_is_judged() -> None:
    trial = Trial(Sampling(), 0)
    trial.observe([Group(key="x", inputs={}, labels={}, rollouts=(Rollout(number=0, reward=1.0),))], 1)
    assert trial.judge(LIBRARY) == (LIBRARY, (), {})


def test_a_rollout_runs_with_the_rest_of_the_library_and_shares_its_policy() -> None:
    variants = Trial(ON, 0).variants(partial(Policy.of, dspy.Predict("question -> answer")), LIBRARY, SIZE, 1)
    drawn = [variant for lane in range(GROUPS) for variant in variants(lane)]
    for variant in drawn:
        carried = [e.id for e in read_library(variant.policy.program)]
        assert carried == [e.id for e in LIBRARY if e.id not in variant.left_out]
    assert len({id(variant.policy) for variant in drawn}) == len({variant.left_out for variant in drawn}) < len(drawn)


def test_what_does_harm_is_dropped_and_what_helps_is_freed() -> None:
    gone, library, trial = run({"e1": 0.45, "e2": -0.45}, seed=0, looks=STEPS)
    assert gone == ["e2"]
    assert on_trial(trial, library) == {"e3", "e4"}
    assert library["e1"].effect == pytest.approx(0.45, abs=0.15)


def test_a_lesson_with_new_words_is_on_trial_again() -> None:
    _, library, trial = run({"e1": 0.45}, seed=0, looks=STEPS)
    assert "e1" not in on_trial(trial, library)
    reworded = library.apply([Edit(operation="UPDATE", ids=("e1",), text="Be very brief.")], step=STEPS).library
    assert "e1" in on_trial(trial, reworded)


def wrongly(looks: int, seeds: int = 150) -> tuple[float, float]:
    """The share of experiences without effect that a run drops, and of those it frees."""
    runs = [run(NOTHING, seed=seed, looks=looks) for seed in range(seeds)]
    dropped = sum(len(gone) for gone, _, _ in runs)
    freed = sum(len(library) - len(on_trial(trial, library)) for _, library, trial in runs)
    return dropped / (seeds * len(LIBRARY)), freed / (seeds * len(LIBRARY))


def test_looking_after_every_step_does_not_make_mistakes_more_likely() -> None:
    """One level for all looks together; a level for each of them lets more than that through."""
    shared, each = wrongly(looks=STEPS), wrongly(looks=1)
    assert max(shared) <= LEVEL
    assert min(each) > 2 * max(shared)


def test_the_level_is_shared_out_among_the_looks() -> None:
    """Evidence that is enough for a single look is not for the first of many."""
    single, first = Trial(ON, 0), Trial(ON, 0, looks=20)
    for trial in (single, first):
        play(trial, LIBRARY, 1, {"e1": 0.3, "e2": -0.3}, luck=random.Random(7))
    (left, dropped, _), (kept, none, _) = single.judge(LIBRARY), first.judge(LIBRARY)
    assert ([e.id for e in dropped], none) == (["e2"], ())
    assert "e1" not in on_trial(single, left)
    assert on_trial(first, kept) == {e.id for e in LIBRARY}


def test_a_trial_that_is_never_judged_cannot_be() -> None:
    with pytest.raises(ConfigurationError, match="looks=0"):
        Trial(ON, 0, looks=0)
