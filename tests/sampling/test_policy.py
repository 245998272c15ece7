"""How LMs sample while learning, seen in the requests that their engine gets."""

from __future__ import annotations

from typing import Any

import dspy
import pytest

from tests.scripted import Shouting, exact, examples
from tgrpo_dspy import TrainingFreeGRPO


def temperatures(student: dspy.Module, **lm: Any) -> list[float | None]:
    model = Shouting()
    with dspy.context(lm=model.lm(**lm)):
        TrainingFreeGRPO(metric=exact, epochs=1, group_size=3).compile(student, trainset=examples(1), verbose=False)
    return [call.request.config.temperature for call in model.runs]


@pytest.mark.parametrize("model", ["openai/gpt-5-mini", "azure/gpt-5.6-luna", "openai/o3", "o4-mini-2025-04-16"])
@pytest.mark.parametrize("max_tokens", [None, 16000])
@pytest.mark.parametrize(("own", "sampled"), [(None, None), (1.0, 1.0), (0.0, 1.0)])
def test_a_reasoning_model_keeps_the_only_temperature_it_allows(
    model: str, max_tokens: int | None, own: float | None, sampled: float | None
) -> None:
    student = dspy.Predict("question -> answer")
    assert temperatures(student, model=model, temperature=own, max_tokens=max_tokens) == [sampled] * 3


def test_a_temperature_that_a_predictor_pins_does_not_reach_a_reasoning_model() -> None:
    student = dspy.Predict("question -> answer", temperature=0.7)
    assert temperatures(student, model="openai/gpt-5", temperature=None) == [None] * 3


@pytest.mark.parametrize("lm", [{"model": "openai/gpt-5-chat"}, {"model": "openai/gpt-4o", "max_completion_tokens": 9}])
def test_every_other_model_samples_whatever_its_settings_look_like(lm: dict[str, Any]) -> None:
    assert temperatures(dspy.Predict("question -> answer"), **lm) == [0.7] * 3
