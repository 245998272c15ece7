"""Scoring a program on a validation set, and what each experience of its library is worth."""

from tgrpo_dspy.evaluation.attribution import Attribution, aattribute, attribute
from tgrpo_dspy.evaluation.performance import Performance, aevaluate, evaluate
from tgrpo_dspy.evaluation.pruning import Pruned, aprune, prune

__all__ = [
    "Attribution",
    "Performance",
    "Pruned",
    "aattribute",
    "aevaluate",
    "aprune",
    "attribute",
    "evaluate",
    "prune",
]
