"""Which examples an epoch samples, by what the groups before were like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scripted import examples
from tgrpo_dspy.records import Failure, Group, Rollout
from tgrpo_dspy.sampling.curriculum import Curriculum, example_of, is_solved
from tgrpo_dspy.sampling.examples import Item, items_of

ITEMS = items_of(examples(4), "trainset")
A, B, C, D = (item.key for item in ITEMS)
SOLVED, MIXED, FAILED = (1.0, 1.0), (1.0, 0.0), (0.0, 0.0)
LOST = Failure(kind="lm", error="LMError", message="down")


def curriculum(
    items: Sequence[Item] = ITEMS,
    *,
    batch_size: int | None = None,
    solved_score: float | None = 1.0,
    max_oversample: int = 1,
) -> Curriculum:
    return Curriculum(items, batch_size=batch_size, seed=0, solved_score=solved_score, max_oversample=max_oversample)


def group(key: str, rewards: Iterable[float | None]) -> Group:
    rollouts = [Rollout(number=n, reward=r, failure=LOST if r is None else None) for n, r in enumerate(rewards)]
    return Group(key=key, inputs={}, labels={}, rollouts=tuple(rollouts))


def keys_of(batches: Sequence[Sequence[Item]]) -> list[str]:
    return sorted(item.key for batch in batches for item in batch)


def epochs_of(found: Curriculum, rewards: Mapping[str, Sequence[float | None]], epochs: int) -> dict[str, list[int]]:
    """In which epochs each example is sampled when its rollouts always get the same rewards; further groups count."""
    sampled: dict[str, list[int]] = {key: [] for key in rewards}
    for epoch in range(1, epochs + 1):
        for batch in found.batches(epoch):
            for item in batch:
                sampled[example_of(item.key)].append(epoch)
            found.observe([group(item.key, rewards[example_of(item.key)]) for item in batch], epoch)
    return sampled


def test_a_solved_example_is_left_out_of_one_epoch_then_of_two_then_of_four() -> None:
    sampled = epochs_of(curriculum(), {A: SOLVED, B: MIXED, C: FAILED, D: FAILED}, 19)
    assert sampled[A] == [1, 3, 6, 11]
    assert sampled[B] == sampled[C] == sampled[D] == list(range(1, 20))


def test_without_a_solved_score_every_epoch_samples_every_example_once() -> None:
    rewards = {A: SOLVED, B: SOLVED, C: MIXED, D: FAILED}
    sampled = epochs_of(curriculum(solved_score=None, max_oversample=3), rewards, 4)
    assert set(map(tuple, sampled.values())) == {(1, 2, 3, 4)}


def test_when_all_are_left_out_all_are_sampled() -> None:
    sampled = epochs_of(curriculum(max_oversample=2), dict.fromkeys([A, B, C, D], SOLVED), 3)
    assert set(map(tuple, sampled.values())) == {(1, 2, 3)}


def test_one_that_is_no_longer_solved_starts_over() -> None:
    found = curriculum()
    for epoch, rewards in [(1, SOLVED), (3, FAILED), (4, SOLVED), (6, SOLVED)]:
        others = [group(key, FAILED) for key in (B, C, D)]
        assert A in keys_of(found.batches(epoch))
        found.observe([group(A, rewards), *others], epoch)
        assert (A in keys_of(found.batches(epoch + 1))) == (rewards is FAILED)
    assert A not in keys_of(found.batches(8)) and A in keys_of(found.batches(9))


def test_the_place_of_a_solved_example_goes_to_a_mixed_one_under_a_key_of_its_own() -> None:
    found = curriculum(max_oversample=2)
    found.observe([group(A, SOLVED), group(B, MIXED), group(C, FAILED), group(D, FAILED)], 1)
    keys = keys_of(found.batches(2))
    assert len(set(keys)) == 4
    assert Counter(example_of(key) for key in keys) == {B: 2, C: 1, D: 1}


def test_no_example_gets_more_groups_than_allowed_and_an_epoch_never_more_than_there_are_examples() -> None:
    rewards = {A: SOLVED, B: SOLVED, C: SOLVED, D: MIXED}
    for most in (1, 2, 3, 9):
        sampled = epochs_of(curriculum(max_oversample=most), rewards, 2)
        assert sampled[D].count(2) == min(most, 4)


def test_further_groups_are_taken_in_turn() -> None:
    found = curriculum(max_oversample=9)
    found.observe([group(A, SOLVED), group(B, SOLVED), group(C, MIXED), group(D, MIXED)], 1)
    assert Counter(example_of(key) for key in keys_of(found.batches(2))) == {C: 2, D: 2}


def test_two_solved_groups_of_one_epoch_count_once_and_one_of_them_does_not_solve() -> None:
    def after(*second: Sequence[float]) -> Curriculum:
        found = curriculum(max_oversample=2)
        found.observe([group(A, MIXED), group(B, FAILED), group(C, FAILED), group(D, FAILED)], 1)
        found.observe([group(A, second[0]), group(f"{A}+1", second[1]), group(B, FAILED)], 2)
        return found

    both = after(SOLVED, SOLVED)
    assert A not in keys_of(both.batches(3)) and A in keys_of(both.batches(4))
    for second in ((SOLVED, MIXED), (MIXED, SOLVED), (SOLVED, FAILED), (FAILED, SOLVED)):
        assert A in keys_of(after(*second).batches(3))


def test_solved_is_decided_when_the_epoch_is_over_in_whatever_order_its_groups_came() -> None:
    """The metric gives up to 10; that 3 is not the top is only known once another example reached 10."""
    groups = [group(A, (3.0, 3.0)), group(B, (10.0, 10.0)), group(C, (3.0, 10.0)), group(D, (0.0, 0.0))]
    for order in (groups, groups[::-1]):
        found = curriculum()
        for one in order:
            found.observe([one], 1)
        assert keys_of(found.batches(2)) == sorted([A, C, D])


def test_below_the_solved_score_nothing_is_solved_however_high_it_is_among_the_others() -> None:
    rewards = {A: (-1.0, -1.0), B: (-1.0, -1.0), C: (-5.0, -5.0), D: (-9.0, -1.0)}
    assert set(map(tuple, epochs_of(curriculum(), rewards, 3).values())) == {(1, 2, 3)}
    reachable = epochs_of(curriculum(solved_score=-1.0), rewards, 3)
    assert reachable == {A: [1, 3], B: [1, 3], C: [1, 2, 3], D: [1, 2, 3]}


def test_a_rollout_without_a_reward_leaves_it_open_whether_the_example_is_solved() -> None:
    found = curriculum()
    found.observe([group(A, (1.0, None)), group(B, ()), group(C, (None, None)), group(D, SOLVED)], 1)
    assert keys_of(found.batches(2)) == sorted([A, B, C])


def test_an_epoch_in_which_the_lm_failed_does_not_undo_what_was_solved_before() -> None:
    found = curriculum()
    others = [group(key, FAILED) for key in (B, C, D)]
    for epoch, rewards in [(1, SOLVED), (3, (None, None)), (4, SOLVED)]:
        found.batches(epoch)
        found.observe([group(A, rewards), *others], epoch)
    assert [A in keys_of(found.batches(epoch)) for epoch in (5, 6, 7)] == [False, False, True]


@pytest.mark.parametrize(
    ("rewards", "score", "solved"),
    [(SOLVED, 1.0, True), (MIXED, 1.0, False), ((), 0.0, False), ((1.0, None), 1.0, False), ((0.5,), 0.5, True)],
)
def test_solved_means_every_rollout(rewards: Sequence[float | None], score: float, solved: bool) -> None:
    assert is_solved(group("key", rewards), score) is solved


REWARDS = st.lists(st.sampled_from([0.0, 0.5, 1.0, None]), min_size=1, max_size=3)


@settings(deadline=None)
@given(
    history=st.lists(st.lists(REWARDS, min_size=8, max_size=8), max_size=6),
    batch_size=st.integers(1, 5),
    most=st.integers(1, 3),
)
def test_whatever_happens_an_epoch_has_a_batch_and_stays_within_its_bounds(
    history: list[list[list[float | None]]], batch_size: int, most: int
) -> None:
    found, again = (curriculum(batch_size=batch_size, max_oversample=most) for _ in range(2))
    for epoch, rewards in enumerate(history, start=1):
        batches = found.batches(epoch)
        assert batches == again.batches(epoch), "the same history gives the same batches"
        keys = keys_of(batches)
        assert len(set(keys)) == len(keys) and 1 <= len(keys) <= len(ITEMS)
        assert max(Counter(example_of(key) for key in keys).values()) <= most
        assert all(len(batch) == batch_size for batch in batches[:-1])
        groups = iter(rewards)
        for batch in batches:
            done = [group(item.key, next(groups)) for item in batch]
            found.observe(done, epoch)
            again.observe(done, epoch)
