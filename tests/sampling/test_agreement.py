"""Agreement inside a group: the reward where nobody knows what is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tgrpo_dspy.records import Failure, FailureKind, Group, Rollout
from tgrpo_dspy.sampling.agreement import normalised, with_agreement
from tgrpo_dspy.sampling.failures import is_scored


def agreements(*outputs: Mapping[str, str] | FailureKind, answer_field: str | None = None) -> list[float | None]:
    """The rewards of rollouts that gave these outputs, or failed in these ways."""

    def rollout(number: int, made: Mapping[str, str] | FailureKind) -> Rollout:
        if isinstance(made, str):
            failure = Failure(kind=made, error="Error", message="failed")
            return Rollout(number=number, failure=failure, reward=0.0 if is_scored(failure) else None)
        return Rollout(number=number, outputs=made)

    rollouts = tuple(rollout(number, made) for number, made in enumerate(outputs))
    found = with_agreement(Group(key="k", inputs={}, labels={}, rollouts=rollouts), answer_field=answer_field)
    return [rollout.reward for rollout in found.rollouts]


def answers(*texts: str) -> list[Mapping[str, str]]:
    return [{"answer": text} for text in texts]


def test_the_reward_is_the_share_of_rollouts_that_came_to_the_same_answer() -> None:
    assert agreements(*answers("a", "a", "a", "b")) == [0.75, 0.75, 0.75, 0.25]


def test_the_way_to_an_answer_does_not_count() -> None:
    assert agreements({"reasoning": "one way", "answer": "a"}, {"reasoning": "another", "answer": "a"}) == [1.0, 1.0]


def test_where_there_is_nothing_but_reasoning_it_is_the_answer() -> None:
    assert agreements({"reasoning": "a"}, {"reasoning": "a"}, {"reasoning": "b"}, {"reasoning": "c"}) == [
        0.5,
        0.5,
        0.25,
        0.25,
    ]


def test_every_answer_field_counts_the_same() -> None:
    both = [{"city": "Rome", "year": "1999"}, {"city": "Rome", "year": "2001"}]
    assert agreements(*both) == [0.75, 0.75]
    assert agreements(*both, answer_field="city") == [1.0, 1.0]
    assert agreements(*both, answer_field="year") == [0.5, 0.5]


def test_a_field_that_is_missing_agrees_with_none() -> None:
    assert agreements({"city": "Rome", "year": "1999"}, {"city": "Rome"}) == [0.75, 0.5]


@pytest.mark.parametrize("kind", ["parse", "program", "timeout", "context"])
def test_a_rollout_that_failed_agrees_with_none_not_even_with_another_that_failed(kind: FailureKind) -> None:
    assert agreements(*answers("a", "a"), kind, kind) == [0.5, 0.5, 0.0, 0.0]
    assert agreements(kind, kind) == [0.0, 0.0]


def test_a_rollout_that_failed_on_the_lms_side_is_left_out() -> None:
    assert agreements(*answers("a", "a"), "lm") == [1.0, 1.0, None]
    assert agreements("lm", "lm") == [None, None]


@pytest.mark.parametrize(
    "alike",
    [
        ("The Answer", " the  answer. ", "THE ANSWER!", '"The answer".'),
        ("(B)", "(B).", "b", "**B**"),
        ("1000", "1,000", "1000.0", "+1,000.00", "$1000", "1000."),
        ("-0.5", "-.5", "-0.50"),
        ("0", "-0", "0.0", "000"),
        ("yes", "Yes.", "'yes'"),
    ],
)
def test_answers_that_say_the_same_are_equal(alike: Sequence[str]) -> None:
    assert len({normalised(text) for text in alike}) == 1


@pytest.mark.parametrize(
    "different",
    [
        ("12", "1,2", "1.2", "[1, 2]"),
        ("0,123", "123", "0.123"),
        ("5", "-5"),
        ("1" * 40, "1" * 39 + "2"),
        ("+", "-", "*", "?", "!", ""),
        ("1.2.3", "1.23", "123"),
        ("yes", "no"),
    ],
)
def test_answers_that_say_something_else_are_not_equal(different: Sequence[str]) -> None:
    assert len({normalised(text) for text in different}) == len(different)


TEXTS = st.text(st.sampled_from("aB1 0.,-+()\"'$*"), max_size=8)
OUTPUTS = st.dictionaries(st.sampled_from(["answer", "score", "reasoning"]), TEXTS, max_size=3)
MADE = st.one_of(OUTPUTS, st.sampled_from(["parse", "program", "timeout", "context", "lm", "metric"]))


@settings(deadline=None)
@given(TEXTS)
def test_what_is_normalised_stays_as_it_is(text: str) -> None:
    assert normalised(normalised(text)) == normalised(text)


@settings(deadline=None)
@given(st.decimals(allow_nan=False, allow_infinity=False, places=4), st.integers(0, 5))
def test_a_number_is_compared_by_its_value(number: Decimal, zeros: int) -> None:
    text = f"{number:f}"
    assert normalised(text + "0" * zeros) == normalised(text)
    assert float(normalised(text)) == float(text)


@settings(deadline=None)
@given(st.lists(MADE, max_size=6), st.sampled_from([None, "answer", "score"]))
def test_it_is_between_0_and_1_and_missing_for_failures_of_the_lm_alone(
    made: list[Mapping[str, str] | FailureKind], field: str | None
) -> None:
    for outputs, reward in zip(made, agreements(*made, answer_field=field), strict=True):
        if outputs in ("lm", "metric"):
            assert reward is None
        else:
            assert reward is not None and 0.0 <= reward <= 1.0
            assert reward == 0.0 or not isinstance(outputs, str)


@settings(deadline=None)
@given(st.lists(MADE, max_size=5).flatmap(lambda made: st.tuples(st.just(made), st.permutations(range(len(made))))))
def test_the_order_of_the_rollouts_decides_nothing(
    drawn: tuple[list[Mapping[str, str] | FailureKind], list[int]],
) -> None:
    made, order = drawn
    rewards = agreements(*made)
    assert agreements(*(made[place] for place in order)) == [rewards[place] for place in order]


@settings(deadline=None)
@given(OUTPUTS.filter(bool), st.integers(1, 6))
def test_rollouts_that_are_all_equal_agree_fully(outputs: Mapping[str, str], count: int) -> None:
    assert agreements(*[outputs] * count) == [1.0] * count
