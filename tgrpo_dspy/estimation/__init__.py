"""What a run will take, before it starts."""

from tgrpo_dspy.estimation.estimate import Estimate, estimate

__all__ = ["Estimate", "estimate"]
