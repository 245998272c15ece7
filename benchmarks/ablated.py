"""Stages of the reflection with one part taken out, for the ablations."""

from __future__ import annotations

from typing import Any

import dspy

from tgrpo_dspy.reflection.advantage import SemanticAdvantage


class Unreconciled(dspy.Module):
    """A curation that proposes nothing instead of what overlaps, so that all of it is kept."""

    def forward(self, lessons: str, proposals: str) -> dspy.Prediction:
        return dspy.Prediction(edits=[])


def without_curation() -> dict[str, Any]:
    """Settings of a reflection whose edits are all carried out."""
    return {"curation": Unreconciled()}


def without_demonstrations() -> dict[str, Any]:
    """Settings of a reflection that is shown no worked example."""
    advantage = SemanticAdvantage()
    advantage.first.demos = []
    advantage.revise.demos = []
    return {"advantage": advantage}
