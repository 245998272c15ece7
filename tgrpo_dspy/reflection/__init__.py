"""From groups of rollouts to one consistent set of edits. The LM calls are ``dspy.Module``s that can be replaced."""

from tgrpo_dspy.reflection.advantage import SemanticAdvantage
from tgrpo_dspy.reflection.curation import Curation
from tgrpo_dspy.reflection.signatures import ProposedEdit

__all__ = ["Curation", "ProposedEdit", "SemanticAdvantage"]
