"""Which groups are reflected on, and which of them together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tgrpo_dspy import Reflection, Sampling
from tgrpo_dspy.records import Failure, Group, Rollout
from tgrpo_dspy.reflection.pooling import Pooling, Teaching
from tgrpo_dspy.reflection.trajectory import group_tokens

BROKEN = Failure(kind="parse", error="AdapterParseError", message="no answer")
LATE = Failure(kind="timeout", error="DeadlinePassed", message="took longer than 1 s")
DOWN = Failure(kind="lm", error="LMError", message="down")


def group(
    *rewards: float | None,
    labels: dict[str, str] | None = None,
    outputs: dict[str, str] | None = None,
    feedback: str = "",
    failure: Failure | None = None,
    key: str = "key",
    text: str = "",
) -> Group:
    rollouts = tuple(
        Rollout(
            number=n,
            outputs={} if failure else outputs or {},
            reward=reward,
            feedback=feedback,
            failure=DOWN if reward is None else failure,
        )
        for n, reward in enumerate(rewards)
    )
    return Group(key=key, inputs={"text": text or key}, labels=labels or {}, rollouts=rollouts)


def teaching(*, with_labels: bool = True, sampling: Sampling | None = None, **reflection: Any) -> Teaching:
    return Teaching(sampling or Sampling(), Reflection(**reflection), with_labels)


LABEL = {"answer": "A"}


def test_a_group_teaches_when_its_rewards_differ_by_more_than_the_least_spread() -> None:
    half = Sampling(min_spread=0.5)
    assert teaching().teaches(group(1.0, 0.0))
    assert teaching(sampling=half).teaches(group(1.0, 0.0))
    assert not teaching(sampling=half).teaches(group(1.0, 0.5))
    assert not teaching().teaches(group(None, 1.0))


@pytest.mark.parametrize("known", [{"labels": LABEL}, {"feedback": "wrong"}])
def test_a_group_that_fails_throughout_teaches_where_it_is_known_what_is_right(known: dict[str, Any]) -> None:
    failing = group(0.0, 0.0, **known)
    assert teaching().teaches(failing) and not teaching().is_informative(failing)
    assert not teaching(learn_from_failures=False).teaches(failing)
    assert not teaching(with_labels=False).teaches(failing)
    assert not teaching().teaches(group(0.0, 0.0))


def test_a_group_that_is_solved_or_that_the_lm_failed_teaches_nothing() -> None:
    assert not teaching().teaches(group(1.0, 1.0, labels=LABEL))
    assert not teaching(sampling=Sampling(solved_score=None)).teaches(group(1.0, 1.0, labels=LABEL))
    assert not teaching().teaches(group(None, None, labels=LABEL))
    assert not teaching().teaches(group(labels=LABEL))


def test_what_counts_as_solved_follows_the_scale_of_the_metric() -> None:
    almost = group(8.0, 8.0, labels=LABEL)
    assert teaching(sampling=Sampling(solved_score=10.0)).teaches(almost)
    assert not teaching(sampling=Sampling(solved_score=8.0)).teaches(almost)
    best = group(0.0, 0.0, labels=LABEL)
    assert not teaching(sampling=Sampling(solved_score=0.0)).teaches(best)


def test_differences_too_small_to_compare_still_teach_beside_the_label() -> None:
    small = teaching(sampling=Sampling(min_spread=0.5))
    assert small.teaches(group(0.4, 0.2, labels=LABEL)) and not small.teaches(group(0.4, 0.2))


def test_a_single_rollout_teaches_whatever_its_reward() -> None:
    for chosen in ({}, {"learn_from_failures": False}, {"with_labels": False}):
        assert teaching(**chosen).teaches(group(0.0)) and teaching(**chosen).teaches(group(1.0))
    assert not teaching().teaches(group(None))


def test_groups_are_alike_when_the_same_fields_are_wrong_and_they_fail_in_the_same_way() -> None:
    labels = {"city": "ROME", "year": "1999"}
    likeness = teaching().likeness
    city = group(0.0, labels=labels, outputs={"city": "rome", "year": "1999"})
    other_city = group(0.0, labels={"city": "PARIS", "year": "2001"}, outputs={"city": "x", "year": "2001 "})
    year = group(0.0, labels=labels, outputs={"city": "ROME", "year": "99"})
    broken, late = (group(0.0, labels=labels, failure=failure) for failure in (BROKEN, LATE))
    assert likeness(city) == likeness(other_city)
    assert len({likeness(one) for one in (city, year, broken, late)}) == 4
    for blind in (teaching(alike_together=False), teaching(with_labels=False)):
        assert len({blind.likeness(one) for one in (city, year, broken, late)}) == 1


def pools_of(
    groups: Sequence[Group], order: Sequence[int], chosen: Reflection, found: Teaching | None = None
) -> list[tuple[int, list[str]]]:
    """The pools, by number, when the groups of a batch are done in this order."""
    pooling = Pooling(len(groups), chosen, found or Teaching(Sampling(), chosen, True))
    pools = [pool for place in order for pool in pooling.add(place, groups[place])]
    assert [g.key for g in pooling.groups] == [g.key for g in groups], "every group is reported in batch order"
    assert [number for number, _ in pools] == list(range(len(pools)))
    return [(number, [g.key for g in pool]) for number, pool in pools]


def failing(key: str, field: str) -> Group:
    return group(0.0, 0.0, key=key, labels={field: "RIGHT"}, outputs={field: "wrong"})


def test_where_they_do_not_all_fit_one_call_groups_that_fail_alike_share_one() -> None:
    batch = [failing("a0", "a"), failing("b0", "b"), failing("a1", "a"), failing("b1", "b"), failing("a2", "a")]
    together = Reflection(groups_per_call=2)
    assert pools_of(batch, range(5), together) == [(0, ["a0", "a1"]), (1, ["b0", "b1"]), (2, ["a2"])]
    in_order = Reflection(groups_per_call=2, alike_together=False)
    assert pools_of(batch, range(5), in_order) == [(0, ["a0", "b0"]), (1, ["a1", "b1"]), (2, ["a2"])]


def test_where_they_all_fit_one_call_they_share_it_in_batch_order() -> None:
    batch = [failing("a0", "a"), failing("b0", "b"), failing("a1", "a")]
    assert pools_of(batch, [2, 0, 1], Reflection()) == [(0, ["a0", "b0", "a1"])]


def test_what_is_left_of_every_kind_is_put_together() -> None:
    batch = [failing(name, name[0]) for name in ("a0", "b0", "c0", "a1", "a2")]
    pools = pools_of(batch, range(5), Reflection(groups_per_call=3))
    assert pools == [(0, ["a0", "a1", "a2"]), (1, ["b0", "c0"])]


def test_a_pool_is_full_when_the_next_group_would_not_fit_the_prompt() -> None:
    batch = [group(1.0, 0.0, key=str(n), text="word " * 200) for n in range(5)]
    fit = 600 // group_tokens(batch[0])
    assert fit == 2
    pools = pools_of(batch, range(5), Reflection(max_prompt_tokens=600))
    assert pools == [(0, ["0", "1"]), (1, ["2", "3"]), (2, ["4"])]


def test_a_pool_is_handed_out_before_the_batch_is_done() -> None:
    chosen = Reflection(groups_per_call=1)
    pooling = Pooling(3, chosen, Teaching(Sampling(), chosen, True))
    assert [len(list(pooling.add(place, group(1.0, 0.0)))) for place in (1, 0, 2)] == [0, 2, 1]


KINDS = st.sampled_from(
    [
        {"rewards": (1.0, 0.0)},
        {"rewards": (1.0, 1.0), "labels": LABEL},
        {"rewards": (0.0, 0.0), "labels": {"answer": "A"}, "outputs": {"answer": "a"}},
        {"rewards": (0.0, 0.0), "labels": {"answer": "A", "year": "1"}, "outputs": {"answer": "A", "year": "2"}},
        {"rewards": (0.0, 0.0), "labels": LABEL, "failure": BROKEN},
        {"rewards": (0.0, 0.0), "feedback": "wrong"},
        {"rewards": (None, None), "labels": LABEL},
        {"rewards": ()},
    ]
)
BATCHES = st.lists(st.tuples(KINDS, st.integers(0, 900)), min_size=1, max_size=12)


@settings(deadline=None)
@given(
    made=BATCHES.flatmap(lambda made: st.tuples(st.just(made), st.permutations(range(len(made))))),
    size=st.integers(1, 5),
    max_tokens=st.integers(200, 800),
    alike=st.booleans(),
    failures=st.booleans(),
)
def test_every_group_that_teaches_is_handed_out_once_within_the_bounds_in_whatever_order_they_are_done(
    made: tuple[list[tuple[dict[str, Any], int]], list[int]], size: int, max_tokens: int, alike: bool, failures: bool
) -> None:
    kinds, order = made
    batch = [
        group(*kind["rewards"], key=str(n), text="x" * length, **{k: v for k, v in kind.items() if k != "rewards"})
        for n, (kind, length) in enumerate(kinds)
    ]
    chosen = Reflection(
        groups_per_call=size, max_prompt_tokens=max_tokens, alike_together=alike, learn_from_failures=failures
    )
    found = Teaching(Sampling(), chosen, True)
    pools = pools_of(batch, order, chosen, found)
    assert pools == pools_of(batch, range(len(batch)), chosen, found)
    assert sorted(key for _, pool in pools for key in pool) == sorted(g.key for g in batch if found.teaches(g))
    for _, pool in pools:
        assert 1 <= len(pool) <= size
        assert pool == sorted(pool, key=int), "batch order inside a call"
        assert len(pool) == 1 or sum(group_tokens(batch[int(key)]) for key in pool) <= max_tokens
