"""The variants of the loop beside few-shot optimizers, without a budget: what each part of the loop is worth.

They are measured by ``python -m benchmarks.compare`` when no budget is set.
"""

from __future__ import annotations

from collections.abc import Mapping

import dspy

from benchmarks.variants import PAPER, Demonstrations, Direct, Ours, Student, Variant

_POOLED = {**PAPER, "reflection": {**PAPER["reflection"], "groups_per_call": 8}}

# What acceptance="last" returns depends on no validation set, so the paper's loop is given none and pays for none.
VARIANTS: Mapping[str, Variant] = {
    "student": Student("the program as it is"),
    "paper": Ours("the paper's loop", PAPER, validates=False),
    "paper_pooled": Ours("the paper's loop, eight groups in a reflection call", _POOLED, validates=False),
    "full": Ours("all defaults"),
    "full_trial": Ours("with experiences on trial", {"sampling": {"trial": "randomized"}}),
    "full_exemplars": Ours("with up to four exemplars", {"limits": {"exemplars": 4}}),
    "no_ground_truth": Ours("without labels and rewards", {"use_ground_truth": False}),
    "no_group": Ours("one rollout an example: no group computation", {"group_size": 1}),
    "direct": Direct("experiences written from the description alone"),
    "labeled_fewshot_2": Demonstrations("two labelled examples", dspy.LabeledFewShot, {"k": 2}),
    "labeled_fewshot_4": Demonstrations("four labelled examples", dspy.LabeledFewShot, {"k": 4}),
    "labeled_fewshot_8": Demonstrations("eight labelled examples", dspy.LabeledFewShot, {"k": 8}),
    "labeled_fewshot_16": Demonstrations("sixteen labelled examples", dspy.LabeledFewShot, {"k": 16}),
    # DSPy's own defaults; without the threshold it takes any prediction with feedback for a success.
    "bootstrap_fewshot": Demonstrations(
        "own right answers and labelled examples", dspy.BootstrapFewShot, {"metric_threshold": 1.0}, scored=True
    ),
}
