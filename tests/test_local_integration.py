"""A real server with a real, very small model: garbage answers over real HTTP, and no crash."""

from __future__ import annotations

from pathlib import Path

import dspy
import pytest

from programs.country_records.data import splits
from programs.country_records.metric import field_accuracy
from programs.country_records.program import program
from programs.local_lm import SMOLLM2_135M, local_lm
from programs.model_files import ModelFileError
from tgrpo_dspy import Reflection, TrainingFreeGRPO


@pytest.mark.local_model
def test_compiles_on_a_real_server_with_a_model_that_hardly_follows_any_form(tmp_path: Path) -> None:
    pytest.importorskip("xllamacpp")
    try:
        lm = local_lm(SMOLLM2_135M, slots=2, temperature=0.0, max_tokens=96, num_retries=0)
    except ModelFileError as error:
        pytest.skip(f"the model cannot be had here: {error}")
    data = splits(0, train=2, val=1, test=2, ood=2)
    # One reflection call and no second try: on a slow machine every call of it takes many seconds.
    reflection = Reflection(attempts=1, max_prompt_tokens=600)
    optimizer = TrainingFreeGRPO(metric=field_accuracy, group_size=2, epochs=1, num_threads=2, reflection=reflection)
    with dspy.context(lm=lm):
        compiled = optimizer.compile(program(), trainset=data.train, valset=data.val, verbose=False)
    report = optimizer.report
    assert report is not None and report.student is not None
    rollouts = [rollout for group in report.steps[0].groups for rollout in group.rollouts]
    assert len(rollouts) == 4
    assert all(rollout.reward is not None for rollout in rollouts)
    assert report.usage["rollout"].calls >= 4 and report.usage["rollout"].completion_tokens > 0
    compiled.save(tmp_path / "compiled.json")
    again = program()
    again.load(tmp_path / "compiled.json")
    assert again.signature.instructions == compiled.signature.instructions
