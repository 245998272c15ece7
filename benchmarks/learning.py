"""The variants of the loop beside few-shot optimizers, without a budget: what each part of the loop is worth.

They are measured by ``python -m benchmarks.compare`` when no budget is set; the ablations, which change one decision
each, by ``python -m benchmarks.ablations``.
"""

from __future__ import annotations

from collections.abc import Mapping

import dspy

from benchmarks.ablated import without_curation, without_demonstrations
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
    "full_exemplars_16": Ours("with up to sixteen exemplars", {"limits": {"exemplars": 16}}),
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

ABLATIONS: Mapping[str, Variant] = {
    "full": VARIANTS["full"],
    # The paper's
    "no_ground_truth": VARIANTS["no_ground_truth"],
    "no_group": VARIANTS["no_group"],
    "direct": VARIANTS["direct"],
    # Reflection
    "no_demonstrations": Ours("reflection without worked examples", {"reflection": without_demonstrations}),
    "no_pooling": Ours("one group in a reflection call", {"reflection": {"groups_per_call": 1}}),
    "no_failures": Ours("groups that fail throughout teach nothing", {"reflection": {"learn_from_failures": False}}),
    "no_likeness": Ours("groups shown in batch order", {"reflection": {"alike_together": False}}),
    "no_curation": Ours("overlapping edits are all carried out", {"reflection": without_curation}),
    # Sampling
    "no_skipping": Ours("solved examples are sampled again", {"sampling": {"solved_score": None}}),
    "trial": VARIANTS["full_trial"],
    "temperature_0.4": Ours("rollouts at temperature 0.4, not 0.7", {"sampling": {"temperature": 0.4}}),
    "temperature_1": Ours("rollouts at temperature 1", {"sampling": {"temperature": 1.0}}),
    "group_size_3": Ours("three rollouts an example, not five", {"group_size": 3}),
    "group_size_8": Ours("eight rollouts an example", {"group_size": 8}),
    # The library
    "no_validation": Ours("the last library", {"validation": {"acceptance": "last"}}, validates=False),
    "gate": Ours("steps that score worse are rolled back", {"validation": {"acceptance": "gate"}}),
    "words_16": Ours("lessons of at most 16 words, not 32", {"limits": {"words": 16}}),
    "words_64": Ours("lessons of at most 64 words", {"limits": {"words": 64}}),
}
"""Each is all defaults but for one decision."""
