"""Paired differences."""

from __future__ import annotations

import random

import pytest

from programs.comparing import paired_difference


def test_a_clear_gain_has_an_interval_above_zero_and_no_gain_one_around_it() -> None:
    draw = random.Random(1)
    before = [draw.random() for _ in range(60)]
    gain = paired_difference([b + 0.3 + 0.2 * (draw.random() - 0.5) for b in before], before)
    assert gain.low > 0 and gain.mean == pytest.approx(0.3, abs=0.03)
    assert gain.standard_error == pytest.approx(0.2 / 12**0.5 / 60**0.5, rel=0.3)
    nothing = paired_difference([b + draw.random() - 0.5 for b in before], before)
    assert nothing.low < 0 < nothing.high


@pytest.mark.parametrize(("after", "before"), [([1.0], [1.0]), ([1.0, 2.0], [1.0]), ([], [])])
def test_what_cannot_be_paired_is_an_error(after: list[float], before: list[float]) -> None:
    with pytest.raises(ValueError, match="two equally long lists"):
        paired_difference(after, before)
