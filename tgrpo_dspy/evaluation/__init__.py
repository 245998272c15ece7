"""Scoring a program on a validation set, and what each experience of its library is worth."""

from tgrpo_dspy.evaluation.attribution import Attribution, aattribute, attribute
from tgrpo_dspy.evaluation.pruning import Pruned, aprune, prune

__all__ = ["Attribution", "Pruned", "aattribute", "aprune", "attribute", "prune"]
